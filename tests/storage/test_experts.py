"""Expert files: stored whole or not at all, and trusted only after every check."""

import errno
import hashlib
import itertools
import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save

from storage import experts
from storage.errors import Corrupt, Invalid, NoSpace, NotFound
from storage.experts import DataSnapshot, ExpertStore, Manifest, StoredExpert
from storage.values import canonical_json

ARRAYS = {
    "layers.0.q_proj": np.linspace(-1, 1, 6, dtype=np.float32),
    "layers.0.k_proj": np.ones((2, 3), np.float16),
}
MANIFEST = Manifest(
    kind="spectral",
    base_model="smollm2-135m",
    base_hash="b" * 64,
    basis="spectral",
    basis_hash="v" * 64,
    task="home",
    trainer="fura_s",
    config={"sigma": 0.04, "nested": {"list": [1, None, True]}},
    seed=2**63,
    parent=None,
    data=DataSnapshot(episode_ids=("ep_1", "ep_2"), hash="d" * 64),
    gate={"publish": True, "p_value": 0.001},
    created_at=datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
)


@pytest.fixture
def store(tmp_path: Path) -> ExpertStore:
    """An empty store in `experts`."""
    return ExpertStore(tmp_path / "experts")


@pytest.fixture
def stored(store: ExpertStore) -> StoredExpert:
    """An expert that is in it."""
    return store.put(ARRAYS, MANIFEST)


@pytest.fixture
def folder(tmp_path: Path, stored: StoredExpert) -> Path:
    """That expert's folder."""
    return tmp_path / "experts" / stored.sha


def _plant(root: Path, manifest: bytes, data: bytes) -> str:
    """Puts files there as an attacker would: under the right name, whatever they hold."""
    sha = hashlib.sha256(manifest + data).hexdigest()
    (root / sha).mkdir(parents=True)
    (root / sha / experts.MANIFEST).write_bytes(manifest)
    (root / sha / experts.TENSORS).write_bytes(data)
    return sha


def _fields(data: bytes, **changes: Any) -> dict[str, Any]:
    """The manifest of a tensor file as a dict, with all hashes right."""
    fields = MANIFEST.model_dump(mode="json")
    return {**fields, "tensors_sha256": hashlib.sha256(data).hexdigest(), **changes}


def test_what_is_stored_is_loaded(store: ExpertStore, folder: Path) -> None:
    expert = store.load(folder.name)
    assert expert.manifest.model_copy(update={"tensors_sha256": None}) == MANIFEST
    assert expert.tensors.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert expert.tensors[name].dtype == array.dtype
        np.testing.assert_array_equal(expert.tensors[name], array)
    assert expert.nbytes == sum(entry.stat().st_size for entry in folder.iterdir())
    assert {entry.name for entry in folder.iterdir()} == {"manifest.json", "expert.safetensors"}


def test_the_name_is_the_hash_of_the_files(folder: Path) -> None:
    text, data = ((folder / name).read_bytes() for name in (experts.MANIFEST, experts.TENSORS))
    assert folder.name == hashlib.sha256(text + data).hexdigest()
    assert text.decode() == canonical_json(json.loads(text))
    assert json.loads(text)["tensors_sha256"] == hashlib.sha256(data).hexdigest()


def test_storing_again_changes_nothing(store: ExpertStore, stored: StoredExpert) -> None:
    again = store.put(dict(reversed(ARRAYS.items())), MANIFEST)
    assert (again.sha, again.manifest) == (stored.sha, stored.manifest)
    assert store.put(ARRAYS, stored.manifest).sha == stored.sha
    assert store.ids() == [stored.sha]


def test_another_manifest_or_another_tensor_is_another_expert(
    store: ExpertStore, stored: StoredExpert
) -> None:
    other = store.put(ARRAYS, MANIFEST.model_copy(update={"seed": 1}))
    third = store.put({"a": ARRAYS["layers.0.q_proj"]}, MANIFEST)
    assert store.ids() == sorted({stored.sha, other.sha, third.sha})


def test_a_manifest_knows_its_fields_and_its_timezone() -> None:
    fields = MANIFEST.model_dump()
    for change in ({"more": 1}, {"kind": "pickle"}, {"created_at": datetime(2026, 1, 1)}):
        with pytest.raises(ValidationError):
            Manifest(**{**fields, **change})


