"""Rounds, medians, tables."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import measure


def test_every_other_round_runs_backwards() -> None:
    ran: list[str] = []
    works = {name: lambda name=name: ran.append(name) for name in "abc"}
    taken = measure.rounds(works, 3)
    assert "".join(ran) == "abccbaabc"
    assert {name: len(times) for name, times in taken.items()} == {"a": 3, "b": 3, "c": 3}


def test_more_rounds_are_run_while_they_fit() -> None:
    assert len(measure.rounds({"nothing": lambda: None}, 1, budget_s=0.01)["nothing"]) > 1


def test_a_ratio_is_of_values_of_the_same_round() -> None:
    assert measure.ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == measure.Spread(3.0, 2.0, 4.0)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([0.5, 0.95, 1.0]))
def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed(
    values: list[float], share: float
) -> None:
    found = measure.percentile(values, share)
    enough = [v for v in values if sum(w <= v for w in values) >= share * len(values) - 1e-9]
    assert found == min(enough)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0"), (1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.01234, "0.0123")],
)
def test_three_digits_are_shown(value: float, text: str) -> None:
    assert measure.short(value) == text


def test_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    measure.table(("", "n"), [("long name", 1), ("b", None)])
    assert capsys.readouterr().out.splitlines() == ["           n", "long name  1", "b           "]


def test_spreads_are_objects_in_the_json(tmp_path: Path) -> None:
    target = tmp_path / "new" / "result.json"
    measure.write(target, {"speed": measure.spread([1.0, 3.0])})
    written = json.loads(target.read_text())
    assert written["speed"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert written["machine"]["cores"] >= 1
