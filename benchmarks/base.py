"""The base model of the benchmarks, and a copy of it whose answers never end early."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app import home
from app.config import load_settings
from app.engine.models import BUILTIN, pull, resolve
from app.engine.scheduler import Engine

# Written anew, or made anew beside the copy: they belong to the model's bytes.
_LEFT_OUT = ("basis-", "base_hash.json", "generation_config.json")
SIGMA = 0.04  # the demo's: real edits of a training population


def base_model(name: str) -> Path:
    """The folder of an installed model; the embedded one is pulled if it is not there.

    Raises ``ModelError``.
    """
    models_dir = load_settings(os.environ, {}).models
    if name == BUILTIN:
        return pull(BUILTIN, models_dir)
    return resolve(name, models_dir)


def endless(model: Path, folder: Path) -> Path:
    """A copy of a model in ``folder`` with no end token that it would ever choose.

    Every row of every contestant then has exactly the tokens that were asked for. The tokenizer's
    own end token becomes a special token that the model has no use for; without one there is none.
    """
    folder.mkdir()
    for file in model.iterdir():
        if not file.name.startswith(_LEFT_OUT):
            shutil.copyfile(file, folder / file.name)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    vocabulary = config.get("text_config", config)["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [vocabulary]}))
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    unused = _unused(folder, settings)
    settings.pop("eos_token", None)
    settings |= {"eos_token": unused[-1]} if unused else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _unused(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """Special tokens that neither the chat template nor the tokenizer's settings use."""
    template = folder / "chat_template.jinja"
    used = template.read_text("utf-8") if template.is_file() else settings.get("chat_template", "")
    roles = {value for key, value in settings.items() if key.endswith("_token")}
    added = json.loads((folder / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    names = [token["content"] for token in added if token["special"]]
    return [name for name in names if name not in roles and name not in used]


def home_prompts(engine: Engine, count: int) -> list[tuple[int, ...]]:
    """Real prompts: the demo's, which share the instruction and the examples."""
    return [engine.encode(home.messages(c.sentence)) for c in home.sample(0)[:count]]


def candidates(count: int, coordinates: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """(count, coordinates) edits in all layers, as an iteration of training draws them."""
    drawn = np.random.default_rng(0).normal(0, SIGMA, (count, coordinates))
    return drawn.astype(np.float32)
