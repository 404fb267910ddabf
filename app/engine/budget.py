"""Dividing the memory budget: what the engine may hold at once, beside the model itself.

The model comes first.  Of the rest, keys and values of users' rows, of earlier prompts and of
rollouts, the trunk's hidden states and MLX's free buffers get a share each; what is left is for
activations and for the rest of the process.  Shares are bounds, taken only when needed; the
configuration's own sizes are never exceeded.
"""

from __future__ import annotations

from dataclasses import replace

from app.engine import platform
from app.engine.config import EngineConfig

ROWS, PREFIXES, ROLLOUTS, TRUNK, BUFFERS = 0.28, 0.08, 0.46, 0.02, 0.05


def divided(config: EngineConfig, model_bytes: int, token_bytes: int, lanes: int) -> EngineConfig:
    """The configuration with its sizes lowered to the budget's shares.

    Args:
        config: sizes that are wanted.
        model_bytes: what the model, its basis and the slots of experts take.
        token_bytes: keys and values of one token.
        lanes: batches side by side.
    """
    rest = max(0, budget_of(config) - model_bytes)
    limits = replace(
        config.limits,
        batch_tokens=min(
            config.limits.batch_tokens, max(1, int(ROLLOUTS * rest) // (lanes * token_bytes))
        ),
        trunk_bytes=min(config.limits.trunk_bytes, int(TRUNK * rest)),
    )
    return replace(
        config,
        batch_bytes=min(config.batch_bytes, int(ROWS * rest)),
        prefix_bytes=min(config.prefix_bytes, int(PREFIXES * rest)),
        limits=limits,
    )


def buffer_bytes(config: EngineConfig, model_bytes: int) -> int:
    """What MLX may keep of buffers that are free."""
    return int(BUFFERS * max(0, budget_of(config) - model_bytes))


def budget_of(config: EngineConfig) -> int:
    """Bytes the engine may use: half of the machine unless it is told."""
    if config.memory_bytes is not None:
        return config.memory_bytes
    return platform.total_memory_bytes() // 2
