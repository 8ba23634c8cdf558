"""A prompt's KV lies on another node, behind a link that is mostly too slow to be worth it."""

from __future__ import annotations

import contextlib
import secrets
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from moontide.kvstore.bench import Row, Spread
from moontide.kvstore.membership import FileMembership, StoreRecord

from .client import Client, FirstToken
from .controls import Controls, until
from .measuring import Asker, Prompts, Say, ratio_row
from .processes import Cluster
from .throttle import ThrottledRelay

LINKS = {"unthrottled": 1e10, "100 Mbit/s": 12.5e6, "10 Mbit/s": 1.25e6, "1 Mbit/s": 1.25e5}
"""Bytes a second, falling: what the worker has measured before is then always too good."""
_LEASE_SECONDS = 3600.0
BOUND_SHARE = 1.15
BOUND_SECONDS = 0.02
"""A first token is to come within that share of what is faster, cold or loading, and so long."""


class _Peers(msgspec.Struct, frozen=True):
    indexed_blocks: int


class _Stats(msgspec.Struct, frozen=True):
    tiers: dict[str, msgspec.Raw]
    hbm_blocks: int
    peers: _Peers | None


class _Entries(msgspec.Struct, frozen=True):
    entries: int


def with_one_token(*directories: Path) -> None:
    """Makes them, for clusters that talk to each other."""
    token = secrets.token_hex(32)
    for directory in directories:
        directory.mkdir()
        token_file = directory / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(token)


@contextlib.contextmanager
def linked(home: Path, other: Path) -> Iterator[ThrottledRelay]:
    """Of two clusters of one node each, given their memberships: the node of `other` reads from
    that of `home`, through the relay and nobody else does."""
    [record] = [
        member.record
        for member in FileMembership(home).members()
        if isinstance(member.record, StoreRecord)
    ]
    with ThrottledRelay(record.transfer_address, LINKS["unthrottled"]) as relay:
        behind = msgspec.structs.replace(record, id="home", transfer_address=relay.address)
        membership = FileMembership(other)
        registration = membership.register(behind, _LEASE_SECONDS)
        try:
            yield relay
        finally:
            membership.leave(registration)


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt: cold, and at the node that may load it."""

    cold_s: float
    remote: FirstToken

    def of_bound(self, load_s: float) -> float:
        """`load_s`: what the link alone needs for all of its full blocks."""
        bound_s = min(self.cold_s, load_s) * BOUND_SHARE + BOUND_SECONDS
        return self.remote.seconds / bound_s


def link_row(name: str, pairs: Sequence[Pair], load_s: float) -> Row:
    """`load_s` is 0 where the link is as fast as the machine: then cold alone is to be beaten."""
    remote = [pair.remote.seconds for pair in pairs]
    tokens = [pair.remote.cached_tokens for pair in pairs]
    cold = [pair.cold_s for pair in pairs]
    row = ratio_row(f"remote TTFT, {name} / cold TTFT", "seconds", remote, cold)
    told = [row.note, f"loaded tokens {', '.join(map(str, tokens))}"]
    if load_s:
        of_bound = statistics.median(pair.of_bound(load_s) for pair in pairs)
        told += [f"loading alone {load_s:.3g} s", f"{of_bound:.3g} of the bound"]
    figures = {**row.ours, "loaded_tokens": Spread.of(tokens)}
    return msgspec.structs.replace(row, ours=figures, note="; ".join(told))


class ThrottledBench:
    """Each prompt cold at one worker, then at the other, which may read it or compute it."""

    def __init__(
        self,
        model: str,
        home: Cluster,
        other: Cluster,
        relay: ThrottledRelay,
        prompts: Prompts,
        say: Say,
    ) -> None:
        self._clusters = (home, other)
        self._model = model
        self._relay = relay
        self._prompts = prompts
        self._say = say
        self._workers = [Client(each.workers[0].url, each.token) for each in self._clusters]
        self._stores = [Client(each.nodes[0].admin, each.token) for each in self._clusters]
        self._controls = [Controls(each) for each in self._clusters]
        self._home = Asker(self._workers[0], model)
        self._prompt_bytes = 0  # of all full blocks of a prompt, once they were loaded

    def run(self, pairs: int, links: Sequence[str] = tuple(LINKS)) -> list[Row]:
        """Raises CommandFailed."""
        for worker in self._workers:
            Asker(worker, self._model).cold(self._prompts.next())  # warms up
        return [self._link(name, LINKS[name], pairs) for name in LINKS if name in links]

    def _link(self, name: str, bytes_per_s: float, pairs: int) -> Row:
        self._relay.bytes_per_s = bytes_per_s
        measured = []
        for index in range(pairs):
            self._say(f"remote, {name}, pair {index + 1} of {pairs}")
            prompt = self._prompts.next()
            cold = self._home.cold(prompt)
            self._settle()
            remote = self._workers[1].first_token(self._model, prompt)
            measured.append(Pair(cold.seconds, remote))
            if remote.cached_tokens == self._prompts.full_block_tokens:
                self._prompt_bytes = sum(remote.evidence.bytes_by_transport.values())
        is_slow = bytes_per_s < LINKS["unthrottled"]
        return link_row(name, measured, self._prompt_bytes / bytes_per_s if is_slow else 0.0)

    def _settle(self) -> None:
        """The other node has nothing but knowledge of what the first one has."""
        for controls, cluster in zip(self._controls, self._clusters, strict=True):
            controls.settle()
            controls.clear_engine_caches()
            if cluster is self._clusters[1]:
                controls.clear_store(cluster.nodes[0].id)
        until(self._is_known, "the other node does not know what the first one has")

    def _is_known(self) -> bool:
        home, other = (store.get("/v1/stats", _Stats) for store in self._stores)
        dram = msgspec.json.decode(home.tiers["dram"], type=_Entries)
        return other.peers is not None and (
            other.peers.indexed_blocks == dram.entries + home.hbm_blocks
        )
