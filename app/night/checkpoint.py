"""What a job keeps on disk while it is not finished, so that it can be killed at any moment.

`<runs>/<job>/plan.json` names the chosen data; it is written after the arrays that training starts
from (`state.npz`, the trainer's state, or `start.npz`), so a plan never lacks them. `trained.json`
appears when training has ended. Each file is replaced atomically, and together they determine every
later byte of the expert.
"""

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from app.night.data import Choice
from app.night.exchange import Order
from storage import atomic
from storage.errors import Corrupt

Arrays = Mapping[str, npt.NDArray[np.generic]]
Read = TypeVar("Read")


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

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._path

    def begin(self, plan: Plan, start: Mapping[str, Arrays]) -> None:
        """Forgets an earlier beginning and stores this one; `start`: name -> arrays."""
        self.clear()
        self._path.mkdir(mode=0o700, parents=True)
        for name, arrays in start.items():
            self.save(name, arrays)
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

    def save(self, name: str, arrays: Arrays) -> None:
        """Replaces `<name>.npz`."""
        buffer = io.BytesIO()
        stored: dict[str, Any] = dict(arrays)
        np.savez(buffer, allow_pickle=False, **stored)
        atomic.write_bytes(self._path / f"{name}.npz", buffer.getvalue())

    def has(self, name: str) -> bool:
        """Whether there is a `<name>.npz`."""
        return (self._path / f"{name}.npz").exists()

    def load(self, name: str, read: Callable[[Mapping[str, npt.NDArray[Any]]], Read]) -> Read:
        """`<name>.npz` as last saved; `read` raises KeyError or ValueError for other arrays."""
        try:
            stored = io.BytesIO((self._path / f"{name}.npz").read_bytes())
            with np.load(stored, allow_pickle=False) as arrays:
                return read(dict(arrays))
        except FileNotFoundError as error:
            raise Corrupt(f"the job's {name}.npz is missing; start a new job") from error
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise Corrupt(f"the job's {name}.npz is damaged; start a new job") from error

    def save_order(self, order: Order) -> None:
        """Replaces what the trainer's process is to do."""
        atomic.write_json(self._path / "order.json", order.model_dump(mode="json"))

    def order(self) -> Order:
        """What the trainer's process is to do."""
        try:
            return Order.model_validate(self._json("order.json"))
        except ValidationError as error:
            raise Corrupt("the job's order.json is damaged") from error

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
