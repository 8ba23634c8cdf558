from __future__ import annotations

import pwd
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moontide.kvstore.errors import AccessDenied, InvalidRequest
from moontide.kvstore.service import default_token_file, load_or_create_token


def test_r60_a_missing_token_is_made_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "state" / "token"
    token = load_or_create_token(path)
    assert len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_token(path) == token
    assert list(path.parent.iterdir()) == [path]


def test_processes_that_start_at_once_get_one_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(load_or_create_token, [tmp_path / "token"] * 32))
    assert len(tokens) == 1


def test_a_token_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("x" * 32)
    path.chmod(0o644)
    with pytest.raises(AccessDenied, match=r"mode 0644.*chmod 600"):
        load_or_create_token(path)


def test_a_directory_is_no_token_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is a directory"):
        load_or_create_token(tmp_path)


@pytest.mark.parametrize("content", ["", "short", "two words are no token at all", "é" * 32])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(InvalidRequest, match="holds no token"):
        load_or_create_token(path)


def test_a_token_that_cannot_be_made_says_where_and_what_helps(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "state" / "token"
    with pytest.raises(AccessDenied, match=rf"{path} cannot be made .*another --token-file"):
        load_or_create_token(path)


def test_without_a_home_directory_the_flag_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(InvalidRequest, match="give --token-file"):
        default_token_file(None)
    assert default_token_file("/s") == Path("/s/moontide/token")


def test_the_default_place_is_shared_by_a_users_daemons() -> None:
    assert default_token_file("/s") == Path("/s/moontide/token")
    assert default_token_file(None) == Path.home() / ".local/state/moontide/token"