def test_a_deleted_expert_is_gone(store: ExpertStore, stored: StoredExpert, tmp_path: Path) -> None:
    store.delete(stored.sha)
    assert list((tmp_path / "experts").iterdir()) == []
    for operation in (store.load, store.delete):
        with pytest.raises(NotFound, match="no expert files"):
            operation(stored.sha)


@pytest.mark.parametrize("sha", ["", "..", "../../etc", "quarantine", "A" * 64, "0" * 64])
def test_what_is_no_stored_name_is_not_found(store: ExpertStore, sha: str) -> None:
    for operation in (store.load, store.delete):
        with pytest.raises(NotFound):
            operation(sha)


@pytest.mark.parametrize(
    "changes", [{"config": {"x": float("nan")}}, {"seed": "7"}, {"kind": "pickle"}, {"data": None}]
)
def test_a_manifest_that_could_not_be_read_back_is_not_stored(
    store: ExpertStore, changes: dict[str, Any]
) -> None:
    with pytest.raises(Invalid):
        store.put(ARRAYS, MANIFEST.model_copy(update=changes))
    assert store.ids() == []


def test_tensors_that_could_not_be_read_back_are_not_stored(store: ExpertStore) -> None:
    with pytest.raises(Invalid):
        store.put({"a": np.array([np.nan], np.float32)}, MANIFEST)
    assert store.ids() == []


def test_every_flipped_byte_is_noticed(store: ExpertStore, folder: Path) -> None:
    for name in (experts.MANIFEST, experts.TENSORS):
        good = (folder / name).read_bytes()
        for place in range(len(good)):
            damaged = bytearray(good)
            damaged[place] ^= 1 << (place % 8)
            (folder / name).write_bytes(damaged)
            with pytest.raises(Corrupt, match="do not have the hash they are named by"):
                store.load(folder.name)
        (folder / name).write_bytes(good)
    assert store.load(folder.name).sha == folder.name


def test_every_truncation_is_noticed(store: ExpertStore, folder: Path) -> None:
    for name in (experts.MANIFEST, experts.TENSORS):
        good = (folder / name).read_bytes()
        for length in range(len(good)):
            (folder / name).write_bytes(good[:length])
            with pytest.raises(Corrupt):
                store.load(folder.name)
        (folder / name).write_bytes(good)


def test_bytes_moved_from_one_file_to_the_other_are_noticed(
    store: ExpertStore, folder: Path
) -> None:
    text, data = ((folder / name).read_bytes() for name in (experts.MANIFEST, experts.TENSORS))
    (folder / experts.MANIFEST).write_bytes(text + data[:8])
    (folder / experts.TENSORS).write_bytes(data[8:])
    with pytest.raises(Corrupt, match="not JSON"):
        store.load(folder.name)


def _damage_missing(folder: Path) -> None:
    (folder / experts.MANIFEST).unlink()


def _damage_extra(folder: Path) -> None:
    (folder / "weights.pkl").write_bytes(b"x")


def _damage_link(folder: Path) -> None:
    (folder / experts.TENSORS).rename(folder.parent / "elsewhere")
    (folder / experts.TENSORS).symlink_to(folder.parent / "elsewhere")


