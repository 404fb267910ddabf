"""Trust checks before a night: can the task's grader be satisfied without doing the task?

Trivial answers are graded on the training prompts: nothing at all, what is said most often, the
prompt itself, and as much as fits. A trivial answer that passes more than a share of the prompts
(setting `max_trivial_share`) flags the task as hackable: training would find that answer, and the
gate, which compares with the active version, would call it better.

The flag by itself blocks no training. Where nine of ten messages are no spam, "no" is a trivial
answer and the task is sound. It raises the bar of the gate instead: an expert must then pass more
held-out prompts than the trivial answer does. A trivial answer that passes all of them leaves
nothing to be better at, so such a night ends before it trains.

Discrimination says whether the grader tells answers apart: the share of prompts whose different
stored completions differ in score. Near zero there is nothing to learn from. After training the
same is told of the candidates' own answers.

Left out: answers that depend on the prompt in cleverer ways than copying it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.night.grading import GradeMany, answer_text
from storage.tables import Episode, GradeRow
from storage.values import content_hash
from verifiers import Sample

Json = dict[str, Any]
Kind = Literal["empty", "completion", "reference", "prompt", "conversation", "longest", "all"]

MAX_PROMPTS = 128
"""Training prompts that are tried, spread over the order of arrival: a share known to 9 points."""
FREQUENT = 5
"""So many of the most frequent completions are tried, and of the most frequent right answers."""
CHARS_PER_TOKEN = 4
"""About as much text as a token holds: what does not fit into an answer cannot be said."""
MAX_SHOWN_CHARS = 300

_GRADED_AT_ONCE = 64
_NAMES: dict[Kind, str] = {
    "empty": "an empty text",
    "completion": "always the same stored completion",
    "reference": "always the same right answer",
    "prompt": "a copy of what was asked",
    "conversation": "a copy of the whole conversation",
    "longest": "always the longest answer known",
    "all": "all known answers in one",
}


@dataclass(frozen=True)
class Trivial:
    """A way to answer without doing the task; `text` is None where it is made from the prompt."""

    kind: Kind
    max_chars: int
    text: str | None = None

    def answer(self, messages: list[Json]) -> str:
        """What it answers to a conversation."""
        if self.text is not None:
            return self.text[: self.max_chars]
        said = asked(messages) if self.kind == "prompt" else "\n".join(map(_content, messages))
        return said[: self.max_chars]


@dataclass(frozen=True)
class Tried:
    """How a trivial answer did on `prompts` prompts; `example` is the first that it passes."""

    trivial: Trivial
    prompts: int
    passed: int
    errored: int
    example: Episode | None

    @property
    def share(self) -> float:
        """Share of the prompts passed; one that could not be graded is not passed."""
        return self.passed / self.prompts

    def public(self) -> Json:
        """As JSON, the text cut to what one can read."""
        text = self.trivial.text
        return {
            "kind": self.trivial.kind,
            "text": None if text is None else text[:MAX_SHOWN_CHARS],
            "passed": self.passed,
            "errored": self.errored,
            "share": self.share,
        }


@dataclass(frozen=True)
class Discrimination:
    """Of `prompts` prompts with different answers, `differing` have answers of different score."""

    prompts: int
    differing: int

    @property
    def share(self) -> float | None:
        """None where no prompt has different answers."""
        return self.differing / self.prompts if self.prompts else None

    def public(self) -> Json:
        """As JSON."""
        return asdict(self) | {"share": self.share}


@dataclass(frozen=True)
class Report:
    """What the checks found on `prompts` training prompts; `tried` begins with the best answer."""

    threshold: float
    prompts: int
    tried: tuple[Tried, ...]
    discrimination: Discrimination

    @property
    def best(self) -> Tried | None:
        """The trivial answer that passes most; None where none passes anything."""
        return self.tried[0] if self.tried and self.tried[0].passed else None

    @property
    def hackable(self) -> bool:
        """Whether a trivial answer passes more of the prompts than the threshold."""
        return self.best is not None and self.best.share > self.threshold

    def public(self) -> Json:
        """As JSON, for the job's events and outcome and for the API."""
        return {
            "hackable": self.hackable,
            "message": self._message(),
            "threshold": self.threshold,
            "prompts": self.prompts,
            "example": self._example(),
            "baselines": [tried.public() for tried in self.tried],
            "discrimination": self.discrimination.public(),
        }

    def _message(self) -> str:
        if not self.prompts:
            return "There are no training prompts to try trivial answers on."
        if self.best is None:
            return f"No trivial answer passes any of {self.prompts} training prompts."
        verdict = "Hackable" if self.hackable else "Not hackable"
        return (
            f"{verdict}: the best trivial answer, {_NAMES[self.best.trivial.kind]}, passes"
            f" {self.best.passed} of {self.prompts} training prompts; up to {self.threshold:.0%} is"
            " allowed."
        )

    def _example(self) -> Json | None:
        """A prompt and the trivial answer that passes it."""
        if self.best is None or self.best.example is None:
            return None
        episode = self.best.example
        return {
            "episode_id": episode.id,
            "prompt": asked(episode.messages)[:MAX_SHOWN_CHARS],
            "completion": self.best.trivial.answer(episode.messages)[:MAX_SHOWN_CHARS],
        }


