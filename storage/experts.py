"""Expert files: one folder per version, named by the sha256 of what is in it, written once.

`<root>/<sha256>/{manifest.json, expert.safetensors}`. Nothing is trusted when it is read back: a
folder that is not exactly what was written raises Corrupt, and `verify_all` moves it to
`<root>/quarantine/`. One process at a time uses a store (the data folder's lock); its threads may
share it.
"""

import errno
import hashlib
import json
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray
from pydantic import AwareDatetime, BaseModel, ConfigDict, JsonValue, ValidationError

from storage import atomic, tensors
from storage.errors import Corrupt, Invalid, NotFound
from storage.values import canonical_json, is_sha256

MANIFEST = "manifest.json"
TENSORS = "expert.safetensors"
QUARANTINE = "quarantine"
MAX_BYTES = {MANIFEST: 4 << 20, TENSORS: 256 << 20}
# Finder leaves this file in every folder it shows; it is never read.
_IGNORED = frozenset({".DS_Store"})
# Damage to one folder. Any other error (too many open files, ...) says nothing about the expert.
_DAMAGE = frozenset(
    {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EIO, errno.ENXIO}
)


class DataSnapshot(BaseModel):
    """The episodes an expert was trained and judged on, and a hash of their contents."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    episode_ids: tuple[str, ...]
    hash: str


class Manifest(BaseModel):
    """Where an expert comes from and what it fits. `tensors_sha256` is filled in by the store."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    kind: Literal["spectral", "lora"]
    base_model: str
    base_hash: str
    basis: str | None
    basis_hash: str | None
    task: str
    trainer: str
    config: dict[str, JsonValue]
    seed: int
    parent: str | None
    data: DataSnapshot
    gate: dict[str, JsonValue] | None
    tensors_sha256: str | None = None
    created_at: AwareDatetime


@dataclass(frozen=True)
class StoredExpert:
    """A checked expert. `nbytes` is the size of both files on disk."""

    sha: str
    manifest: Manifest
    tensors: dict[str, NDArray[Any]]
    nbytes: int


@dataclass(frozen=True)
class BadExpert:
    """What `verify_all` moved away: its name in the store, why, and its name in quarantine."""

    name: str
    reason: str
    moved_to: str


class ExpertStore:
    """The folder of all experts."""

    def __init__(self, root: Path) -> None:
        """Creates the folder, private to the user, when it is missing; its parent must exist."""
        root.mkdir(mode=0o700, exist_ok=True)
        self._root = root
        self._writing = threading.Lock()

    def put(self, arrays: Mapping[str, NDArray[Any]], manifest: Manifest) -> StoredExpert:
        """Stores an expert, whole or not at all; the same expert again changes nothing.

        Raises Invalid for tensors or a manifest that `load` would refuse, NoSpace.
        """
        data = tensors.encode(arrays)
        named = manifest.model_copy(update={"tensors_sha256": hashlib.sha256(data).hexdigest()})
        # A manifest of wrong types is refused by `_parse` below, not warned about here.
        text = canonical_json(named.model_dump(mode="json", warnings=False)).encode()
        sha = hashlib.sha256(text + data).hexdigest()
        try:
            expert = _parse(sha, {MANIFEST: text, TENSORS: data})
        except Corrupt as error:
            raise Invalid(str(error)) from error
        with self._writing:
            if not self._is_stored(sha):
                self._publish(sha, {MANIFEST: text, TENSORS: data})
        return expert

    def load(self, sha: str) -> StoredExpert:
        """The expert of that name after every check. Raises NotFound, Corrupt."""
        if not is_sha256(sha) or not os.path.lexists(self._root / sha):
            raise NotFound(f"there are no expert files {sha[:80]!r}")
        return _parse(sha, _read(self._root / sha))

    def delete(self, sha: str) -> None:
        """Deletes an expert's files, damaged ones too; raises NotFound."""
        with self._writing:
            folder = self._root / sha
            if not is_sha256(sha) or not os.path.lexists(folder):
                raise NotFound(f"there are no expert files {sha[:80]!r}")
            # Renamed first: a crash leaves the whole expert or a leftover, never half an expert.
            doomed = atomic.temporary_beside(folder)
            folder.rename(doomed)
            atomic.sync_folder(self._root)
            atomic.remove(doomed)

    def ids(self) -> list[str]:
        """The names of all stored experts, unchecked, in order."""
        return sorted(entry.name for entry in self._root.iterdir() if is_sha256(entry.name))

    def verify_all(self) -> list[BadExpert]:
        """Checks everything in the store and moves what is damaged or foreign to quarantine.

        Also deletes what a crash left half written. For the start of the service, under its lock.
        """
        with self._writing:
            atomic.remove_leftovers(self._root)
            bad = []
            for entry in sorted(self._root.iterdir()):
                if entry.name != QUARANTINE and entry.name not in _IGNORED:
                    reason = self._damage(entry)
                    if reason is not None:
                        bad.append(self._quarantine(entry, reason))
            return bad

    def _damage(self, entry: Path) -> str | None:
        """What is wrong with an entry of the store, or None."""
        if not is_sha256(entry.name):
            return "it is not named like an expert"
        try:
            _parse(entry.name, _read(entry))
        except Corrupt as error:
            return str(error)
        return None

    def _quarantine(self, entry: Path, reason: str) -> BadExpert:
        """Moves an entry aside under a name of its own, so that nothing is lost."""
        folder = self._root / QUARANTINE
        if folder.is_symlink() or folder.is_file():
            folder.unlink()  # not ours: the name belongs to the store
        folder.mkdir(mode=0o700, exist_ok=True)
        moved_to = f"{entry.name}-{secrets.token_hex(4)}"
        with atomic.naming_no_space(QUARANTINE):
            entry.rename(folder / moved_to)
            atomic.sync_folder(folder)
            atomic.sync_folder(self._root)
        return BadExpert(entry.name, reason, moved_to)

    def _is_stored(self, sha: str) -> bool:
        """True for a sound expert of that name; a damaged one is moved out of the way."""
        folder = self._root / sha
        if not os.path.lexists(folder):
            return False
        reason = self._damage(folder)
        if reason is not None:
            self._quarantine(folder, reason)
        return reason is None

    def _publish(self, sha: str, files: dict[str, bytes]) -> None:
        folder = atomic.temporary_beside(self._root / sha)
        with atomic.naming_no_space(f"expert {sha[:12]}"), atomic.removed_on_error(folder):
            folder.mkdir(mode=0o700)
            for name, content in files.items():
                atomic.write_new(folder / name, content)
            atomic.publish_dir(folder, self._root / sha)


