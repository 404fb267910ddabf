"""The token file: appears whole and once, for its owner only; anything else is refused."""

import multiprocessing
import os
import stat

import pytest

from app.security import TokenFileError, load_or_create_token, read_token


def test_a_token_is_created_once_for_its_owner_only(tmp_path):
    path = tmp_path / "data" / "token"
    token = load_or_create_token(path)
    assert load_or_create_token(path) == read_token(path) == token
    assert len(token) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_the_umask_cannot_open_the_token_to_others(tmp_path):
    before = os.umask(0)
    load_or_create_token(tmp_path / "token")
    os.umask(before)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_two_data_folders_have_different_tokens(tmp_path):
    assert load_or_create_token(tmp_path / "a") != load_or_create_token(tmp_path / "b")


def test_processes_that_create_a_token_at_once_agree_on_it(tmp_path):
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        tokens = pool.map(load_or_create_token, [tmp_path / "token"] * 16)
    assert set(tokens) == {read_token(tmp_path / "token")}
    assert list(tmp_path.iterdir()) == [tmp_path / "token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_token_file_open_to_others_is_refused(tmp_path, mode):
    load_or_create_token(tmp_path / "token")
    (tmp_path / "token").chmod(mode)
    with pytest.raises(TokenFileError, match="chmod 600"):
        load_or_create_token(tmp_path / "token")


@pytest.mark.parametrize("content", [b"", b"short", b"t" * 129, b"\xff" * 40, b"a b" * 20])
def test_a_file_that_holds_no_token_is_refused(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(TokenFileError, match="does not hold a token"):
        read_token(tmp_path / "token")


def test_a_folder_or_pipe_in_the_tokens_place_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("folder", "pipe"):
        with pytest.raises(TokenFileError, match="not a regular file"):
            load_or_create_token(tmp_path / name)


def test_a_data_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TokenFileError):
        load_or_create_token(tmp_path / "file" / "token")


def test_token_errors_tell_no_absolute_path(tmp_path):
    (tmp_path / "token").mkdir()
    with pytest.raises(TokenFileError) as caught:
        read_token(tmp_path / "token")
    assert str(tmp_path) not in str(caught.value)


def test_a_token_file_that_is_a_link_is_refused(tmp_path):
    load_or_create_token(tmp_path / "elsewhere")
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokenFileError, match="cannot be read"):
        load_or_create_token(tmp_path / "token")


def test_a_dangling_link_is_never_written_through(tmp_path):
    (tmp_path / "token").symlink_to(tmp_path / "target")
    with pytest.raises(TokenFileError, match="cannot be read"):
        load_or_create_token(tmp_path / "token")
    assert not (tmp_path / "target").exists()