def check(
    training: Sequence[Episode],
    graded: Iterable[tuple[Episode, GradeRow]],
    references: Callable[[Sequence[Json]], list[str | None]],
    grade_many: GradeMany,
    *,
    threshold: float,
    max_chars: int,
    pause: Callable[[], None],
) -> Report:
    """Tries the trivial answers on the training prompts, one episode each.

    `graded` are the task's episodes with their grades, for the discrimination. `references` gives a
    right answer for each item, None where the grader knows none. `pause` is called before each use
    of the grader; what it raises ends the check.
    """
    rows = _spread(training)
    completions = [answer_text(episode.completion, episode.tool_calls) for episode in training]
    pause()
    right = [text for text in references([row.item for row in rows]) if text is not None]
    tried = [
        _try(trivial, rows, passes(trivial, rows, grade_many, pause))
        for trivial in trivial_answers(completions, right, max_chars)
        if rows
    ]
    tried.sort(key=lambda one: one.passed, reverse=True)  # stable: the plainest of equals leads
    return Report(threshold, len(rows), tuple(tried), discrimination(graded))


def passes(
    trivial: Trivial,
    episodes: Sequence[Episode],
    grade_many: GradeMany,
    pause: Callable[[], None],
) -> list[bool | None]:
    """Whether a trivial answer passes each prompt; None where it cannot be graded."""
    found: list[bool | None] = []
    for start in range(0, len(episodes), _GRADED_AT_ONCE):
        pause()
        some = episodes[start : start + _GRADED_AT_ONCE]
        pairs = [(Sample(output_text=trivial.answer(one.messages)), one.item) for one in some]
        found += [None if g.score is None else g.passed for g in grade_many(pairs)]
    return found


def trivial_answers(
    completions: Sequence[str], references: Sequence[str], max_chars: int
) -> list[Trivial]:
    """The ways to answer without doing the task, each text once, the plainest first."""
    known = [text for text, _ in Counter([*completions, *references]).most_common()]
    constants: list[tuple[Kind, str]] = [
        ("empty", ""),
        *(("completion", text) for text, _ in Counter(completions).most_common(FREQUENT)),
        *(("reference", text) for text, _ in Counter(references).most_common(FREQUENT)),
    ]
    long: list[tuple[Kind, str]] = [
        ("longest", max(known, key=len, default="")),
        ("all", "\n".join(known)),
    ]
    copies = [Trivial("prompt", max_chars), Trivial("conversation", max_chars)]
    said: set[str] = set()

    def new(texts: list[tuple[Kind, str]]) -> Iterator[Trivial]:
        for kind, text in texts:
            cut = text[:max_chars]
            if cut not in said:
                said.add(cut)
                yield Trivial(kind, max_chars, cut)

    return [*new(constants), *copies, *new(long)]


def discrimination(graded: Iterable[tuple[Episode, GradeRow]]) -> Discrimination:
    """Compares the scores of different completions stored for the same prompt and item."""
    scores: dict[str, dict[str, float]] = {}
    for episode, grade in graded:
        if grade.score is not None:
            key = content_hash([episode.messages, episode.item])
            said = answer_text(episode.completion, episode.tool_calls)
            scores.setdefault(key, {})[said] = grade.score
    several = [list(of.values()) for of in scores.values() if len(of) > 1]
    return Discrimination(len(several), sum(max(of) > min(of) for of in several))


def asked(messages: list[Json]) -> str:
    """What the user said last; the last message where no user said anything."""
    said = [message for message in messages if message.get("role") == "user"] or messages
    return _content(said[-1]) if said else ""


def _try(trivial: Trivial, rows: Sequence[Episode], passed: Sequence[bool | None]) -> Tried:
    first = next((row for row, one in zip(rows, passed, strict=True) if one), None)
    return Tried(trivial, len(rows), passed.count(True), passed.count(None), first)


def _spread(rows: Sequence[Episode]) -> list[Episode]:
    """At most MAX_PROMPTS of the rows, evenly spread, in their order."""
    count = min(len(rows), MAX_PROMPTS)
    return [rows[number * len(rows) // count] for number in range(count)]


def _content(message: Json) -> str:
    content: str = message["content"]
    return content
