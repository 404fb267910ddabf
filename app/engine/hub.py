"""The one program that talks to a model hub. A child process, so that the service never does.

``python -m app.engine.hub plan REPO`` prints ``{"revision", "bytes"}``;
``python -m app.engine.hub fetch REPO REVISION FOLDER`` downloads the files mlx-lm needs.
Code in the repository (``*.py``) is never among them.
"""

from __future__ import annotations

import json
import sys

from huggingface_hub import snapshot_download

_PATTERNS = [
    "*.json",
    "model*.safetensors",
    "tokenizer.model",
    "*.tiktoken",
    "*.txt",
    "*.jinja",
]


def plan(repo: str) -> dict[str, object]:
    """The newest revision of ``repo`` and the bytes that a download of it takes."""
    files = snapshot_download(repo, allow_patterns=_PATTERNS, dry_run=True)
    return {"revision": files[0].commit_hash, "bytes": sum(file.file_size or 0 for file in files)}


def fetch(repo: str, revision: str, folder: str) -> None:
    """Downloads ``repo`` at ``revision`` into ``folder``."""
    snapshot_download(repo, revision=revision, local_dir=folder, allow_patterns=_PATTERNS)


def main(arguments: list[str]) -> None:
    """Runs one of the two commands."""
    match arguments:
        case ["plan", repo]:
            sys.stdout.write(json.dumps(plan(repo)))
        case ["fetch", repo, revision, folder]:
            fetch(repo, revision, folder)
        case _:
            raise SystemExit("usage: plan REPO | fetch REPO REVISION FOLDER")


if __name__ == "__main__":
    main(sys.argv[1:])
