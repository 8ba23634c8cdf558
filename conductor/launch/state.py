"""The state file: what runs, for tools and tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec


class ConductorState(msgspec.Struct, frozen=True):
    url: str
    pid: int


class NodeState(msgspec.Struct, frozen=True):
    id: str
    socket: str
    listen: str
    admin: str
    data_dir: str
    pid: int


class WorkerState(msgspec.Struct, frozen=True):
    id: str
    role: Literal["prefill", "decode", "both"]
    node: str
    url: str
    pid: int


class ClusterState(msgspec.Struct, frozen=True):
    conductor: ConductorState
    token_file: str
    nodes: tuple[NodeState, ...]
    workers: tuple[WorkerState, ...]


def write_state(path: Path, state: ClusterState) -> None:
    """Atomically: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
    draft.replace(path)
