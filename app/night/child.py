"""The process of a gradient trainer: loads the base model, trains, reports (`app.night.process`).

The state is stored after every iteration, before the iteration is reported. So the process can be
killed at any moment, and the next one goes on bit for bit.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.engine.models import ModelError
from app.engine.trainable import Trainable, load_trainable, params_of, tensors_of
from app.night import configs
from app.night.checkpoint import RunFolder
from app.night.configs import GradientConfig, LcsbSettings
from app.night.exchange import Made, Order, checked
from storage.atomic import FolderLock
from storage.errors import StorageError
from trainers import absignsgd, lcsb
from trainers.backprop import never
from trainers.decoder import Params
from trainers.fura_s import draw_prompts
from trainers.gradient_run import NextBatch, Progress, Run
from trainers.objectives import Attempt, imitation

Say = Callable[[dict[str, Any]], None]

_NICENESS = 10  # users of the service go first


class _Refused(Exception):
    """The order cannot be carried out; the message is fit for a user."""


def main() -> None:
    """Carries out the order in the folder named on the command line."""
    folder = Path(sys.argv[1])
    say = _channel()
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    os.nice(_NICENESS)
    try:
        with FolderLock(folder):
            reason = _train(RunFolder(folder), say)
    except (StorageError, ModelError, _Refused) as error:
        say({"failed": {"type": type(error).__name__, "message": str(error)}})
    else:
        say({"ended": reason})


def _channel() -> Say:
    """Lines to the service; whatever else is printed goes to standard error, its log."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        lines.write(json.dumps(message, allow_nan=False) + "\n")
        lines.flush()

    return say


def _end_with_the_service() -> None:
    """Ends this process at once when nobody holds the other end of its standard input."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _train(folder: RunFolder, say: Say) -> str:
    """Trains from the stored state, else from the start, to a natural end; why it ended."""
    order = folder.order()
    config = configs.parse(order.trainer, order.config)
    if not isinstance(config, GradientConfig):
        raise _Refused(f"trainer {order.trainer!r} is not one of gradients")
    base = load_trainable(order.model, order.memory_bytes)
    if (base.base_hash, base.basis_hash) != (order.base_hash, order.basis_hash):
        raise _Refused("the base model's files have changed since the service loaded them")

    def on_iteration(state: lcsb.State | absignsgd.State, progress: Progress) -> None:
        folder.save("state", state.pack())
        say({"progress": asdict(progress)})

    start = params_of(folder.load("start", checked))
    reason, run = _descended(folder, config, order, base, start, on_iteration)
    numbers = {
        "iterations": run.iteration,
        "seconds": round(run.elapsed_s, 3),
        "skipped": run.skipped,
        "non_finite": run.non_finite,
    }
    folder.save("made", Made(tensors_of(run.params), numbers).pack())
    return reason


def _descended(
    folder: RunFolder,
    config: GradientConfig,
    order: Order,
    base: Trainable,
    start: Params,
    on_iteration: Callable[[Any, Progress], None],
) -> tuple[str, Run]:
    """Why the trainer ended, and its state then."""
    batches, begun = _batches(config, order), folder.has("state")
    if isinstance(config, LcsbSettings):
        averaged = (
            folder.load("state", lcsb.State.unpack)
            if begun
            else lcsb.State.fresh(start, order.seed)
        )
        ended = lcsb.train(config, averaged, base.decoder, batches, on_iteration, never)
        return ended, averaged
    signed = (
        folder.load("state", absignsgd.State.unpack)
        if begun
        else absignsgd.State.fresh(config, start, order.seed)
    )
    ended = absignsgd.train(config, signed, base.decoder, batches, on_iteration, never)
    return ended, signed


def _batches(config: GradientConfig, order: Order) -> NextBatch:
    """Batches of right answers: a pure function of seed and iteration, all in turn."""
    attempts = [Attempt(e.prompt, e.completion, 1.0, passed=True) for e in order.examples]

    def next_batch(iteration: int, _: Params) -> Any:
        drawn = draw_prompts(order.seed, iteration, config.batch, len(attempts))
        return imitation([attempts[index] for index in drawn], config.max_sequence)

    return next_batch
