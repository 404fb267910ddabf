"""Which prompts the trainer draws from, and by which fitness."""

import pytest

from app.night.data import Prompt
from app.night.plan import training_config, training_set
from trainers.state import FuraSConfig

WITH = Prompt("ep_1", (1, 2), {}, None, reference=(3, 2))
WITHOUT = Prompt("ep_2", (1, 2), {}, None, reference=None)


def test_where_only_the_likelihood_counts_prompts_need_a_reference():
    assert training_set(FuraSConfig(fitness="likelihood"), (WITH, WITHOUT)) == (WITH,)


@pytest.mark.parametrize("fitness", ["score", "mix", "auto"])
def test_every_other_fitness_uses_all_prompts(fitness):
    assert training_set(FuraSConfig(fitness=fitness), (WITH, WITHOUT)) == (WITH, WITHOUT)


def test_auto_warms_up_on_references_where_there_are_any():
    config = FuraSConfig()
    assert training_config(config, (WITH, WITHOUT)) == config


def test_auto_without_any_reference_is_the_score_and_changes_nothing_else():
    config = FuraSConfig(lr=0.5)
    assert training_config(config, (WITHOUT,)) == FuraSConfig(lr=0.5, fitness="score")
    asked = FuraSConfig(fitness="mix")
    assert training_config(asked, (WITHOUT,)) == asked
