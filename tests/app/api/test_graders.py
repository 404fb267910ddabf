"""Graders over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import verifiers
from app.client import Client, ServiceError
from tests.app.serving import GRADER, episode, fresh


def test_every_type_is_listed_with_its_schema(client: Client) -> None:
    listed = {grader.id: grader.config_schema for grader in client.graders()}
    assert listed == verifiers.schemas()


def test_every_type_is_described_with_an_example_that_does_what_it_says(client: Client) -> None:
    for grader in client.graders():
        example = grader.example
        assert example.grader["type"] == grader.id
        assert grader.description.endswith(".")
        client.validate_grader(example.grader)
        told = {"passed": example.passes, "failed": example.fails}
        for status, text in told.items():
            assert client.run_grader(example.grader, example.item, text).status == status


def test_validation_fills_in_defaults(client: Client) -> None:
    valid = client.validate_grader({"type": "string_check"})
    assert valid.grader["operation"]
    assert valid.grader_hash == verifiers.grader_hash({"type": "string_check"})


@pytest.mark.parametrize(
    ("grader", "param"),
    [
        ({"type": "nothing"}, "grader.type"),
        ({"type": "string_check", "colour": 1}, "grader.colour"),
        (
            {"type": "multi", "graders": {"a": {"type": "string_check", "operation": 1}}},
            "grader.graders.a.operation",
        ),
        (
            {"type": "instruction", "constraints": {"short": {"kind": "length"}}},
            "grader.constraints.short.unit",
        ),
    ],
)
def test_a_mistake_is_named(client: Client, grader: dict[str, object], param: str) -> None:
    for ask in (
        lambda: client.validate_grader(grader),
        lambda: client.run_grader(grader, {}, "x"),
    ):
        with pytest.raises(ServiceError) as raised:
            ask()
        assert (raised.value.status, raised.value.param) == (400, param)


def test_running_a_grader_tells_right_wrong_and_broken_apart(client: Client) -> None:
    right = client.run_grader(GRADER, {"answer": "yes"}, "yes")
    wrong = client.run_grader(GRADER, {"answer": "yes"}, "no")
    broken = client.run_grader(GRADER, {}, "yes")
    assert (right.status, right.passed, right.score) == ("passed", True, 1.0)
    assert (wrong.status, wrong.passed, wrong.score) == ("failed", False, 0.0)
    assert (broken.status, broken.passed, broken.score) == ("errored", False, None)
    assert broken.error_kind == "item"


def test_a_bomb_is_a_timeout_and_nobody_waits_for_it(client: Client) -> None:
    bomb = {
        "type": "python",
        "source": "def grade(sample, item):\n    while True: pass",
        "timeout_s": 1.5,
    }
    with ThreadPoolExecutor(3) as threads:
        burning = [threads.submit(client.run_grader, bomb, {"n": n}, "x") for n in range(3)]
        assert client.run_grader(GRADER, {"answer": "yes"}, "yes").passed
        grades = [one.result() for one in burning]
    assert {(grade.status, grade.error_kind) for grade in grades} == {("errored", "timeout")}
    assert client.health().status == "ok"


def test_an_episode_whose_grade_overruns_is_stored_as_errored(client: Client) -> None:
    source = "def grade(sample, item):\n    while item['n']: pass\n    return 1"
    grader = {"type": "python", "source": source, "timeout_s": 0.5}
    task = client.create_task(fresh(), grader).name
    drafts = [episode(task, n, item={"n": n % 2}) for n in range(4)]
    graded = [stored.grade for stored in client.add_episodes(drafts)]
    assert [grade.status for grade in graded if grade is not None] == ["passed", "errored"] * 2
    assert {grade.error_kind for grade in graded if grade is not None} == {None, "timeout"}
