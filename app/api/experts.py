"""Experts: the versions of each task, which of them answers, and their files."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse

from app.api.bodies import JsonRoute
from app.api.errors import ApiError
from app.api.schemas import ExpertDetail, ExpertPublic
from app.api.tasks import forget_expert
from app.api.wire import Deleted, Listed
from app.security import Name
from app.state import Running
from storage import versions
from storage.tables import Version

router = APIRouter(prefix="/experts", route_class=JsonRoute)


def public(version: Version) -> ExpertPublic:
    """A version as clients see it."""
    return ExpertPublic(**_fields(version))


@router.get("")
def list_all(parts: Running, task: Annotated[Name | None, Query()] = None) -> Listed[ExpertPublic]:
    """All versions, or those of one task, by task and number."""
    with parts.database.reading() as session:
        return Listed(data=[public(row) for row in versions.list_versions(session, task)])


@router.get("/{expert_id}")
def get(expert_id: str, parts: Running) -> ExpertDetail:
    """One version with its manifest."""
    with parts.database.reading() as session:
        version = versions.get(session, expert_id)
        return ExpertDetail(**_fields(version), manifest=version.manifest)


@router.post("/{expert_id}/activate")
def activate(expert_id: str, parts: Running) -> ExpertPublic:
    """Makes a version answer for its task. Its files are checked first, and that it fits."""
    with parts.database.reading() as session:
        version = versions.get(session, expert_id)
    require_fitting(version, parts.engine.info.base_hash, parts.engine.basis_hash)
    parts.experts.load(expert_id)
    with parts.database.session() as session:
        return public(versions.activate(session, expert_id))


@router.delete("/{expert_id}")
def delete(expert_id: str, parts: Running) -> Deleted:
    """Deletes a version and its files; refused while it is active."""
    with parts.database.session() as session:
        versions.delete(session, expert_id)
    forget_expert(parts, expert_id)
    return Deleted(id=expert_id, object="expert")


@router.get("/{expert_id}/download")
def download(
    expert_id: str,
    parts: Running,
    file: Literal["expert.safetensors", "manifest.json"] = "expert.safetensors",
) -> FileResponse:
    """One of a version's two files, checked against its hash."""
    with parts.database.reading() as session:
        version = versions.get(session, expert_id)
    parts.experts.load(expert_id)
    kind = "application/json" if file.endswith(".json") else "application/octet-stream"
    name = f"{version.task}-{version.number}-{file}"
    return FileResponse(parts.settings.experts / version.id / file, media_type=kind, filename=name)


def require_fitting(version: Version, base_hash: str, basis_hash: str) -> None:
    """Refuses a version that was trained on another base model, or in another basis of it."""
    if version.base_hash == base_hash and version.basis_hash in (None, basis_hash):
        return
    what = "basis" if version.base_hash == base_hash else "base model"
    raise ApiError(
        409,
        f"expert {version.task}@{version.number} belongs to another {what} than the one served",
        code="foreign_expert",
        param="model",
    )


def _fields(version: Version) -> dict[str, Any]:
    return {
        "id": version.id,
        "name": f"{version.task}@{version.number}",
        "task": version.task,
        "version": version.number,
        "kind": version.manifest["kind"],
        "state": version.state.value,
        "parent_id": version.parent_id,
        "base_model": version.base_model,
        "base_hash": version.base_hash,
        "basis_hash": version.basis_hash,
        "bytes": version.bytes,
        "gate": version.manifest.get("gate"),
        "job_id": version.job_id,
        "created_at": version.created_at,
        "activated_at": version.activated_at,
    }
