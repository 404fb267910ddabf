"""Writes that are whole or did not happen, and the lock that keeps a folder to one process.

A write goes to a temporary file in the same folder, is synced, renamed over the old file, and the
folder is synced. A crash or an error at any step leaves the old content or the new, never a mix;
a crash can leave a temporary file behind, which `remove_leftovers` takes away at the next start.
`fsync` is what the operating system makes of it: on macOS the drive's own cache is not flushed.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from storage.errors import Conflict, FolderLocked, NoSpace, is_no_space
from storage.values import canonical_json

TEMPORARY_PREFIX = ".nightowl-tmp-"
LOCK_NAME = ".lock"


def write_bytes(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replaces or creates a file. Raises NoSpace, or OSError as it is: the old content stays."""
    temporary = temporary_beside(path)
    with naming_no_space(path.name), removed_on_error(temporary):
        write_new(temporary, data, mode)
        os.replace(temporary, path)  # noqa: PTH105 (one name for each call that can fail)
        sync_folder(path.parent)


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """As `write_bytes`, in UTF-8."""
    write_bytes(path, text.encode(), mode)


def write_json(path: Path, value: Any, mode: int = 0o600) -> None:
    """As `write_bytes`, canonical JSON. Raises Invalid for what is no JSON."""
    write_text(path, canonical_json(value), mode)


def write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Creates a file that must not exist, writes all of it and syncs it; not atomic by itself."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def publish_dir(tmp_dir: Path, final_dir: Path) -> None:
    """Gives a finished folder of plain files its final name, in the same parent folder or disk.

    Its files and names are synced first. Raises Conflict, and leaves both as they are, when
    `final_dir` exists; NoSpace, or OSError as it is.
    """
    with naming_no_space(final_dir.name):
        for entry in sorted(tmp_dir.iterdir()):
            _sync_path(entry, os.O_RDONLY)
        sync_folder(tmp_dir)
        # A rename would silently take the place of an existing empty folder.
        if os.path.lexists(final_dir):
            raise Conflict(f"{final_dir.name} exists already")
        os.rename(tmp_dir, final_dir)  # noqa: PTH104
        sync_folder(final_dir.parent)


def temporary_beside(path: Path) -> Path:
    """An unused name in the same folder, which `remove_leftovers` recognises."""
    return path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")


def remove_leftovers(folder: Path) -> int:
    """Deletes temporary files and folders a crash left behind; returns how many.

    Only for the process that holds the folder's lock, before it starts writing.
    """
    found = list(folder.glob(f"{TEMPORARY_PREFIX}*"))
    for path in found:
        remove(path)
    return len(found)


def remove(path: Path) -> None:
    """Deletes a file, a link (not what it points to) or a whole folder. Missing is an error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    _sync_path(folder, os.O_RDONLY | os.O_DIRECTORY)


@contextmanager
def naming_no_space(name: str) -> Iterator[None]:
    """Turns a full disk or quota into NoSpace with the name of what was being written."""
    try:
        yield
    except OSError as error:
        if is_no_space(error):
            raise NoSpace(
                f"no space left to write {name}; what was stored before is untouched"
            ) from error
        raise


@contextmanager
def removed_on_error(temporary: Path) -> Iterator[None]:
    """Deletes a temporary file or folder when the block fails; notes it when that fails too."""
    try:
        yield
    except BaseException as error:
        try:
            if os.path.lexists(temporary):
                remove(temporary)
        except OSError as second:
            error.add_note(f"and what it had written could not be deleted: {second.strerror}")
        raise


class FolderLock:
    """An exclusive claim on a folder, held by one process until it is released or the process ends.

    Use as a context manager, or `acquire` and `release`. The lock file stays: deleting it would let
    a third process lock a new file of the same name while a second one waits on the old.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` must exist when the lock is acquired."""
        self._path = folder / LOCK_NAME
        self._fd: int | None = None

    def acquire(self) -> None:
        """Claims the folder. Raises FolderLocked at once when another holder is alive."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise FolderLocked(
                "another nightowl process uses this data folder; stop it or choose another folder"
            ) from error
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Gives the folder up; without a claim it does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        """Acquires."""
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases."""
        self.release()


def _sync_path(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