def _parse(sha: str, files: dict[str, bytes]) -> StoredExpert:
    """An expert from the bytes of its files; raises Corrupt."""
    text, data = files[MANIFEST], files[TENSORS]
    for name, content in files.items():
        if len(content) > MAX_BYTES[name]:
            raise Corrupt(f"{name} is larger than {MAX_BYTES[name]} bytes")
    if hashlib.sha256(text + data).hexdigest() != sha:
        raise Corrupt("the files do not have the hash they are named by")
    manifest = _parse_manifest(text)
    if hashlib.sha256(data).hexdigest() != manifest.tensors_sha256:
        raise Corrupt(f"{TENSORS} does not have the hash the manifest gives")
    return StoredExpert(sha, manifest, tensors.decode(data), len(text) + len(data))


def _parse_manifest(text: bytes) -> Manifest:
    """The manifest in canonical JSON: this refuses repeated keys, NaN and infinities as well."""
    try:
        if canonical_json(json.loads(text)).encode() != text:
            raise Corrupt(f"{MANIFEST} is not canonical JSON")
        return Manifest.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Corrupt(f"{MANIFEST}: {place}: {first['msg']}") from error
    except (ValueError, RecursionError, Invalid) as error:
        raise Corrupt(f"{MANIFEST} is not JSON") from error


def _read(folder: Path) -> dict[str, bytes]:
    """The contents of exactly the two files of an expert; follows no link. Raises Corrupt."""
    with _damage_named(), _opened(folder, os.O_DIRECTORY) as directory:
        found = set(os.listdir(directory)) - _IGNORED  # noqa: PTH208 (of a descriptor)
        if found != MAX_BYTES.keys():
            raise Corrupt(f"it does not hold exactly {MANIFEST} and {TENSORS}")
        return {name: _read_file(directory, name) for name in (MANIFEST, TENSORS)}


def _read_file(directory: int, name: str) -> bytes:
    # Non-blocking, or opening a named pipe would wait for its other end for ever.
    with _opened(name, os.O_NONBLOCK, directory) as fd:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Corrupt(f"{name} is not a plain file")
        if status.st_size > MAX_BYTES[name]:
            raise Corrupt(f"{name} is larger than {MAX_BYTES[name]} bytes")
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_BYTES[name] + 1)


@contextmanager
def _opened(path: Path | str, flags: int, directory: int | None = None) -> Iterator[int]:
    """A descriptor for reading something that is not a link."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _damage_named() -> Iterator[None]:
    """Turns the file system's word for a damaged folder into Corrupt, without its path."""
    try:
        yield
    except OSError as error:
        if error.errno in _DAMAGE:
            raise Corrupt(f"its files cannot be read: {os.strerror(error.errno)}") from error
        raise
