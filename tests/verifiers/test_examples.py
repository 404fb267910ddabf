"""The examples do what they say, cover every type, and are those of the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from verifiers import examples
from verifiers.base import Status
from verifiers.examples import EXAMPLES, Example
from verifiers.registry import FAMILIES, build

ROOT = Path(__file__).parents[2]


def test_every_type_has_an_example_in_the_registrys_order() -> None:
    assert [example.type for example in EXAMPLES] == list(FAMILIES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.type)
def test_an_example_passes_fails_and_errs(example: Example) -> None:
    shown = examples.run(example)
    assert (shown.passed.status, shown.failed.status, shown.errored.status) == tuple(Status)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.type)
def test_a_reference_of_an_example_passes(example: Example) -> None:
    text = build(example.config).reference(example.item)
    if text is not None:
        shown = examples.run(Example(**(vars(example) | {"passes": text})))
        assert shown.passed.passed


def test_the_documentation_has_the_table_as_the_examples_are_now() -> None:
    page = (ROOT / "docs" / "graders.md").read_text("utf-8")
    assert examples.table() in page, "run `python -m verifiers.examples`, put it into the page"


def test_the_module_prints_the_table() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "verifiers.examples"],
        capture_output=True,
        check=True,
        cwd=ROOT,
        text=True,
    )
    assert done.stdout == examples.table()


def test_every_row_of_the_table_has_all_its_cells() -> None:
    rows = examples.table().splitlines()
    assert len(rows) == len(EXAMPLES) + 2
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {8}
