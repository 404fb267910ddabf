"""Graders: pure functions that say whether a completion is right, and how nearly.

`build(config)` turns a grader's JSON configuration into a `Grader`; `grader.grade(sample, item)`
compares one completion with the episode's item and returns a `Grade`.

A grade has two faces: `passed` is reported and is true only for an exactly right completion;
`score` in [0, 1] is shaped, so that a small model that is nearly right sees a difference, and is
what training uses. A completion can only pass or fail, however hostile it is. What is wrong on our
side (a broken item, a bug) is `errored`, has no score, and is never trained on.

`GraderPool` grades in killable processes, each grade within a deadline: that is how the service
does it, `grader.grade` is for what is known to be harmless.
"""

from verifiers.base import (
    MAX_OUTPUT_CHARS,
    Grade,
    Grader,
    GraderConfigError,
    Sample,
    Status,
    ToolCall,
)
from verifiers.pool import GraderPool, PoolClosed
from verifiers.registry import build, grader_hash, schemas

__all__ = [
    "MAX_OUTPUT_CHARS",
    "Grade",
    "Grader",
    "GraderConfigError",
    "GraderPool",
    "PoolClosed",
    "Sample",
    "Status",
    "ToolCall",
    "build",
    "grader_hash",
    "schemas",
]
