"""The embedded model: stock mlx-lm's greedy output, and the memory that a population takes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from app.engine.scheduler import Engine  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import dequantize_model

from app.engine.sampling import Sampling
from tests import tiny
from tests.app.engine import rigs

pytestmark = pytest.mark.real_model
ROOT = Path(__file__).parents[3]
COUNT, TOKENS = 20, 6
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about owls.",
    "Count from one to five.",
    "Translate 'good night' into Spanish.",
)
THINGS = ("a lamp", "the sea", "winter", "bread", "a small garden")


def no_expert(name: str) -> dict[str, rigs.FloatArray]:
    raise FileNotFoundError(name)


def stock_greedy(module: Any, prompt: Sequence[int], eos: Collection[int]) -> list[int]:
    """What mlx-lm's own generation says."""
    tokens = []
    for token, _ in generate_step(mx.array(prompt), module, max_tokens=TOKENS):
        tokens.append(int(token))
        if tokens[-1] in eos:
            break
    return tokens


def test_twenty_prompts_are_answered_as_by_stock_mlx_lm() -> None:
    """All in fp32. Different tokens are allowed only where the two best logits are a tie.

    mlx-lm's own dequantised form stands in for its four-bit one, whose kernels take two minutes
    on a CPU; that one answers the first prompt.
    """
    folder = tiny.real_model()
    engine = Engine(folder, no_expert)
    engine.start()
    try:
        texts = [*QUESTIONS, *(f"{q[:-1]} and {thing}." for thing in THINGS for q in QUESTIONS)]
        prompts = [engine.encode([{"role": "user", "content": t}]) for t in texts[:COUNT]]
        streams = [engine.submit(p, Sampling(max_tokens=TOKENS)) for p in prompts]
        ours = [stream.result() for stream in streams]
        eos = engine._worker._runtime.eos
    finally:
        engine.close()
    assert "Paris" in ours[0].text
    assert len({completion.tokens for completion in ours}) > 5
    module = rigs.stock_of(folder)
    assert list(ours[0].tokens) == stock_greedy(module, prompts[0], eos)
    module = dequantize_model(module)
    same = 0
    for prompt, completion in zip(prompts, ours, strict=True):
        expected = stock_greedy(module, prompt, eos)
        same += list(completion.tokens) == expected
        rigs.assert_same_tokens(
            completion.tokens, expected, lambda t: rigs.logits_of(module, t), prompt
        )
    assert same >= COUNT - 1


# Prints the process's largest resident size in KiB.
MEASURED = """
import sys
from pathlib import Path
from app.engine.scheduler import Engine
import numpy as np
from app import home
from app.engine.sampling import Sampling
kind, folder = sys.argv[1], Path(sys.argv[2])
engine = Engine(folder, lambda name: {})
engine.start()
CANDIDATES = 8
SENTENCES = ("turn on the desk lamp", "it is cold", "open the gate", "lights off in the attic")
prompts = [engine.encode(home.messages(sentence)) for sentence in SENTENCES]
greedy = Sampling(max_tokens=4)
if kind == "plain":
    engine.generate(None, prompts * CANDIDATES, greedy)
else:
    rng = np.random.default_rng(0)
    flat = rng.normal(0, 0.04, (CANDIDATES, engine.coordinates.total)).astype(np.float32)
    references = [engine.encode_text("on(area=attic)", end=True) for _ in SENTENCES]
    assert np.isfinite(engine.likelihood(flat, prompts, references, flat.mean(axis=0))).all()
    lines = engine.generate(flat, prompts, greedy)
    assert all(completion.error is None for line in lines for completion in line)
engine.close()
status = dict(line.split(":") for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_population_takes_at_most_1_3_times_the_memory_of_plain_batched_inference() -> None:
    peaks = []
    for kind in ("plain", "population"):
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, kind, str(tiny.real_model())],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    plain, population = peaks
    assert population <= 1.3 * plain
