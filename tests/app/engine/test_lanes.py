"""Rows that join, leave, fail and reuse prefixes, each against its own explicitly edited model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from app.engine.lanes import Lane, Row  # isort: skip
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from app.engine.batch import Batch, Runtime
from app.engine.layers import Edits
from app.engine.prefixes import PrefixCache
from app.engine.sampling import Sampling
from app.engine.text import RowText
from tests.app.engine import rigs
from trainers.spectral import Basis

Runtimes = Callable[[str], tuple[Runtime, Basis]]
EXPERTS = ("base", "one", "two", "broken")


class User:
    """A row and what it was told."""

    def __init__(
        self, runtime: Runtime, prompt: rigs.Tokens, expert: str = "base", **sampling: Any
    ) -> None:
        self.prompt = prompt
        self.sampling = Sampling(**{"max_tokens": 6} | sampling)
        self.slot = EXPERTS.index(expert)
        self.expert = expert if self.slot else None
        decode = runtime.model.tokenizer.decode
        self.text = RowText(
            lambda ids: str(decode(list(ids), skip_special_tokens=True)),
            self.sampling,
            runtime.eos,
        )
        self.cancelled = False
        self.deltas: list[str] = []
        self.endings: list[str | None] = []

    def emit(self, delta: str) -> None:
        assert self.endings == []
        self.deltas.append(delta)

    def finish(self, error: str | None = None) -> None:
        self.endings.append(error)


class Hall:
    """Lanes of one runtime with the experts ``one``, ``two`` and ``broken``; counts its work."""

    def __init__(self, runtime: Runtime, basis: Basis, folder: Path) -> None:
        self.runtime = runtime
        self.basis = basis
        self.table = np.concatenate([np.zeros((1, basis.coordinates.total), np.float32)] * 4)
        self.table[1:3] = rigs.experts(basis, 2)
        self.table[3, 3] = np.inf
        self.reference = cache(lambda slot: rigs.edited(folder, basis, self.table[slot]))
        self.answer = cache(self._answer)
        self.prefixes = PrefixCache(1 << 24)
        self.widths: list[int] = []

    def lane(self) -> Lane:
        stream = mx.new_stream(mx.default_device())
        return Lane(self.runtime, stream, self.prefixes, self.edits)

    def edits(self, slots: Sequence[int]) -> Edits | None:
        if not any(slots):
            return None
        return self.runtime.edits(mx.array(self.table[list(slots)]))

    def user(self, prompt: rigs.Tokens, expert: str = "base", **sampling: Any) -> User:
        return User(self.runtime, prompt, expert, **sampling)

    def check(self, *users: User) -> None:
        """Each user was told the greedy answer of its expert's explicitly edited model, once."""
        for user in users:

            def logits(tokens: list[int], slot: int = user.slot) -> rigs.FloatArray:
                return rigs.logits_of(self.reference(slot), tokens)

            prompt = tuple(int(token) for token in user.prompt)
            expected = self.answer(user.slot, prompt, user.sampling.max_tokens)
            rigs.assert_same_tokens(user.text.tokens, expected, logits, user.prompt)
            assert user.endings == [None]
            assert "".join(user.deltas) == user.text.text

    def _answer(self, slot: int, prompt: tuple[int, ...], limit: int) -> list[int]:
        def logits(tokens: list[int]) -> rigs.FloatArray:
            return rigs.logits_of(self.reference(slot), tokens)

        return rigs.greedy_of(logits, prompt, limit, self.runtime.eos)


