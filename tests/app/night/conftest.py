"""The tiny model and its engine, once for all tests of the night."""

import pytest

from tests import tiny
from tests.app.night import nights


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return tiny.build(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def engine(model):
    with nights.engine_of(model) as engine:
        yield engine


@pytest.fixture
def house(tmp_path, engine):
    with nights.house_in(tmp_path / "data", engine) as house:
        yield house
