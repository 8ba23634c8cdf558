"""Value types of settings that are more than a string: sizes, addresses, secrets.

A type with a `parse(text)` classmethod that raises ValueError is a setting type: `load_settings`
hands it the text, `str()` gives text that `parse` accepts again.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple, Self

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")
_MAX_PORT = 65535


class Size(int):
    """A number of bytes. Text: `4096`, `64KiB`, `64MiB`, `1GiB`, `2TiB`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _SIZE.fullmatch(text.strip())
        unit = {name.lower(): factor for name, factor in _UNITS.items()}.get(
            match[2].lower() if match else "?"
        )
        if match is None or unit is None:
            raise ValueError(f"{text!r} is no size: write bytes or a unit, e.g. 4096, 64MiB, 1GiB")
        return cls(int(match[1]) * unit)

    def __str__(self) -> str:
        for name in ("TiB", "GiB", "MiB", "KiB"):
            if self and self % _UNITS[name] == 0:
                return f"{int(self) // _UNITS[name]}{name}"
        return int.__repr__(self)

    def __repr__(self) -> str:
        return f"Size({self!s})"


class HostPort(NamedTuple):
    """Where to listen or connect. Text: `127.0.0.1:7421`, `[::1]:7421`, `node-3:7421`."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostPort:
        host, separator, port = text.strip().rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if not separator or not host or (":" in host and not bracketed) or not port.isascii():
            raise ValueError(f"{text!r} is no address: write HOST:PORT, e.g. 127.0.0.1:7421")
        if not port.isdigit() or int(port) > _MAX_PORT:
            raise ValueError(f"port {port!r} in {text!r}: write 0 to {_MAX_PORT} (0: any free one)")
        return cls(host[1:-1] if bracketed else host, int(port))

    @property
    def is_wildcard(self) -> bool:
        """Every address of this machine: good to listen on, of no use to whoever is told it."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Secret(str):
    """Text that is never shown: `str()` and `repr()` mask it, `reveal()` gives it."""

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(text)

    def reveal(self) -> str:
        return str.__str__(self)

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return "Secret(***)"


def human_size(num_bytes: float) -> str:
    """For people: four digits and a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"
