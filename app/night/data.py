"""From a task's graded episodes to the prompts of a night: some to train on, some held out.

An episode counts when the task's current grader could grade it: an errored grade says that the
item or the grader is broken, and such an item would break the grading of every new answer too.
What the client's model answered is not used; the night answers the prompts itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlmodel import Session, col, select

from app.config import Settings
from app.night import gate
from storage.episodes import GradeDraft
from storage.errors import NotFound
from storage.tables import Episode, GradeRow, GradeStatus, Task
from storage.values import content_hash
from verifiers import Grade

Messages = list[dict[str, Any]]
References = Callable[[Sequence[dict[str, Any]]], list[str | None]]
"""Writes a right answer for each item, None where the grader cannot."""

MAX_HELDOUT = 512
"""More held-out prompts than this are not judged, the newest are: a gate has to end."""


class Encoder(Protocol):
    """What of the engine turns prompts into tokens."""

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together at most."""
        ...

    def encode(self, messages: Messages, tools: Messages | None = None) -> tuple[int, ...]:
        """Tokens of a conversation, ready for the answer; ValueError if the template refuses."""
        ...

    def encode_text(self, text: str, end: bool = False) -> tuple[int, ...]:
        """Tokens of plain text, with the end-of-text token if asked for."""
        ...


@dataclass(frozen=True)
class Prompt:
    """One distinct prompt: its tokens, what the grader compares with, a right answer if known.

    `reference` are the tokens of an answer that the grader passes, its end included; None where the
    grader cannot write one.
    """

    episode_id: str
    tokens: tuple[int, ...]
    item: dict[str, Any]
    group: str | None
    reference: tuple[int, ...] | None


@dataclass(frozen=True)
class Choice:
    """Ids of the episodes of both sides, each a distinct prompt, in order of arrival."""

    training: tuple[str, ...]
    heldout: tuple[str, ...]


@dataclass(frozen=True)
class Dataset:
    """The prompts of a night. `unusable` more did not fit the model's template or context."""

    training: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    unusable: int

    @property
    def hash(self) -> str:
        """Identity of everything training and the gate read (sha256 hex)."""
        sides = (self.training, self.heldout)
        return content_hash(
            [
                [
                    [p.episode_id, list(p.tokens), p.item, p.group, _listed(p.reference)]
                    for p in side
                ]
                for side in sides
            ]
        )

    @property
    def episode_ids(self) -> list[str]:
        """The episodes trained on."""
        return [prompt.episode_id for prompt in self.training]


def conversation(messages: Messages, system_prompt: str) -> Messages:
    """The messages as the model sees them: the task's system prompt leads unless one is there."""
    if not system_prompt or (messages and messages[0].get("role") == "system"):
        return messages
    return [{"role": "system", "content": system_prompt}, *messages]


def prompt_key(messages: Messages) -> str:
    """What decides a prompt's side when it has no group: its content without system messages.

    So the same request stays on its side when the task's system prompt changes, or when a client
    puts the state of the home into it.
    """
    said = [message for message in messages if message.get("role") != "system"]
    return content_hash(said or messages)


def choose(graded: Sequence[tuple[Episode, GradeRow]], task: str, settings: Settings) -> Choice:
    """Splits the gradable episodes, in order of arrival, and keeps the newest of each prompt."""
    usable = [episode for episode, grade in graded if grade.status is not GradeStatus.ERRORED]
    sides = gate.split(
        [episode.group_key for episode in usable],
        [prompt_key(episode.messages) for episode in usable],
        fraction=settings.heldout_fraction,
        minimum=settings.min_heldout,
        salt=task,
    )
    newest = {content_hash(usable[row].messages): row for row in sides.training}
    return Choice(
        training=tuple(usable[row].id for row in sorted(newest.values())),
        heldout=tuple(usable[row].id for row in sides.heldout[-MAX_HELDOUT:]),
    )


def load(session: Session, ids: Iterable[str]) -> list[Episode]:
    """The episodes with these ids, in that order; raises NotFound if one has been deleted."""
    wanted = list(ids)
    found: dict[str, Episode] = {}
    for start in range(0, len(wanted), 500):  # SQLite bounds the variables of a statement
        some = wanted[start : start + 500]
        rows = session.exec(select(Episode).where(col(Episode.id).in_(some)))
        found.update({episode.id: episode for episode in rows})
    missing = [id for id in wanted if id not in found]
    if missing:
        raise NotFound(f"{len(missing)} episodes of this job have been deleted")
    return [found[id] for id in wanted]


def prepare(
    training: Sequence[Episode],
    heldout: Sequence[Episode],
    task: Task,
    references: References,
    encoder: Encoder,
    max_tokens: int,
) -> Dataset:
    """Tokens and references of both sides; answers have room for `max_tokens`."""
    asked = [*training, *heldout]
    texts = references([episode.item for episode in asked])
    prompts = [
        _prompt(episode, task, text, encoder, max_tokens)
        for episode, text in zip(asked, texts, strict=True)
    ]
    sides = prompts[: len(training)], prompts[len(training) :]
    usable = [tuple(prompt for prompt in side if prompt is not None) for side in sides]
    unusable = sum(prompt is None for side in sides for prompt in side)
    return Dataset(usable[0], usable[1], unusable)


def _prompt(
    episode: Episode, task: Task, text: str | None, encoder: Encoder, max_tokens: int
) -> Prompt | None:
    """The episode's prompt, `text` its right answer; None when the model cannot be asked it."""
    try:
        tokens = encoder.encode(conversation(episode.messages, task.system_prompt), task.tools)
    except ValueError:  # counted by the caller: the chat template refuses these messages
        return None
    if len(tokens) + max_tokens > encoder.max_context:
        return None
    reference = None if text is None else encoder.encode_text(text, end=True)
    if reference is not None and len(tokens) + len(reference) > encoder.max_context:
        reference = None
    return Prompt(episode.id, tokens, episode.item, episode.group_key, reference)


def grade_draft(grade: Grade, grader_hash: str) -> GradeDraft:
    """A verifier's grade as storage takes it."""
    return GradeDraft(
        grader_hash=grader_hash,
        status=grade.status.value,
        score=grade.score,
        seconds=grade.seconds,
        subscores=grade.subscores,
        error_kind=grade.error_kind,
        error=grade.error,
    )


def _listed(tokens: tuple[int, ...] | None) -> list[int] | None:
    return None if tokens is None else list(tokens)
