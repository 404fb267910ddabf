"""What a job keeps on disk while it is not finished, so that it can be killed at any moment.

`<runs>/<job>/plan.json` names the chosen data; it is written after `state.npz`, the trainer's
state, so a plan never lacks its state. `trained.json` appears when training has ended. Each file
is replaced atomically, and together they determine every later byte of the expert.
"""

import io
import json
import shutil
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.night.data import Choice
from storage import atomic
from storage.errors import Corrupt
from trainers.state import State


@dataclass(frozen=True)
class Plan:
    """What a night works on.

    Attributes:
        choice: the episodes of both sides.
        parent: the version training starts from; None is the base.
        fingerprint: hash of everything the episodes, the task and the model turned into.
        trust: what the trust checks found, as JSON; None in a plan from before there were any.
        trivial: where they flagged the task, whether the trivial answer passes each held-out
            prompt, by episode; None elsewhere.
    """

    choice: Choice
    parent: str | None
    fingerprint: str
    trust: dict[str, Any] | None = None
    trivial: dict[str, bool | None] | None = None


@dataclass(frozen=True)
class Trained:
    """That training has ended.

    Attributes:
        reason: why.
        ended_at: when (ISO 8601), which dates the expert.
        discrimination: to how many prompts the candidates of this run (since it last went on) gave
            answers that differ, and differ in score; None from before that was counted.
    """

    reason: str
    ended_at: str
    discrimination: dict[str, Any] | None = None


class RunFolder:
    """The folder of one job. Readers raise Corrupt for a file that is not what was written."""

    def __init__(self, path: Path) -> None:
        """Removes what a killed process left half written there, if there is anything yet."""
        self._path = path
        atomic.remove_leftovers(path)

    def begin(self, plan: Plan, state: State) -> None:
        """Forgets an earlier beginning and stores this one."""
        self.clear()
        self._path.mkdir(mode=0o700, parents=True)
        self.save_state(state)
        atomic.write_json(self._path / "plan.json", asdict(plan))

    def clear(self) -> None:
        """Deletes the folder, the plan first: without it the rest counts for nothing."""
        (self._path / "plan.json").unlink(missing_ok=True)
        if self._path.exists():
            shutil.rmtree(self._path)

    def plan(self) -> Plan | None:
        """The stored plan, or None when the job has not got that far."""
        stored = self._json("plan.json")
        if stored is None:
            return None
        try:
            sides = {side: tuple(ids) for side, ids in stored.pop("choice").items()}
            return Plan(choice=Choice(**sides), **stored)
        except (KeyError, TypeError, AttributeError) as error:
            raise Corrupt("the job's plan.json is damaged") from error

    def save_state(self, state: State) -> None:
        """Replaces the trainer's state."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = dict(state.pack())
        np.savez(buffer, allow_pickle=False, **arrays)
        atomic.write_bytes(self._path / "state.npz", buffer.getvalue())

    def state(self) -> State:
        """The trainer's state as last saved."""
        try:
            stored = io.BytesIO((self._path / "state.npz").read_bytes())
            with np.load(stored, allow_pickle=False) as arrays:
                return State.unpack(arrays)
        except FileNotFoundError as error:
            raise Corrupt("the job's state.npz is missing; start a new job") from error
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise Corrupt("the job's state.npz is damaged; start a new job") from error

    def save_trained(self, trained: Trained) -> None:
        """Notes that training has ended with the state as last saved."""
        atomic.write_json(self._path / "trained.json", asdict(trained))

    def trained(self) -> Trained | None:
        """How training ended, or None while it has not."""
        stored = self._json("trained.json")
        try:
            return None if stored is None else Trained(**stored)
        except TypeError as error:
            raise Corrupt("the job's trained.json is damaged") from error

    def _json(self, name: str) -> dict[str, Any] | None:
        try:
            stored = json.loads((self._path / name).read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise Corrupt(f"the job's {name} is damaged") from error
        if not isinstance(stored, dict):
            raise Corrupt(f"the job's {name} is damaged")
        return stored
