"""Which trainer a job has, and where its settings come from."""

import pytest
from pydantic import ValidationError

from app.night import configs
from trainers.absignsgd import ABSignSGDConfig
from trainers.lcsb import LcsbConfig
from trainers.state import FuraSConfig


def test_settings_without_a_name_are_those_of_fura_s():
    assert configs.parse_named({"lr": 0.5}) == FuraSConfig(lr=0.5)


@pytest.mark.parametrize(("name", "kind"), [("lcsb", LcsbConfig), ("absignsgd", ABSignSGDConfig)])
def test_gradient_trainers_have_their_own_settings_and_those_of_imitation(name, kind):
    config = configs.parse_named({"trainer": name, "lr": 0.01, "batch": 2})
    assert isinstance(config, kind)
    assert (config.lr, config.batch) == (0.01, 2)
    assert type(config).model_fields.keys() == kind.model_fields.keys() | {
        "batch",
        "max_tokens",
        "max_sequence",
    }


def test_a_job_overrides_its_tasks_settings_of_the_same_trainer():
    task = {"trainer": "lcsb", "lr": 0.01, "r": 0.3}
    for named in ({}, {"trainer": "lcsb"}):
        trainer, config = configs.merged(task, named | {"lr": 0.02})
        assert (trainer, config["lr"], config["r"]) == ("lcsb", 0.02, 0.3)


def test_a_job_with_another_trainer_starts_from_that_trainers_defaults():
    trainer, config = configs.merged({"sigma": 0.1, "lr": 0.5}, {"trainer": "lcsb", "r": 0.3})
    assert trainer == "lcsb"
    assert config == configs.LcsbSettings(r=0.3).model_dump(mode="json")
    trainer, config = configs.merged({"trainer": "lcsb", "lr": 0.5}, {"trainer": "fura_s"})
    assert (trainer, config) == ("fura_s", FuraSConfig().model_dump(mode="json"))


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"trainer": "sgd"}, "trainer"),
        ({"trainer": ["lcsb"]}, "trainer"),
        ({"trainer": "lcsb", "sigma": 0.1}, "sigma"),
        ({"trainer": "lcsb", "batch": 0}, "batch"),
        ({"trainer": "absignsgd", "r": 0.5}, "r"),
        ({"batch": 4}, "batch"),
    ],
)
def test_a_setting_that_is_not_the_trainers_is_named(config, field):
    with pytest.raises(ValidationError) as caught:
        configs.merged({}, config)
    assert caught.value.errors()[0]["loc"] == (field,)
