"""What the service and a gradient trainer's process tell each other: files of the job's folder.

The service writes `order.json`, what is to be done, and `start.npz`, the coordinates to start from;
the process keeps `state.npz`, goes on from it, and writes `made.npz` when training has ended.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from app.night.configs import TrainerName

Tensors = dict[str, npt.NDArray[np.float32]]


class Example(BaseModel):
    """Tokens of a prompt, and of a right answer to it with its end."""

    model_config = ConfigDict(frozen=True)

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


class Order(BaseModel):
    """A training run.

    Attributes:
        trainer, config, seed: how.
        model: folder of the base model; the hashes are of what the service loaded from it.
        memory_bytes: what the service may use.
        examples: what is imitated.
    """

    model_config = ConfigDict(frozen=True)

    trainer: TrainerName
    config: dict[str, Any]
    seed: int
    model: Path
    base_hash: str
    basis_hash: str
    memory_bytes: int
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Made:
    """A trained expert: matrix name -> (in_features,) fp32, and how training went."""

    tensors: Tensors
    numbers: dict[str, Any]

    def pack(self) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays to store; `unpack` is the exact inverse."""
        numbers = np.frombuffer(json.dumps(self.numbers).encode(), dtype=np.uint8)
        return {"numbers": numbers, **self.tensors}

    @classmethod
    def unpack(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "Made":
        """Reads `pack`'s arrays. Raises KeyError or ValueError if they are damaged."""
        numbers = json.loads(arrays["numbers"].tobytes())
        tensors = {name: part for name, part in arrays.items() if name != "numbers"}
        return cls(checked(tensors), dict(numbers))


def checked(arrays: Mapping[str, npt.NDArray[Any]]) -> Tensors:
    """The arrays, if all are fp32 vectors. Raises ValueError."""
    for name, part in arrays.items():
        if part.dtype != np.float32 or part.ndim != 1:
            raise ValueError(f"{name} is no fp32 vector")
    return dict(arrays)
