"""The API keys that clients of the Conductor show."""

from __future__ import annotations

from pathlib import Path

from moontide.kvstore.service import SettingsError

MAX_FILE_BYTES = 1 << 20
MIN_KEY_CHARS = 8


def read_api_keys(path: Path) -> list[str]:
    """One key a line; empty lines and lines that start with # are skipped. Raises SettingsError
    when there is no file, none in it or one is malformed (it is named by line, never shown),
    OSError."""
    if not path.is_file():
        raise SettingsError(f"api_keys_file {path} is no file: give one with a key a line")
    with path.open("rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise SettingsError(f"api_keys_file {path} has over {MAX_FILE_BYTES} bytes")
    keys = []
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
            raise SettingsError(
                f"api_keys_file {path}, line {number}: a key is one word of at least "
                f"{MIN_KEY_CHARS} printable ASCII characters"
            )
        keys.append(key)
    if not keys:
        raise SettingsError(f"api_keys_file {path} holds no key; add one, or leave the option out")
    return keys
