"""The benchmark of populations on a tiny model: what it computes, not how fast it is."""

from pathlib import Path

import pytest

from app.engine import models
from app.engine.scheduler import Engine
from benchmarks import population, stock
from benchmarks.measure import rounds

SIZE = population.Size(population=4, prompts=3, new_tokens=3, alone=1, rounds=1)
SLICES = {
    "mlx-lm, 4-bit": stock.Costs(1.0, 1.0),
    "mlx-lm as installed": stock.Costs(2.0, 2.0),
}


@pytest.fixture(scope="module")
def sides(engine: Engine, model: Path) -> population.Sides:
    return population.Sides(engine, model, SIZE)


def test_every_number_that_was_promised_is_there(
    sides: population.Sides, capsys: pytest.CaptureFixture[str]
) -> None:
    sides.warm_up()
    result = population.result_of(rounds(sides.works(), 1), SLICES, sides)
    promised = (
        "ratio_vs_one_at_a_time",
        "decode_ratio_vs_one_at_a_time",
        "ratio_vs_mlx_lm",
        "ratio_vs_stock",
        "share_of_base",
    )
    assert all(result[name] == round(result["spread"][name].median, 4) for name in promised)
    population.show(result)
    assert "candidate-tokens/s" in capsys.readouterr().out


def test_the_base_answers_as_mlx_lm_does(sides: population.Sides) -> None:
    works = sides.works()
    for name in ("base batch", "mlx-lm", "mlx-lm, prefix cached"):
        works[name]()
    assert sides.answers["nightowl"] == sides.answers["mlx-lm"]
    assert sides.answers["nightowl"] == sides.answers["mlx-lm, prefix cached"]


def test_ratios_come_from_times_per_candidate(sides: population.Sides) -> None:
    taken = {name: [10.0] for name in sides.works()}
    taken |= {name: [2.0] for name in taken if name.endswith(", one token")}
    sides.answers = {"nightowl": [[1], [2]], "mlx-lm": [[1], [3]]}
    result = population.result_of(taken, SLICES, sides)
    assert result["ratio_vs_one_at_a_time"] == result["ratio_vs_mlx_lm"] == 4
    assert result["decode_ratio_vs_one_at_a_time"] == 4
    assert result["share_of_base"] == result["share_of_base_decode"] == 1
    assert result["same_answers_as_mlx_lm"] == 0.5


def test_a_slice_is_scaled_to_the_whole_rollout(model: Path) -> None:
    assert stock.Costs(2.0, 3.0).rollout_s([[1, 2], [3]], 4) == 2 * 3 + 3 * 4 * 2
    loaded = models.load(model)
    costs = stock.costs(loaded.module, loaded.tokenizer, [list(range(20))])
    assert isinstance(costs.prefill_s, float) and isinstance(costs.decode_s, float)
