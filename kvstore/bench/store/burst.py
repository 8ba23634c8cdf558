"""More than DRAM holds, at once, into a store with an NVMe tier."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..contestants import Contestant, driver_command
from ..drivers.store.nvme import BATCH
from ..report import GIGABYTE, Row, Spread, ratio_interval
from ..rounds import LIMIT, OURS, Contestants, Say
from .cases import MiB
from .daemon import running_daemon

BLOCK_BYTES = MiB
BURST_OF_DRAM = 3


@dataclass(frozen=True, slots=True)
class Burst:
    """Blocks three times as many as DRAM holds, into a store with an NVMe tier of its own."""

    directory: Path
    dram_bytes: int
    rounds: int
    say: Say

    def rows(self) -> list[Row]:
        count = BURST_OF_DRAM * self.dram_bytes // BLOCK_BYTES
        with self._contestants() as contestants:
            written, read = [], []
            for number in range(self.rounds + 1):
                blocks = {"block_bytes": BLOCK_BYTES, "count": count, "first": number * count}
                written.append(self._round(contestants, "direct_write", "burst", blocks))
                read.append(self._round(contestants, "direct_read", "read_back", blocks))
                contestants.ask(OURS, {"do": "clear"})
        return [
            self._write_row(count, written[1:]),
            self._read_row(count, read[1:]),
        ]

    @contextlib.contextmanager
    def _contestants(self) -> Iterator[Contestants]:
        flags = ["--dram", str(self.dram_bytes), "--nvme-backlog", "refuse"]
        flags += ["--nvme", str(2 * BURST_OF_DRAM * self.dram_bytes)]
        settings = {"pool_bytes": BLOCK_BYTES, "area_bytes": BLOCK_BYTES, "touch": False}
        with (
            running_daemon(self.directory, *flags) as daemon,
            Contestants(self.say) as contestants,
        ):
            own = {**settings, **daemon.settings(), "checksums": "on"}
            for name, module, given in (
                (OURS, "store.ours", own),
                (LIMIT, "store.limits", settings),
            ):
                log = self.directory / f"nvme-{name}.log"
                contestants.enter(Contestant(name, driver_command(module), log), given)
            yield contestants

    def _round(
        self, contestants: Contestants, limit: str, ours: str, blocks: Mapping[str, int]
    ) -> tuple[float, dict[str, float]]:
        raw = {"do": limit, "path": str(self.directory / "raw"), **blocks}
        seconds: float = contestants.ask(LIMIT, raw)
        answer: dict[str, float] = contestants.ask(OURS, {"do": ours, **blocks})
        return seconds, answer

    def _write_row(self, count: int, rounds: Sequence[tuple[float, dict[str, float]]]) -> Row:
        seconds = [(raw, ours["flushed_seconds"]) for raw, ours in rounds]
        more = {
            "put_gb_per_s": [_gb(count, ours["taken_seconds"]) for _, ours in rounds],
            "retries": [ours["retries"] for _, ours in rounds],
        }
        return self._row(f"NVMe write, burst of 3× DRAM, {BATCH} a call", count, seconds, more)

    def _read_row(self, count: int, rounds: Sequence[tuple[float, dict[str, float]]]) -> Row:
        seconds = [(raw, ours["seconds"]) for raw, ours in rounds]
        more = {"lost": [ours["lost"] for _, ours in rounds]}
        return self._row(f"NVMe read back in order, {BATCH} a call", count, seconds, more)

    def _row(
        self,
        case: str,
        count: int,
        seconds: Sequence[tuple[float, float]],
        more: Mapping[str, Sequence[float]],
    ) -> Row:
        ours = {"gb_per_s": Spread.of([_gb(count, ours) for _, ours in seconds])}
        return Row(
            case=case,
            size_bytes=BLOCK_BYTES,
            ours={**ours, **{name: Spread.of(values) for name, values in more.items()}},
            limit={"gb_per_s": Spread.of([_gb(count, raw) for raw, _ in seconds])},
            ratio={LIMIT: ratio_interval(seconds).median},
            note=f"limit: sequential O_DIRECT; {count} blocks",
        )


def _gb(count: int, seconds: float) -> float:
    return count * BLOCK_BYTES / seconds / GIGABYTE
