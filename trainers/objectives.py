"""What the gradient trainers minimise, as functions of chunks of the last layer's output.

    imitation        L = -mean_t log pi(y_t | x, y_<t)     over completions y that passed        (1)
    policy gradient  L = -(1 / n K) sum_i A_i sum_t log pi(y_it | x_i, y_i<t)                    (2)
                     A_i = r_i - mean of r over i's group

(2) is REINFORCE with a group's mean as its baseline (GRPO, arXiv 2402.03300) without the division
by the standard deviation and by the completion's own length, which bias it (Dr. GRPO, arXiv
2503.20783, section 3): K is a constant.  One update per batch, so no ratio and no clipping.  x is
the *prompt*: completions are always scored behind it.

Both are sums of weighted log-probabilities, so a ``Batch`` is tokens plus a weight for each
predicted token; only hidden states that predict a token of non-zero weight ever reach the head.

Choices of ours: a truncated completion has no gradient but counts for its group's mean, since its
score is real; one whose verifier errored counts for nothing; completions of advantage zero are
left out.  The optional KL to the base is exact, over the whole vocabulary, at the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np


@dataclass(frozen=True)
class Attempt:
    """A completion with what its verifier said.

    Attributes:
        prompt, completion: token ids; the end token, if it was generated, belongs to the latter.
        score: in [0, 1]; ``None`` if the verifier errored.
        passed: what the verifier reports; False if it errored.
        truncated: the completion was cut off before it ended.
    """

    prompt: Sequence[int]
    completion: Sequence[int]
    score: float | None
    passed: bool = False
    truncated: bool = False


@dataclass(frozen=True)
class Anchor:
    """The base model at the same tokens.

    Attributes:
        hidden: (R, hidden) output of its last layer.
        weight: of one token's KL(pi || base) in the loss.
    """

    hidden: mx.array
    weight: float


@dataclass(frozen=True)
class Batch:
    """Token rows and which of their tokens are trained on.

    Attributes:
        tokens: (B, L) int32, padded on the right.
        rows: (R,) int32, positions in the flattened (B * L) that predict a trained token.
        targets: (R,) int32, the tokens they should predict.
        weights: (R,) fp32, of their negative log-probabilities in the loss.
        share: weight of a token of advantage one.
        anchor: adds the KL to the base.
    """

    tokens: mx.array
    rows: mx.array
    targets: mx.array
    weights: mx.array
    share: float
    anchor: Anchor | None = None

    def loss(self, head: Callable[[mx.array], mx.array], hidden: mx.array, part: slice) -> mx.array:
        """The part of the loss, scalar fp32, that ``rows[part]`` add.

        ``hidden``: (n, hidden) output of the last layer there; ``head`` gives logits of it.
        """
        logits = head(hidden).astype(mx.float32)
        total = mx.logsumexp(logits, axis=-1, keepdims=True)
        # Only the chosen ones are normalised: log-probabilities of all would be one more copy.
        chosen = mx.take_along_axis(logits, self.targets[part][:, None], axis=-1) - total
        loss = -(self.weights[part] * chosen[:, 0]).sum()
        if self.anchor is None:
            return loss
        own, base = logits - total, head(self.anchor.hidden[part]).astype(mx.float32)
        base = base - mx.logsumexp(base, axis=-1, keepdims=True)
        return loss + self.anchor.weight * (mx.exp(own) * (own - base)).sum()


def anchored(batch: Batch, base_hidden: mx.array, coefficient: float) -> Batch:
    """``batch`` with ``coefficient`` times the KL to the base per token.

    ``base_hidden``: (R, hidden) output of the base's last layer at the batch's rows.
    """
    return replace(batch, anchor=Anchor(base_hidden, coefficient * batch.share))


def imitation(attempts: Sequence[Attempt], max_tokens: int) -> Batch | None:
    """Equation (1) over the attempts that passed, each cut to ``max_tokens`` tokens.

    ``None``, a batch to skip, where no token of a completion is left: none passed, or all lie
    behind the cut.  Raises ``ValueError`` for an empty prompt.
    """
    cut = [_cut(a, max_tokens) for a in attempts if a.passed and a.score is not None]
    kept = [(a, 1.0) for a in cut if a.completion]
    count = sum(len(a.completion) for a, _ in kept)
    return _batch(kept, 1 / count) if kept else None


def policy_gradient(
    groups: Sequence[Sequence[Attempt]], length: int, max_tokens: int
) -> Batch | None:
    """Equation (2) with K = ``length``; each group holds attempts at one prompt.

    ``None``, a batch to skip, where no attempt has a gradient.  Attempts that do not fit into
    ``max_tokens`` count as truncated.  Raises ``ValueError`` for an empty prompt.
    """
    weighted: list[tuple[Attempt, float]] = []
    count = 0
    for group in groups:
        graded = [(a, a.score) for a in group if a.score is not None]
        count += len(graded)
        mean = sum(score for _, score in graded) / max(len(graded), 1)
        weighted += [(a, score - mean) for a, score in graded if _complete(a, max_tokens)]
    kept = [(a, advantage) for a, advantage in weighted if advantage and a.completion]
    return _batch(kept, 1 / (count * length)) if kept else None


def _complete(attempt: Attempt, max_tokens: int) -> bool:
    fits = len(attempt.prompt) + len(attempt.completion) <= max_tokens
    return fits and not attempt.truncated


def _cut(attempt: Attempt, max_tokens: int) -> Attempt:
    left = max(0, max_tokens - len(attempt.prompt))
    return replace(attempt, completion=attempt.completion[:left])


def _batch(weighted: Sequence[tuple[Attempt, float]], share: float) -> Batch:
    """Rows of prompt and completion; every token of a completion weighs the same."""
    if not all(a.prompt for a, _ in weighted):
        raise ValueError("a completion needs a prompt of at least one token before it")
    # The last token predicts nothing that is trained on.
    width = max(len(a.prompt) + len(a.completion) for a, _ in weighted) - 1
    tokens = np.zeros((len(weighted), width), dtype=np.int32)
    rows: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    for index, (attempt, advantage) in enumerate(weighted):
        sequence = [*attempt.prompt, *attempt.completion]
        tokens[index, : len(sequence) - 1] = sequence[:-1]
        first = index * width + len(attempt.prompt) - 1
        rows += range(first, first + len(attempt.completion))
        targets += attempt.completion
        weights += [advantage * share] * len(attempt.completion)
    return Batch(
        mx.array(tokens),
        mx.array(np.array(rows, dtype=np.int32)),
        mx.array(np.array(targets, dtype=np.int32)),
        mx.array(np.array(weights, dtype=np.float32)),
        share,
    )
