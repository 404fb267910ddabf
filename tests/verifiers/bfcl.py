"""The Berkeley Function Calling Leaderboard: its questions, its answers and its own checker.

From the `bfcl-eval` package (Apache 2.0), whose dependencies are far too many to install: the wheel
is fetched once into the user's cache, without them, and read from there as it is.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
import types
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs

PACKAGE = "bfcl-eval==2026.3.23"
WHEEL_SHA256 = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
NO_MODEL = "none"

Arguments = dict[str, Any]
Call = tuple[str, Arguments]


@dataclass(frozen=True)
class Question:
    """One question: the functions there are, and BFCL's `ground_truth` as it stands."""

    id: str
    functions: list[dict[str, Any]]
    truth: list[dict[str, dict[str, list[Any]]]]

    @property
    def possible(self) -> dict[str, list[Any]]:
        """The allowed values of the first call's arguments."""
        return next(iter(self.truth[0].values()))

    @property
    def name(self) -> str:
        """The name of the first call."""
        return next(iter(self.truth[0]))


@cache
def wheel() -> Path:
    """Return the package's wheel, fetched by pip from whatever index it is set up for."""
    folder = platformdirs.user_cache_path("nightowl") / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("bfcl_eval-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", str(folder), PACKAGE], check=True)
    (found,) = folder.glob("bfcl_eval-*.whl")
    assert hashlib.sha256(found.read_bytes()).hexdigest() == WHEEL_SHA256
    return found


@cache
def questions(category: str) -> list[Question]:
    """Return the questions of a category such as `simple_python`, in their order."""
    asked = _lines(f"BFCL_v4_{category}.json")
    truths = {
        line["id"]: line["ground_truth"]
        for line in _lines(f"possible_answer/BFCL_v4_{category}.json")
    }
    return [Question(one["id"], one["function"], truths[one["id"]]) for one in asked]


def accepts(question: Question, name: str, arguments: Arguments) -> bool:
    """Ask BFCL's own checker about one call."""
    checker, language = _checker()
    result = checker.simple_function_checker(
        question.functions[0], {name: arguments}, question.truth[0], language, NO_MODEL
    )
    return bool(result["valid"])


def _lines(name: str) -> list[dict[str, Any]]:
    with zipfile.ZipFile(wheel()) as archive:
        text = archive.read(f"bfcl_eval/data/{name}").decode()
    return [json.loads(line) for line in text.splitlines()]


@cache
def _checker() -> tuple[Any, Any]:
    """Import the checker out of the wheel.

    It looks up how a model under test spells dots in names. The table of all models would import
    every vendor's client, so it gets a table with one model, which spells names as they are.
    """
    table: Any = types.ModuleType("bfcl_eval.constants.model_config")
    table.MODEL_CONFIG_MAPPING = {NO_MODEL: types.SimpleNamespace(underscore_to_dot=False)}
    sys.modules[table.__name__] = table
    sys.path.append(str(wheel()))
    checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    enums = importlib.import_module("bfcl_eval.constants.enums")
    return checker, enums.Language.PYTHON
