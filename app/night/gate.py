"""The gate of a night: which prompts are held out, and whether a candidate is really better.

Pure functions. The side of a group depends on nothing but its name and the salt, so an expert is
never tested on a prompt that an earlier night trained on. The test is McNemar's in its exact form:
the two-sided sign test on the prompts where candidate and active disagree (McNemar 1947; Agresti,
Categorical Data Analysis, on matched pairs). It takes prompts as independent. Prompts of one group
are alike, so a held-out side of very few groups says less than its p-value.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

_HASH_RANGE = 2**64


@dataclass(frozen=True)
class Split:
    """Rows (indices into the input of `split`) and groups of the two sides of a night.

    `heldout` names one row per distinct prompt, the newest. `training` keeps repeated prompts, as
    each row is an episode. `conflicting` rows hold a prompt that falls on both sides; neither side
    uses them. Prompts without a group are in no list of groups.
    """

    training: tuple[int, ...]
    heldout: tuple[int, ...]
    conflicting: tuple[int, ...]
    training_groups: tuple[str, ...]
    heldout_groups: tuple[str, ...]
    minimum: int

    @property
    def problem(self) -> str | None:
        """Why no night can be run on this split, as a sentence; None when it can."""
        if not self.training:
            return "There is no episode to train on outside the held-out prompts."
        if len(self.heldout) < self.minimum:
            return (
                f"There are too few held-out prompts to judge an expert: {len(self.heldout)},"
                f" at least {self.minimum} are needed."
            )
        return None


@dataclass(frozen=True)
class GateResult:
    """The verdict on a candidate. Counts are pairs: one held-out prompt answered by both experts.

    `n` pairs were judged; `errored` more had no grade on one side or both and count for neither.
    `trivial_passed` is how many of the `n` prompts a trivial answer passes, None if none was asked.
    """

    publish: bool
    reason: str
    n: int
    candidate_passed: int
    active_passed: int
    candidate_only: int
    active_only: int
    errored: int
    p_value: float
    trivial_passed: int | None = None


def is_held_out(kind: str, name: str, fraction: float, salt: str) -> bool:
    """Whether a group (kind "group") or a prompt without one (kind "prompt") is held out.

    Raising `fraction` only ever adds to the held-out side.
    """
    # The NULs keep ("ab", "c") and ("a", "bc") apart; the kind keeps a group that is named like
    # a prompt's key apart from that prompt.
    digest = hashlib.sha256(f"{salt}\0{kind}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * _HASH_RANGE


def split(
    groups: Sequence[str | None],
    prompts: Sequence[str],
    *,
    fraction: float,
    minimum: int,
    salt: str,
) -> Split:
    """Splits rows, oldest first, by the hash of their group, else of their prompt.

    `groups[i]` is row i's group or None, `prompts[i]` the hash of its prompt's content. The
    minimum of held-out prompts never moves a group: too few is reported by `Split.problem`.
    Raises ValueError for sequences of different length or a fraction outside (0, 1).
    """
    if len(groups) != len(prompts):
        raise ValueError(f"{len(groups)} groups do not match {len(prompts)} prompts")
    if not 0 < fraction < 1:
        raise ValueError(f"the held-out fraction must be between 0 and 1, not {fraction}")
    sides = [
        is_held_out("prompt", prompt, fraction, salt)
        if group is None
        else is_held_out("group", group, fraction, salt)
        for group, prompt in zip(groups, prompts, strict=True)
    ]
    sides_of_prompt: dict[str, set[bool]] = {}
    newest: dict[str, int] = {}
    for row, (prompt, side) in enumerate(zip(prompts, sides, strict=True)):
        sides_of_prompt.setdefault(prompt, set()).add(side)
        newest[prompt] = row

    # A prompt on both sides is used on neither: whichever side it was on in an earlier night, no
    # expert is then tested on what it, or the version it started from, has trained on.
    clean = [len(sides_of_prompt[prompt]) == 1 for prompt in prompts]
    named = [(group, side) for group, side in zip(groups, sides, strict=True) if group is not None]
    return Split(
        training=tuple(row for row, side in enumerate(sides) if clean[row] and not side),
        heldout=tuple(
            row
            for row, side in enumerate(sides)
            if clean[row] and side and newest[prompts[row]] == row
        ),
        conflicting=tuple(row for row in range(len(prompts)) if not clean[row]),
        training_groups=tuple(sorted({group for group, side in named if not side})),
        heldout_groups=tuple(sorted({group for group, side in named if side})),
        minimum=minimum,
    )


def mcnemar(candidate_only: int, active_only: int) -> float:
    """Two-sided p of the exact McNemar test, the sign test on the pairs that disagree.

    Under the null hypothesis each of the n = candidate_only + active_only pairs falls either way
    with probability 1/2. p = 1 without such pairs. Raises ValueError for a negative count.
    """
    if candidate_only < 0 or active_only < 0:
        raise ValueError(f"counts must not be negative: {candidate_only}, {active_only}")
    n = candidate_only + active_only
    tail = sum(math.comb(n, k) for k in range(min(candidate_only, active_only) + 1))
    # Integers until the last division. The two tails overlap when the counts are equal.
    return min(1.0, 2 * tail / (1 << n))


def decide(
    candidate: Sequence[bool | None],
    active: Sequence[bool | None],
    *,
    minimum: int,
    alpha: float = 0.05,
    max_errored_fraction: float = 0.1,
    trivial: Sequence[bool | None] | None = None,
) -> GateResult:
    """Judges a candidate against what is active now, prompt by prompt; None is an errored grade.

    Publishes only if at least `minimum` pairs were judged, at most `max_errored_fraction` of all
    pairs errored, the candidate passes more of them, and p < alpha. `trivial` are the grades of an
    answer that anybody could give; the candidate must then pass more than that, too. Raises
    ValueError for sequences of different length, an alpha outside (0, 1) or an error fraction
    outside [0, 1].
    """
    if len(candidate) != len(active):
        raise ValueError(f"{len(candidate)} candidate grades do not pair with {len(active)}")
    if trivial is not None and len(trivial) != len(candidate):
        raise ValueError(f"{len(candidate)} candidate grades do not pair with {len(trivial)}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
    if not 0 <= max_errored_fraction <= 1:
        raise ValueError(f"the error fraction must be within 0 and 1, not {max_errored_fraction}")
    judged = [
        row for row, both in enumerate(zip(candidate, active, strict=True)) if None not in both
    ]
    pairs = [(bool(candidate[row]), bool(active[row])) for row in judged]
    n, total = len(pairs), len(candidate)
    gained = sum(new and not old for new, old in pairs)
    lost = sum(old and not new for new, old in pairs)
    p_value = mcnemar(gained, lost)
    candidate_passed = sum(new for new, _ in pairs)
    active_passed = sum(old for _, old in pairs)
    trivial_passed = None if trivial is None else sum(bool(trivial[row]) for row in judged)

    objection = None
    if total - n > max_errored_fraction * total:
        objection = (
            f"{total - n} of {total} held-out pairs could not be graded,"
            f" more than the {max_errored_fraction:.0%} allowed"
        )
    elif n < minimum:
        objection = f"{n} held-out prompts were judged, at least {minimum} are needed"
    elif gained <= lost:
        objection = "the candidate is not better"
    elif p_value >= alpha:
        objection = f"the candidate is not better beyond chance at p < {alpha:g}"
    elif trivial_passed is not None and candidate_passed <= trivial_passed:
        objection = (
            f"the candidate is not better than a trivial answer, which passes {trivial_passed}"
        )

    verdict = f"Published: the candidate is better at p < {alpha:g}"
    if objection is not None:
        verdict = f"Rejected: {objection}"
    return GateResult(
        publish=objection is None,
        reason=(
            f"{verdict}. It passes {candidate_passed} of {n} held-out prompts, the active one"
            f" {active_passed}: {gained} gained, {lost} lost, {total - n} errored,"
            f" p = {p_value:.2g}."
        ),
        n=n,
        candidate_passed=candidate_passed,
        active_passed=active_passed,
        candidate_only=gained,
        active_only=lost,
        errored=total - n,
        p_value=p_value,
        trivial_passed=trivial_passed,
    )
