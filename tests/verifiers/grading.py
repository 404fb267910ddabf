"""Grading with `function_call`, as its tests do it."""

from typing import Any

from verifiers import Grade, Sample, build


def called(text: str, call: Any, **config: Any) -> Grade:
    """Grade a text against the item's call."""
    grader = build({"type": "function_call", **config})
    return grader.grade(Sample(output_text=text), {"call": call})
