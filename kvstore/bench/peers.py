"""What a user would take instead, each in an environment of its own that pip fills once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..service import SettingsError
from .contestants import ContestantFailed

INSTALL_SECONDS = 900.0
MOONCAKE_PACKAGES = ("mooncake-transfer-engine-non-cuda==0.3.13.post1",)
"""Without .post1 the wheel of 0.3.13 needs libcudart."""
MOONCAKE_NEEDS = "apt-get install libibverbs1 libnuma1 libcurl4"
_DONE = ".installed"


@dataclass(frozen=True, slots=True)
class Peer:
    """`packages` are pinned: figures of another version are figures of something else."""

    module: str  # of drivers
    packages: tuple[str, ...]
    needs: str = ""  # beside Python packages, for people
    most_call_bytes: int = 1 << 40  # larger calls are nobody's use of it, and take minutes
    keeps_values: bool = False  # in the process whose memory is told

    @property
    def environment(self) -> str:
        """Name of its folder: changes with what is in it."""
        name, _, version = self.packages[0].partition("==")
        return f"{name.partition('[')[0]}-{version}"


def chosen_peers(against: str, peers: Mapping[str, Peer], peer_dir: Path | None) -> tuple[str, ...]:
    """Names of `--against A,B`, each once; `peer_dir` is what --peer-dir says. Raises
    SettingsError."""
    if peer_dir is not None and not against:
        raise SettingsError("--peer-dir has no effect without --against: leave it out")
    names = tuple(dict.fromkeys(map(str.strip, against.split(",")))) if against else ()
    for name in names:
        if name not in peers:
            raise SettingsError(f"--against names {name!r}; known are {', '.join(peers)}")
    return names


def default_peer_dir() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "moontide" / "bench"


def is_installed(peer: Peer, directory: Path) -> bool:
    return (directory / peer.environment / _DONE).exists()


def peer_python(peer: Peer, directory: Path) -> Path:
    """The interpreter of the peer's environment, which is made when missing. Raises
    ContestantFailed when it cannot be."""
    home = directory / peer.environment
    python = home / "bin" / "python"
    if not is_installed(peer, directory):
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        _run([str(python), "-m", "pip", "install", "--quiet", *peer.packages])
        (home / _DONE).write_text("\n".join(peer.packages) + "\n")
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ContestantFailed(f"cannot install: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        told = " | ".join(lines) or done.stderr[-300:]
        raise ContestantFailed(f"cannot install: {' '.join(command[-3:])}: {told}")
