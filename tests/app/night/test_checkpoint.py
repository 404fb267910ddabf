"""The folder of a job: what is read back is what was stored, or an error."""

import math

import numpy as np
import pytest

from app.night.checkpoint import Plan, RunFolder, Trained
from app.night.data import Choice
from storage.errors import Corrupt
from trainers.state import FuraSConfig, State

PLAN = Plan(Choice(("ep_1", "ep_2"), ("ep_3",)), parent=None, fingerprint="f" * 64)


@pytest.fixture
def state():
    fresh = State.fresh(FuraSConfig(), seed=5, size=7)
    fresh.theta = np.random.default_rng(0).standard_normal(7).astype(np.float32)
    fresh.iteration, fresh.best = 3, -math.inf
    return fresh


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs" / "job_1")


def test_a_folder_that_was_never_begun_has_neither_plan_nor_end(folder):
    assert folder.plan() is None
    assert folder.trained() is None


def test_plan_state_and_end_are_read_back_as_stored(folder, state):
    folder.begin(PLAN, {"state": state.pack()})
    end = Trained("plateau", "2026-01-01T00:00:00+00:00")
    folder.save_trained(end)
    assert (folder.plan(), folder.trained()) == (PLAN, end)
    stored = folder.load("state", State.unpack).pack()
    for name, array in state.pack().items():
        assert stored[name].tobytes() == array.tobytes()


def test_a_new_beginning_forgets_the_end_of_the_old_one(folder, state):
    folder.begin(PLAN, {"state": state.pack()})
    folder.save_trained(Trained("flat", "2026-01-01T00:00:00+00:00"))
    folder.begin(PLAN, {"state": state.pack()})
    assert folder.trained() is None
    assert folder.plan() == PLAN


def test_what_a_killed_process_left_half_written_is_removed(folder, state, tmp_path):
    folder.begin(PLAN, {"state": state.pack()})
    path = tmp_path / "runs" / "job_1"
    (path / ".nightowl-tmp-0011223344556677").write_bytes(b"half")
    assert RunFolder(path).plan() == PLAN
    assert sorted(entry.name for entry in path.iterdir()) == ["plan.json", "state.npz"]


@pytest.mark.parametrize("name", ["plan.json", "trained.json", "state.npz"])
@pytest.mark.parametrize("damage", [b"", b"[]", b"\xff", b"{}", b'{"choice":[]}', b"PK\x03\x04"])
def test_a_damaged_file_is_an_error_that_names_it(folder, state, tmp_path, name, damage):
    folder.begin(PLAN, {"state": state.pack()})
    (tmp_path / "runs" / "job_1" / name).write_bytes(damage)
    read = {
        "plan.json": folder.plan,
        "trained.json": folder.trained,
        "state.npz": lambda: folder.load("state", State.unpack),
    }
    with pytest.raises(Corrupt, match=name):
        read[name]()


def test_a_truncated_or_flipped_state_is_an_error(folder, state, tmp_path):
    folder.begin(PLAN, {"state": state.pack()})
    path = tmp_path / "runs" / "job_1" / "state.npz"
    whole = path.read_bytes()
    at = whole.index(state.theta.tobytes())
    for damaged in (whole[:-30], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(Corrupt):
            folder.load("state", State.unpack)