@pytest.fixture(params=["llama", "gemma3_text"])
def hall(
    request: pytest.FixtureRequest,
    runtimes: Runtimes,
    folder_of: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Hall:
    """A hall of one family; the widths of its forward passes are recorded."""
    runtime, basis = runtimes(request.param)
    made = Hall(runtime, basis, folder_of(request.param))
    forward = Runtime.forward

    def recorded(self: Runtime, batch: Batch, tokens: npt.NDArray[np.int32]) -> mx.array:
        made.widths.append(tokens.shape[1])
        return forward(self, batch, tokens)

    monkeypatch.setattr(Runtime, "forward", recorded)
    return made


def step(lane: Lane) -> int:
    mx.eval(lane.step())
    return lane.collect()


def drain(lane: Lane) -> int:
    """Steps until no row is left; returns the tokens handed out."""
    handed_out = 0
    while lane.rows:
        handed_out += step(lane)
    return handed_out


def test_rows_of_all_experts_in_one_batch_answer_as_each_model_alone(hall: Hall) -> None:
    lane = hall.lane()
    prompts = rigs.prompts_of([13, 20, 9, 15])
    users = [hall.user(p, e) for p, e in zip(prompts, ["one", "base", "two", "one"], strict=True)]
    rigs.run_steps(lane.admit(users))
    drain(lane)
    hall.check(*users)
    assert len({tuple(user.text.tokens) for user in users}) == 4


def test_rows_join_and_leave_without_changing_what_others_say(hall: Hall) -> None:
    lane = hall.lane()
    prompts = rigs.prompts_of([13, 20, 9, 31, 5], seed=1)
    limits = [9, 3, 6, 4, 1]
    experts = ["base", "one", "two", "base", "two"]
    users = [
        hall.user(p, e, max_tokens=n) for p, e, n in zip(prompts, experts, limits, strict=True)
    ]
    rigs.run_steps(lane.admit(users[:2]))
    step(lane)
    rigs.run_steps(lane.admit(users[2:3]))
    step(lane)
    rigs.run_steps(lane.admit(users[3:]))  # the last is over with its first token
    assert users[4].endings == [None]
    assert users[4] not in lane.rows
    drain(lane)
    hall.check(*users)


def test_a_lane_of_the_base_alone_has_no_edits(hall: Hall) -> None:
    lane = hall.lane()
    users = [hall.user(p) for p in rigs.prompts_of([6, 8])]
    rigs.run_steps(lane.admit(users))
    assert lane._edits is None
    drain(lane)
    hall.check(*users)


def test_a_cancelled_row_leaves_at_the_next_step_and_keeps_what_it_was_told(hall: Hall) -> None:
    lane = hall.lane()
    gone, stays = (hall.user(p) for p in rigs.prompts_of([13, 20]))
    rigs.run_steps(lane.admit([gone, stays]))
    step(lane)
    gone.cancelled = True
    step(lane)
    assert gone.endings == [None]
    assert len(gone.text.tokens) == 2
    assert gone.text.finish is None
    assert lane.rows == [stays]
    drain(lane)
    hall.check(stays)
    last = hall.user(rigs.prompts_of([7])[0])
    rigs.run_steps(lane.admit([last]))
    last.cancelled = True
    assert lane.step() == []
    assert lane.collect() == 0
    assert (lane.rows, last.endings) == ([], [None])


def test_a_broken_expert_fails_its_row_alone(hall: Hall) -> None:
    lane = hall.lane()
    prompts = rigs.prompts_of([13, 20, 9], seed=2)
    users = [hall.user(p, e) for p, e in zip(prompts, ["one", "broken", "base"], strict=True)]
    rigs.run_steps(lane.admit(users))
    assert users[1].endings == ["the model's hidden state is not finite"]
    assert users[1].deltas == []
    drain(lane)
    hall.check(users[0], users[2])
    alone = hall.user(prompts[1], "broken")
    rigs.run_steps(lane.admit([alone]))
    assert (lane.rows, len(alone.endings)) == ([], 1)


def test_a_known_prefix_of_the_same_expert_is_not_prefilled_again(hall: Hall) -> None:
    lane = hall.lane()
    first, second = rigs.prompts_of([30, 33], shared=26)
    users = [hall.user(first, "one"), hall.user(second, "one"), hall.user(first, "one")]
    for user in users:
        rigs.run_steps(lane.admit([user]))
        drain(lane)
    hall.check(*users)
    prefills = [width for width in hall.widths if width > 1]
    assert prefills == [30, 33 - 26]  # all but the last token of the third is known


def test_a_prefix_of_another_expert_is_never_used(hall: Hall) -> None:
    lane = hall.lane()
    prompt = rigs.prompts_of([25])[0]
    users = [hall.user(prompt, expert) for expert in ("base", "one", "two")]
    for user in users:
        rigs.run_steps(lane.admit([user]))
        drain(lane)
    hall.check(*users)
    assert [width for width in hall.widths if width > 1] == [25, 25, 25]


def test_rows_with_different_known_prefixes_are_prefilled_together(hall: Hall) -> None:
    lane = hall.lane()
    long, longer, fresh = rigs.prompts_of([28, 36, 5], seed=3)
    first = [hall.user(long, "one"), hall.user(longer)]
    rigs.run_steps(lane.admit(first))
    drain(lane)
    tail = rigs.prompts_of([2, 9, 6], seed=4)
    users = [
        hall.user(np.concatenate([long, tail[0]]), "one"),
        hall.user(np.concatenate([longer[:30], tail[1]])),
        hall.user(np.concatenate([long, tail[2]])),  # known to another expert only
        hall.user(fresh, "two"),
        hall.user(longer),
    ]
    rigs.run_steps(lane.admit(users))
    drain(lane)
    hall.check(*first, *users)


@pytest.mark.parametrize("expert", ["base", "one"])
def test_what_prompts_of_one_expert_share_is_read_once_and_held_once(
    hall: Hall, expert: str
) -> None:
    lane = hall.lane()
    prompts = rigs.prompts_of([90, 73, 97, 81], shared=70, seed=6)
    users = [hall.user(prompt, expert) for prompt in prompts]
    rigs.run_steps(lane.admit(users[:3]))
    assert hall.widths[:2] == [70, 97 - 70]
    [cohort] = lane._cohorts
    assert cohort.known is not None
    assert cohort.known.length == cohort.batch.layout.prefix == 70
    longer = hall.user(np.concatenate([prompts[0][:80], prompts[3][80:]]), expert)
    rigs.run_steps(lane.admit([longer]))  # 80 of its tokens are known, but 70 are in place
    assert hall.widths[2] == len(longer.prompt) - 70
    rigs.run_steps(lane.admit(users[3:]))
    assert hall.widths[3] == 81 - 70
    [joined] = lane._cohorts
    assert joined.known == cohort.known
    assert len(joined.places) == 5
    drain(lane)
    hall.check(*users, longer)


def test_what_a_cancelled_group_shares_is_not_read_to_its_end(hall: Hall) -> None:
    lane = hall.lane()
    users = [hall.user(p) for p in rigs.prompts_of([600, 600], shared=590)]
    steps = lane.admit(users)
    mx.eval(next(steps))
    for user in users:
        user.cancelled = True
    assert next(steps, None) is None
    assert [user.endings for user in users] == [[None], [None]]
    assert hall.widths == [256]


def test_a_lane_has_few_cohorts_whatever_comes_and_goes(hall: Hall) -> None:
    lane = hall.lane()
    prompts = rigs.prompts_of([40, 44, 37, 41], shared=34, seed=7)
    others = rigs.prompts_of([9, 30, 17, 5, 22, 12], seed=8)
    experts = ["one", "two", "base", "one", "two", "base"]
    users = [hall.user(p, "one", max_tokens=12) for p in prompts]
    users += [hall.user(p, e, max_tokens=9) for p, e in zip(others, experts, strict=True)]
    for user in users:
        rigs.run_steps(lane.admit([user]))
        step(lane)
        assert len(lane._cohorts) <= 4
    drain(lane)
    hall.check(*users)


def test_rows_that_come_and_go_at_random_answer_as_each_model_alone(hall: Hall) -> None:
    """With both families: 200 random sequences of joining, reading, cancelling and leaving."""
    pool = rigs.prompts_of([34, 5, 41, 20, 37, 12], seed=9)
    pool[2][:32] = pool[4][:32] = pool[0][:32]  # a task's prompts begin alike
    for seed in range(100):
        users = walk(hall, np.random.default_rng(seed), pool)
        hall.check(*(user for user in users if not user.cancelled))
        assert all(len(user.endings) == 1 for user in users)


def walk(hall: Hall, rng: np.random.Generator, pool: Sequence[rigs.Tokens]) -> list[User]:
    """Users of two lanes whose groups are read in turns, chunk by chunk, between decode steps."""
    lanes = [hall.lane(), hall.lane()]
    users: list[User] = []
    reading: deque[Any] = deque()
    for _ in range(int(rng.integers(6, 14))):
        action = rng.choice(["admit", "read", "read", "step", "step", "cancel"])
        if action == "admit":
            group = [
                hall.user(
                    pool[rng.integers(len(pool))],
                    EXPERTS[rng.integers(3)],
                    max_tokens=int(rng.integers(1, 6)),
                )
                for _ in range(rng.integers(1, 4))
            ]
            users += group
            reading.append(lanes[rng.integers(2)].admit(group))
        elif action == "read" and reading:
            steps = reading.popleft()
            if (arrays := next(steps, None)) is not None:
                mx.eval(arrays)
                reading.append(steps)
        elif action == "cancel" and users:
            users[rng.integers(len(users))].cancelled = True
        else:
            for lane in lanes:
                step(lane)
    for steps in reading:
        rigs.run_steps(steps)
    for lane in lanes:
        drain(lane)
    return users


def test_prefixes_are_shared_by_lanes(hall: Hall) -> None:
    prompt = rigs.prompts_of([25])[0]
    users = [hall.user(prompt), hall.user(prompt)]
    for user in users:
        lane = hall.lane()
        rigs.run_steps(lane.admit([user]))
        drain(lane)
    hall.check(*users)
    assert [width for width in hall.widths if width > 1] == [25]


def test_a_prompt_longer_than_a_pass_is_prefilled_in_parts(hall: Hall) -> None:
    lane = hall.lane()
    prompts = rigs.prompts_of([530, 40])
    users = [hall.user(p, e, max_tokens=3) for p, e in zip(prompts, ["one", "base"], strict=True)]
    assert rigs.run_steps(lane.admit(users)) == 5
    drain(lane)
    assert hall.widths[:5] == [128, 128, 128, 128, 18]  # of two rows, 256 tokens at a time
    hall.check(*users)


def test_a_prompt_that_nobody_wants_any_more_is_not_read_to_its_end(hall: Hall) -> None:
    lane = hall.lane()
    users = [hall.user(p) for p in rigs.prompts_of([700, 650])]
    steps = lane.admit(users)
    mx.eval(next(steps))
    users[0].cancelled = True
    mx.eval(next(steps))
    users[1].cancelled = True
    assert next(steps, None) is None
    assert [user.endings for user in users] == [[None], [None]]
    assert lane.rows == []
    assert len(hall.widths) == 2


def test_rows_that_are_answering_go_on_while_a_prompt_is_read(hall: Hall) -> None:
    lane = hall.lane()
    short, long = (hall.user(p, "one") for p in rigs.prompts_of([9, 600]))
    rigs.run_steps(lane.admit([short]))
    for arrays in lane.admit([long]):
        mx.eval(arrays)
        step(lane)
    assert len(short.text.tokens) == 4
    drain(lane)
    hall.check(short, long)


def test_a_sampled_row_says_the_same_in_any_company(hall: Hall) -> None:
    prompt, *others = rigs.prompts_of([13, 20, 9], seed=5)
    warm = {"temperature": 30.0, "seed": 9, "max_tokens": 8}
    lane = hall.lane()
    alone = hall.user(prompt, "one", **warm)
    rigs.run_steps(lane.admit([alone]))
    drain(lane)
    lane = hall.lane()
    rigs.run_steps(lane.admit([hall.user(p, "two", temperature=1.0, seed=9) for p in others]))
    step(lane)
    accompanied = hall.user(prompt, "one", **warm)
    other = hall.user(prompt, "one", **warm | {"seed": 10})
    rigs.run_steps(lane.admit([accompanied, other]))
    drain(lane)
    assert accompanied.text.tokens == alone.text.tokens
    assert other.text.tokens != alone.text.tokens


def test_tokens_are_counted(hall: Hall) -> None:
    lane = hall.lane()
    users = [hall.user(p, max_tokens=5) for p in rigs.prompts_of([6, 8])]
    rigs.run_steps(lane.admit(users))
    assert drain(lane) == sum(len(user.text.tokens) for user in users) - 2
    assert lane.collect() == 0


def test_a_failed_lane_tells_every_row_and_serves_again(hall: Hall) -> None:
    lane = hall.lane()
    users: list[Row] = [hall.user(p) for p in rigs.prompts_of([6, 8])]
    rigs.run_steps(lane.admit(users))
    lane.fail("no memory")
    assert [user.endings for user in users if isinstance(user, User)] == [["no memory"]] * 2
    assert lane.step() == []
    later = hall.user(rigs.prompts_of([6])[0])
    rigs.run_steps(lane.admit([later]))
    drain(lane)
    hall.check(later)
