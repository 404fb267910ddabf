"""Atomic writes: old or new after any failure, never torn; one process per folder."""

import errno
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import atomic
from storage.errors import Conflict, FolderLocked, Invalid, NoSpace

OLD, NEW = b"old" * 1000, b"new" * 2000


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_bytes_text_and_json_are_written_whole_and_private(tmp_path: Path) -> None:
    atomic.write_bytes(tmp_path / "b", NEW)
    atomic.write_text(tmp_path / "t", "né")
    atomic.write_json(tmp_path / "j", {"b": 1, "a": [None]})
    assert (tmp_path / "b").read_bytes() == NEW
    assert (tmp_path / "t").read_text("utf-8") == "né"
    assert (tmp_path / "j").read_text() == '{"a":[null],"b":1}'
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600
    assert _names(tmp_path) == {"b", "t", "j"}


def test_the_mode_is_the_one_asked_for(tmp_path: Path) -> None:
    atomic.write_bytes(tmp_path / "b", NEW, mode=0o400)
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o400


def test_what_is_no_json_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        atomic.write_json(tmp_path / "j", float("nan"))
    assert _names(tmp_path) == set()


def test_a_write_replaces_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(OLD)
    (tmp_path / "b").symlink_to(target)
    atomic.write_bytes(tmp_path / "b", NEW)
    assert target.read_bytes() == OLD
    assert not (tmp_path / "b").is_symlink()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    atomic.write_bytes(tmp_path / "b", NEW)
    assert (tmp_path / "b").read_bytes() == NEW


def _every_failure(faults: Any, code: int, *, dead: bool) -> Iterator[int]:
    """Numbers of operations until one that is never reached; at least one must have been."""
    for n in itertools.count():
        yield n
        if not faults.fired:
            assert n > 5
            return


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("dead", [False, True])
def test_a_write_failing_anywhere_leaves_the_old_bytes_or_the_new(
    tmp_path: Path, faults: Any, code: int, dead: bool
) -> None:
    path = tmp_path / "b"
    for n in _every_failure(faults, code, dead=dead):
        path.write_bytes(OLD)
        raised: BaseException | None = None
        with faults.at(n, code, dead=dead):
            try:
                atomic.write_bytes(path, NEW)
            except (OSError, NoSpace) as error:
                raised = error
        assert (raised is not None) == faults.fired
        if faults.fired:
            assert isinstance(raised, OSError if code == errno.EIO else NoSpace)
        assert path.read_bytes() in ((OLD, NEW) if faults.fired else (NEW,))
        assert atomic.remove_leftovers(tmp_path) == 0 or dead
        assert _names(tmp_path) == {"b"}


def test_no_space_names_the_file_and_not_its_path(tmp_path: Path, faults: Any) -> None:
    with faults.at(1, errno.ENOSPC), pytest.raises(NoSpace, match=r"to write state\.bin") as caught:
        atomic.write_bytes(tmp_path / "state.bin", NEW)
    assert str(tmp_path) not in str(caught.value)


def test_a_clean_up_that_fails_too_is_noted_on_the_first_error(tmp_path: Path, faults: Any) -> None:
    with faults.at(1, errno.EIO, dead=True), pytest.raises(OSError, match="Input") as caught:
        atomic.write_bytes(tmp_path / "b", NEW)
    assert any("could not be deleted" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("dead", [False, True])
def test_a_folder_is_published_whole_or_not_at_all(tmp_path: Path, faults: Any, dead: bool) -> None:
    for n in _every_failure(faults, errno.ENOSPC, dead=dead):
        temporary, final = tmp_path / f"t{n}", tmp_path / f"f{n}"
        temporary.mkdir()
        for name in ("a", "b"):
            (temporary / name).write_bytes(NEW)
        raised = False
        with faults.at(n, errno.ENOSPC, dead=dead):
            try:
                atomic.publish_dir(temporary, final)
            except NoSpace:
                raised = True
        assert raised == faults.fired
        assert temporary.exists() != final.exists()
        whole = final if final.exists() else temporary
        assert {entry.name: entry.read_bytes() for entry in whole.iterdir()} == {
            "a": NEW,
            "b": NEW,
        }


@pytest.mark.parametrize("occupied", [False, True])
def test_a_folder_is_never_published_over_another(tmp_path: Path, occupied: bool) -> None:
    temporary, final = tmp_path / "t", tmp_path / "f"
    temporary.mkdir()
    final.mkdir()
    if occupied:
        (final / "a").write_bytes(OLD)
    with pytest.raises(Conflict, match="f exists already"):
        atomic.publish_dir(temporary, final)
    assert temporary.exists()
    assert _names(final) == ({"a"} if occupied else set())


def test_leftovers_of_a_crash_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "keep").write_bytes(OLD)
    atomic.temporary_beside(tmp_path / "keep").write_bytes(OLD)
    folder = atomic.temporary_beside(tmp_path / "keep")
    folder.mkdir()
    (folder / "x").write_bytes(OLD)
    link = atomic.temporary_beside(tmp_path / "keep")
    link.symlink_to(tmp_path)
    assert atomic.remove_leftovers(tmp_path) == 3
    assert _names(tmp_path) == {"keep"}


_KILLED_AT = """
import os, signal, sys
from pathlib import Path
from storage import atomic

path, fatal = Path(sys.argv[1]), int(sys.argv[2])
count = 0

def dying(real):
    def call(*args, **kwargs):
        global count
        count += 1
        if count == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call

for name in ("open", "write", "fsync", "close", "replace"):
    setattr(os, name, dying(getattr(os, name)))
atomic.write_bytes(path, b"new" * 2000)
"""


def test_a_process_killed_at_any_operation_leaves_the_old_bytes_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "b"
    for fatal in itertools.count(1):
        path.write_bytes(OLD)
        command = [sys.executable, "-c", _KILLED_AT, str(path), str(fatal)]
        code = subprocess.run(command, check=False, cwd=_root()).returncode
        assert code in (0, -signal.SIGKILL)
        assert path.read_bytes() in ((NEW,) if code == 0 else (OLD, NEW))
        atomic.remove_leftovers(tmp_path)
        assert _names(tmp_path) == {"b"}
        if code == 0:
            assert fatal > 5
            return


def _root() -> Path:
    """The folder the packages are imported from, for a process of our own."""
    return Path(atomic.__file__).parents[1]


_HOLDER = """
import sys
from pathlib import Path
from storage.atomic import FolderLock

with FolderLock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=_root()) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(FolderLocked, match="another nightowl process"):
            atomic.FolderLock(tmp_path).acquire()
        holder.kill()
    with atomic.FolderLock(tmp_path):
        assert (tmp_path / atomic.LOCK_NAME).exists()


def test_a_lock_is_exclusive_within_a_process_and_can_be_taken_again(tmp_path: Path) -> None:
    lock = atomic.FolderLock(tmp_path)
    with lock, pytest.raises(FolderLocked):
        atomic.FolderLock(tmp_path).acquire()
    lock.release()
    with lock:
        pass


def test_a_lock_that_cannot_be_asked_for_is_an_error_and_leaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(atomic.fcntl, "flock", no_locks)
    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(OSError, match="locks"):
        atomic.FolderLock(tmp_path).acquire()
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_written_json_reads_back(tmp_path: Path) -> None:
    value = {"ü": [1, 2.5, None, True], "nested": {"z": "\u2028"}}
    atomic.write_json(tmp_path / "j", value)
    assert json.loads((tmp_path / "j").read_text("utf-8")) == value
