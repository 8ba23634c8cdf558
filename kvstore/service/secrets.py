"""The cluster token: one secret in a file that only its owner reads."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from ..errors import AccessDenied, InvalidRequest

_TOKEN_BYTES = 32
_MAX_FILE_BYTES = 4096
_TOKEN = re.compile(r"[!-~]{16,}")


def default_token_file(state_home: str | None) -> Path:
    """Shared by every daemon and tool this user starts without `--token-file`. `state_home` is
    $XDG_STATE_HOME. Raises InvalidRequest where there is no home directory."""
    if state_home:
        return Path(state_home) / "moontide" / "token"
    try:
        return Path.home() / ".local" / "state" / "moontide" / "token"
    except RuntimeError as error:  # no $HOME, and an id without an entry in /etc/passwd
        raise InvalidRequest("there is no home directory for a token: give --token-file") from error


def load_or_create_token(path: Path) -> str:
    """The token in `path`; a missing file is made with a new one, mode 0600. Two processes that
    start at once get the same token. Raises AccessDenied for a file others can read or
    that cannot be made, InvalidRequest for one without a token."""
    path = Path(path)
    if not path.exists():
        _create(path)
    if path.is_dir():
        raise InvalidRequest(f"token file {path} is a directory: give the file itself")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise AccessDenied(
            f"token file {path} has mode {mode:04o}, others can read it: chmod 600 {path}"
        )
    with path.open("rb") as file:
        token = file.read(_MAX_FILE_BYTES).decode("latin-1").strip()
    if _TOKEN.fullmatch(token) is None:
        raise InvalidRequest(
            f"token file {path} holds no token (one line of 16 or more printable ASCII "
            f"characters); remove it to have a new one made"
        )
    return token


def _create(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise AccessDenied(
            f"token file {path} cannot be made ({error.strerror}): give another --token-file"
        ) from error
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        os.link(draft, path)  # atomic, and fails when another process was first
    except FileExistsError:
        pass
    finally:
        draft.unlink()
