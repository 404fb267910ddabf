"""Graders: which there are, is a configuration valid, what does one say of an answer."""

from fastapi import APIRouter

import verifiers
from app.api.bodies import JsonRoute
from app.api.errors import ApiError
from app.api.grading import dry_run
from app.api.grading_schemas import GraderExample
from app.api.schemas import GradePublic, GraderInfo, GraderRun, GraderValid, GraderValidate
from app.api.wire import Json, Listed, called, said
from app.night.grading import sample_of
from app.state import Running
from storage.tables import GradeRow
from verifiers import Grade, Grader, GraderConfigError, Status
from verifiers.examples import EXAMPLES

router = APIRouter(prefix="/graders", route_class=JsonRoute)


def build_grader(config: Json) -> tuple[Grader, str]:
    """The grader of a request's configuration and its hash; a mistake in it is the client's."""
    try:
        return verifiers.build(config), verifiers.grader_hash(config)
    except GraderConfigError as error:
        param = f"grader.{error.path}" if error.path else "grader"
        raise ApiError(
            400, f"{param}: {error.message}", code="invalid_grader", param=param
        ) from error


def reads_tool_calls(config: Json) -> bool:
    """Whether a valid configuration looks at the calls that were read from an answer."""
    nested = config.get("graders", {}).values()
    return config.get("syntax") == "tools" or any(map(reads_tool_calls, nested))


def public(grade: Grade | GradeRow, grader_hash: str) -> GradePublic:
    """A grade as clients see it."""
    return GradePublic(
        status=Status(grade.status.value),
        passed=grade.status.value == Status.PASSED,
        score=grade.score,
        subscores=grade.subscores,
        error_kind=grade.error_kind,
        error=grade.error,
        seconds=grade.seconds,
        grader_hash=grader_hash,
    )


@router.get("")
def list_graders() -> Listed[GraderInfo]:
    """The grader types: what each compares, the JSON schema of its configuration, an example."""
    schemas = verifiers.schemas()
    return Listed(
        data=[
            GraderInfo(
                id=example.type,
                description=example.summary,
                config_schema=schemas[example.type],
                example=GraderExample(
                    grader=example.config,
                    item=example.item,
                    passes=example.passes,
                    fails=example.fails,
                ),
            )
            for example in EXAMPLES
        ]
    )


@router.post("/validate")
def validate(body: GraderValidate, parts: Running) -> GraderValid:
    """Checks a configuration; the answer has its defaults filled in.

    With a task's name the configuration is tried on the task's last episodes. Stores nothing.
    """
    grader, digest = build_grader(body.grader)
    full = grader.describe()
    tried = None if body.task is None else dry_run(parts, full, body.task, body.episodes)
    return GraderValid(grader=full, grader_hash=digest, dry_run=tried)


@router.post("/run")
def run(body: GraderRun, parts: Running) -> GradePublic:
    """Grades one answer without storing anything."""
    _, digest = build_grader(body.grader)
    sample = sample_of(said(body.model_sample), called(body.model_sample))
    grade = parts.graders.grade(body.grader, sample, body.item)
    return public(grade, digest)
