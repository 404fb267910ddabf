"""Graders: which there are, is a configuration valid, what does one say of an answer."""

from fastapi import APIRouter

import verifiers
from app.api.errors import ApiError
from app.api.grading import dry_run
from app.api.grading_schemas import GraderExample
from app.api.schemas import GradePublic, GraderInfo, GraderRun, GraderValid, GraderValidate
from app.api.wire import Json, Listed
from app.state import Running
from storage.tables import GradeRow
from verifiers import Grade, Grader, GraderConfigError, Sample, Status
from verifiers.examples import EXAMPLES

router = APIRouter(prefix="/graders")


def build_grader(config: Json) -> tuple[Grader, str]:
    """The grader of a request's configuration and its hash; a mistake in it is the client's."""
    try:
        grader = verifiers.build(config)
        _refuse_tool_calls(grader.describe(), ())
        return grader, verifiers.grader_hash(config)
    except GraderConfigError as error:
        param = f"grader.{error.path}" if error.path else "grader"
        raise ApiError(
            400, f"{param}: {error.message}", code="invalid_grader", param=param
        ) from error


def _refuse_tool_calls(config: Json, path: tuple[str, ...]) -> None:
    """Answers reach graders as text: one that reads parsed tool calls would never see any."""
    if config.get("syntax") == "tools":
        raise GraderConfigError(
            ".".join((*path, "syntax")),
            'tool calls are not parsed from answers yet: use "call" or "json"',
        )
    for name, nested in config.get("graders", {}).items():
        _refuse_tool_calls(nested, (*path, "graders", name))


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
    grade = parts.graders.grade(body.grader, Sample(output_text=body.model_sample), body.item)
    return public(grade, digest)