def _damage_folder_link(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


def _damage_file(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.write_bytes(b"x")


def _damage_pipe(folder: Path) -> None:
    (folder / experts.TENSORS).unlink()
    os.mkfifo(folder / experts.TENSORS)


def _damage_subfolder(folder: Path) -> None:
    (folder / experts.TENSORS).unlink()
    (folder / experts.TENSORS).mkdir()


def _damage_huge(folder: Path) -> None:
    with (folder / experts.TENSORS).open("r+b") as file:
        file.truncate(experts.MAX_BYTES[experts.TENSORS] + 1)


def _damage_socket(folder: Path) -> None:
    (folder / experts.TENSORS).unlink()
    here = Path.cwd()
    os.chdir(folder)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(experts.TENSORS)
    finally:
        os.chdir(here)


DAMAGE: dict[Callable[[Path], None], str] = {
    _damage_missing: "exactly",
    _damage_extra: "exactly",
    _damage_link: "cannot be read",
    _damage_folder_link: "cannot be read",
    _damage_file: "cannot be read",
    _damage_pipe: "not a plain file",
    _damage_subfolder: "not a plain file",
    _damage_huge: "larger than",
    _damage_socket: "cannot be read",
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_folder_of_any_other_make_is_corrupt_and_goes_to_quarantine(
    store: ExpertStore, folder: Path, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    damage(folder)
    with pytest.raises(Corrupt, match=DAMAGE[damage]) as caught:
        store.load(folder.name)
    assert str(tmp_path) not in str(caught.value)
    bad = {entry.name: entry for entry in store.verify_all()}
    assert bad.keys() <= {folder.name, "elsewhere"}
    assert DAMAGE[damage] in bad[folder.name].reason
    assert os.path.lexists(tmp_path / "experts" / "quarantine" / bad[folder.name].moved_to)
    assert store.ids() == []
    assert store.verify_all() == []
    assert store.put(ARRAYS, MANIFEST).sha == folder.name


def _header_length(data: bytes) -> bytes:
    return (len(data)).to_bytes(8, "little") + data[8:]


@pytest.mark.parametrize(
    "data",
    [
        save({"a": np.array([np.nan], np.float32)}),
        save({"a": np.array([1], np.int64)}),
        save({"a": np.array([1], np.float64)}),
        save({"a": np.ones(1, np.float32)}, metadata={"format": "pt"}),
        _header_length(save({"a": np.ones(1, np.float32)})),
        save({"a": np.ones(1, np.float32)}) + b"\0",
        b"\x80\x04K\x01.",
        b"",
    ],
)
def test_a_foreign_tensor_file_with_right_hashes_is_corrupt(
    store: ExpertStore, tmp_path: Path, data: bytes
) -> None:
    sha = _plant(tmp_path / "experts", canonical_json(_fields(data)).encode(), data)
    with pytest.raises(Corrupt):
        store.load(sha)
    assert [bad.name for bad in store.verify_all()] == [sha]


GOOD_DATA = save({"a": np.ones(1, np.float32)})


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        canonical_json(_fields(GOOD_DATA, more=1)).encode(),
        canonical_json(_fields(GOOD_DATA, kind="pickle")).encode(),
        canonical_json(_fields(GOOD_DATA, seed="7")).encode(),
        canonical_json(_fields(GOOD_DATA, seed=True)).encode(),
        canonical_json(_fields(GOOD_DATA, created_at="2026-01-01T00:00:00")).encode(),
        canonical_json(_fields(GOOD_DATA, tensors_sha256=None)).encode(),
        canonical_json(_fields(GOOD_DATA, tensors_sha256="0" * 64)).encode(),
        json.dumps(_fields(GOOD_DATA)).encode(),
        canonical_json(_fields(GOOD_DATA)).encode()[:-1] + b',"seed":7}',
        canonical_json(_fields(GOOD_DATA, config={"x": 5})).encode().replace(b":5}", b":NaN}"),
        canonical_json(_fields(GOOD_DATA, config={"x": 5})).encode().replace(b":5}", b":1e999}"),
        canonical_json(_fields(GOOD_DATA, config={"x": "y" * (4 << 20)})).encode(),
    ],
)
def test_a_foreign_manifest_with_right_hashes_is_corrupt(
    store: ExpertStore, tmp_path: Path, manifest: bytes
) -> None:
    sha = _plant(tmp_path / "experts", manifest, GOOD_DATA)
    with pytest.raises(Corrupt):
        store.load(sha)


def test_a_well_made_foreign_expert_is_accepted(store: ExpertStore, tmp_path: Path) -> None:
    sha = _plant(tmp_path / "experts", canonical_json(_fields(GOOD_DATA)).encode(), GOOD_DATA)
    assert store.load(sha).tensors.keys() == {"a"}


def test_an_expert_above_the_size_limit_is_not_stored(
    store: ExpertStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(experts.MAX_BYTES, experts.TENSORS, 10)
    with pytest.raises(Invalid, match="larger than 10 bytes"):
        store.put(ARRAYS, MANIFEST)


def test_good_experts_stay_where_they_are(
    store: ExpertStore, stored: StoredExpert, folder: Path, tmp_path: Path
) -> None:
    (folder / ".DS_Store").write_bytes(b"finder")
    (tmp_path / "experts" / ".DS_Store").write_bytes(b"finder")
    assert store.verify_all() == []
    assert store.load(stored.sha).sha == stored.sha


def test_foreign_entries_and_leftovers_are_cleared_away(
    store: ExpertStore, stored: StoredExpert, tmp_path: Path
) -> None:
    root = tmp_path / "experts"
    (root / "notes.txt").write_text("mine")
    (root / ".nightowl-tmp-0123").mkdir()
    (root / "quarantine").symlink_to(tmp_path)
    [bad] = store.verify_all()
    assert (bad.name, bad.reason) == ("notes.txt", "it is not named like an expert")
    assert (root / "quarantine" / bad.moved_to).read_text() == "mine"
    assert {entry.name for entry in root.iterdir()} == {stored.sha, "quarantine"}
    assert {entry.name for entry in tmp_path.iterdir()} == {"experts"}


def test_two_of_one_name_in_quarantine_are_both_kept(
    store: ExpertStore, folder: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        (folder / experts.MANIFEST).write_bytes(b"{}")
        assert len(store.verify_all()) == 1
        store.put(ARRAYS, MANIFEST)
    assert len(list((tmp_path / "experts" / "quarantine").iterdir())) == 2


def test_storing_an_expert_again_repairs_a_damaged_one(store: ExpertStore, folder: Path) -> None:
    (folder / experts.TENSORS).write_bytes(b"torn")
    assert store.put(ARRAYS, MANIFEST).sha == folder.name
    assert store.load(folder.name).sha == folder.name


def test_trouble_that_is_not_the_experts_leaves_it_where_it_is(
    store: ExpertStore, stored: StoredExpert, faults: Any
) -> None:
    with faults.at(0, errno.EMFILE), pytest.raises(OSError, match="Too many open files"):
        store.load(stored.sha)
    with faults.at(0, errno.EMFILE), pytest.raises(OSError, match="Too many open files"):
        store.verify_all()
    assert store.verify_all() == []


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_put_failing_anywhere_stores_all_or_nothing(
    tmp_path: Path, faults: Any, code: int, dead: bool
) -> None:
    root = tmp_path / "experts"
    store = ExpertStore(root)
    kept = store.put({"kept": np.ones(1, np.float32)}, MANIFEST).sha
    for n in itertools.count():
        raised: BaseException | None = None
        with faults.at(n, code, dead=dead):
            try:
                store.put(ARRAYS, MANIFEST)
            except (OSError, NoSpace) as error:
                raised = error
        assert (raised is not None) == faults.fired
        if faults.fired and code == errno.ENOSPC:
            assert isinstance(raised, NoSpace)
            assert str(tmp_path) not in str(raised)
        assert dead or not list(root.glob(".nightowl-tmp-*"))
        assert store.verify_all() == []
        assert not list(root.glob(".nightowl-tmp-*"))
        assert store.load(kept).sha == kept
        for sha in set(store.ids()) - {kept}:
            store.load(sha)
            store.delete(sha)
        if not faults.fired:
            assert n > 10
            return


def test_a_delete_failing_anywhere_leaves_all_or_nothing(
    store: ExpertStore, faults: Any, tmp_path: Path
) -> None:
    for n in itertools.count():
        sha = store.put(ARRAYS, MANIFEST).sha
        with faults.at(n, errno.EIO, dead=True):
            try:
                store.delete(sha)
            except OSError:
                assert faults.fired
        assert store.verify_all() == []
        assert store.ids() in ([], [sha])
        if not faults.fired:
            assert n > 3
            return


def test_a_full_disk_while_moving_to_quarantine_is_no_space(
    store: ExpertStore, folder: Path, faults: Any
) -> None:
    (folder / experts.MANIFEST).write_bytes(b"{}")
    for n in itertools.count():
        with faults.at(n, errno.ENOSPC):
            try:
                moved = store.verify_all()
            except NoSpace as error:
                assert "quarantine" in str(error)
                continue
            except OSError:
                continue
        if not faults.fired:
            break
    assert store.ids() == []
    assert len(moved) <= 1


def test_threads_storing_one_expert_store_it_once(store: ExpertStore, tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def work(_: int) -> str:
        barrier.wait()
        return store.put(ARRAYS, MANIFEST).sha

    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(work, range(8)))
    assert [entry.name for entry in (tmp_path / "experts").iterdir()] == list(names)
