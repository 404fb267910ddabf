"""The engine as every thread may use it: tokens in, text out.

The work is done by one thread, a ``Worker``; the ``Watchdog`` starts it and replaces it when it has
died or does not get on.  Rows and background work that are lost with it raise ``EngineRestarting``,
and so does whatever comes before the new thread serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from app.engine.batch import Tokens
from app.engine.config import Care, EngineConfig, Manners
from app.engine.errors import ContextOverflow
from app.engine.grammar import Grammar, Grammars
from app.engine.inbox import Steps
from app.engine.models import ModelInfo, fast_tokenizer
from app.engine.rollout import Population
from app.engine.sampling import Sampling
from app.engine.stream import Stream
from app.engine.text import Completion, RowText
from app.engine.tool_form import ToolForm, tool_form
from app.engine.watchdog import Watchdog
from app.engine.worker import Base, ExpertSource, Worker, text_of
from trainers.spectral import Coordinates

__all__ = ["Care", "Engine", "EngineConfig", "Manners"]

FloatArray = npt.NDArray[np.float32]


class Engine:
    """Serves rows and rollouts of one base model. Every method may be called from any thread.

    Args:
        model_path: MLX model folder.
        expert_source: version id -> its validated tensors; called on the engine thread.
        config: sizes and bounds.
    """

    def __init__(
        self,
        model_path: Path,
        expert_source: ExpertSource,
        config: EngineConfig | None = None,
    ) -> None:
        self._config = config or EngineConfig()
        self._watchdog = Watchdog(
            lambda ended: Worker(model_path, expert_source, self._config, ended),
            self._config.care,
        )

    def start(self) -> None:
        """Load the model and start serving; raises ``ModelError`` if it cannot be loaded."""
        self._watchdog.start()
        base = self._base
        self._grammars = Grammars(fast_tokenizer(base.tokenizer), base.info.vocab_size, base.eos)
        self.tool_form: ToolForm = tool_form(base.tokenizer)

    def close(self) -> None:
        """Finish the step under way, fail what waits, and join the thread."""
        self._watchdog.stop()

    @property
    def info(self) -> ModelInfo:
        """The base model."""
        return self._base.info

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together, at most."""
        return self._base.max_context

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates of an expert."""
        return self._base.coordinates

    @property
    def basis_hash(self) -> str:
        """Which basis the coordinates belong to."""
        return self._base.basis_hash

    @property
    def basis_kind(self) -> str:
        """How that basis was made."""
        return self._base.basis_kind

    @property
    def lingering(self) -> int:
        """Threads that were cut off in the middle of a step and have not come back."""
        return self._watchdog.lingering

    def encode(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
    ) -> tuple[int, ...]:
        """Tokens of a chat up to where the answer begins; ``ValueError`` if the template
        objects."""
        try:
            shown = self.tool_form.messages(messages, tools)
            ids = self._base.tokenizer.apply_chat_template(
                shown, tools=list(tools) if tools else None, add_generation_prompt=True
            )
        except Exception as error:  # templates raise whatever Jinja raises
            raise ValueError(
                f"the model's chat template refuses these messages: {error}"
            ) from error
        return tuple(int(i) for i in ids)

    def encode_text(self, text: str, end: bool = False) -> tuple[int, ...]:
        """Tokens of plain text, with the end-of-text token if ``end``."""
        tokenizer = self._base.tokenizer
        ids = [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]
        return (*ids, int(tokenizer.eos_token_id)) if end else tuple(ids)

    def json_grammar(self, schema: Mapping[str, Any] | None) -> Grammar:
        """JSON that a schema allows, any JSON object for ``None``; raises ``GrammarError``."""
        return self._grammars.json(schema)

    def lark_grammar(self, text: str) -> Grammar:
        """Text that a grammar in llguidance's Lark allows; raises ``GrammarError``."""
        return self._grammars.lark(text)

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text, which may end within a character; a special one's name."""
        return self._grammars.token_bytes(token)

    def submit(
        self, prompt: Sequence[int], sampling: Sampling, expert: str | None = None
    ) -> Stream:
        """Queue a user's row.

        Raises ``EngineBusy``, ``EngineRestarting``, ``EngineStopped`` or ``ContextOverflow``, and
        ``ValueError`` for a prompt without tokens or with one that the model does not have.
        """
        if len(prompt) == 0:
            raise ValueError("the prompt has no tokens")
        if len(prompt) + sampling.max_tokens > self.max_context:
            raise ContextOverflow(len(prompt), sampling.max_tokens, self.max_context)
        text = RowText(self.decode, sampling, self._base.eos)
        stream = Stream(self._known(prompt), sampling, expert, text)
        self._worker.inbox.put(stream)
        return stream

    def generate(
        self, flat: FloatArray | None, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]]:
        """Completions [candidate][prompt] at background priority; ``flat`` (P, total) or base.

        Raises ``EngineRestarting``, ``EngineStopped`` and ``WorkDropped``, as all rollouts do.
        """
        tokens = [self._known(p) for p in prompts]
        result: list[list[Completion]] = self._run(
            lambda population: population.generate(flat, tokens, sampling)
        )
        return result

    def likelihood(
        self,
        flat: FloatArray,
        prompts: Sequence[Sequence[int]],
        references: Sequence[Sequence[int]],
        centre: FloatArray,
        first: int = 0,
    ) -> FloatArray:
        """Mean log-likelihood per reference token, (P, N) fp32, at background priority.

        ``centre``: (total,) what the candidates are drawn around; it reads the prompts.
        ``first``: the lowest layer in which they differ; those below run once.
        """
        tokens = [self._known(p) for p in prompts]
        targets = [self._known(r) for r in references]
        result: FloatArray = self._run(
            lambda population: population.likelihood(flat, tokens, targets, centre, first)
        )
        return result

    def energies(self, flat: FloatArray | None, texts: Sequence[Sequence[int]]) -> FloatArray:
        """Relative energy of each coordinate on these texts, (total,), at background priority.

        ``flat``: the one expert (1, total) to measure under, or the base.
        """
        tokens = [self._known(t) for t in texts]
        result: FloatArray = self._run(lambda population: population.energies(flat, tokens))
        return result

    def stand_down(self) -> None:
        """Drop the background work, whose callers get ``WorkDropped``, and what it held in memory.

        Nothing is dropped while the engine is being restarted: it is lost already.
        """
        self._watchdog.stand_down()

    def dismiss(self) -> None:
        """End users' rows at once, with the error that the engine is shutting down."""
        self._watchdog.dismiss()

    def forget(self, expert: str) -> None:
        """Free what is held of an expert that was deleted; rows in flight keep it."""
        self._watchdog.forget(expert)

    def await_restart(self, timeout_s: float) -> bool:
        """Wait while the engine is being restarted; whether it is over, well or not."""
        return self._watchdog.await_restart(timeout_s)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones skipped."""
        return text_of(self._base.tokenizer, tokens)

    def health(self) -> dict[str, Any]:
        """What the engine is doing, for ``/healthz``."""
        return {"model": self.info.name, **self._watchdog.health()}

    def _known(self, tokens: Sequence[int]) -> Tokens:
        """Raises ``ValueError`` for a token without an embedding: reading it reads past its end."""
        ids = np.asarray(tokens, dtype=np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.info.vocab_size:
            raise ValueError(f"the model has tokens 0 to {self.info.vocab_size - 1} and no others")
        return ids.astype(np.int32)

    @property
    def _base(self) -> Base:
        return self._watchdog.base

    @property
    def _worker(self) -> Worker:
        return self._watchdog.worker()

    def _run(self, start: Callable[[Population], Steps]) -> Any:
        worker = self._worker
        future = worker.inbox.run(start(worker.population))
        del worker  # should it be replaced meanwhile, its model shall not be kept by whoever waits
        return future.result()
