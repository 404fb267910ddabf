"""One worker of ``test_vote_ring``: trains the tiny model of a folder and says what came out."""

import hashlib
import json
import sys
from pathlib import Path

from app.engine import models  # noqa: F401  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np

from tests.trainers import gradients
from trainers import absignsgd, lora
from trainers.absignsgd import ABSignSGDConfig, State
from trainers.objectives import Attempt, Batch, imitation


def main(folder: Path) -> None:
    """Four iterations on data of this rank's own."""
    group = mx.distributed.init(strict=True, backend="ring")
    sent: list[int] = []

    def all_sum(values: mx.array) -> mx.array:
        sent.append(values.nbytes)
        return mx.distributed.all_sum(values, group=group)

    def next_batch(iteration: int, _: object) -> Batch | None:
        rng = np.random.default_rng(10 * iteration + group.rank())
        prompt, completion = (rng.integers(3, 300, 4).tolist() for _ in range(2))
        return imitation([Attempt(prompt, completion, 1.0, True)], 64)

    module = gradients.module_of(folder, quantised=True)
    model = gradients.decoder_of(module, lora.LoraEdit(1.5), dense=True)
    config = ABSignSGDConfig(iterations=4)
    state = State.fresh(config, lora.initial(gradients.LORA, model.matrices, 3), 3)
    absignsgd.train(config, state, model, next_batch, lambda *_: None, lambda: None, all_sum)
    digest = hashlib.sha256(b"".join(gradients.as_bytes(state.params).values())).hexdigest()
    coordinates = [
        sum(v.size for n, v in state.params.items() if n.startswith(f"layers.{i}."))
        for i in range(2)
    ]
    said = {"digest": digest, "loss": state.loss, "sent": sent, "coordinates": coordinates}
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
