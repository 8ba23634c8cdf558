"""An NVMe tier with blocking calls for tests, and entries whose bytes follow from their names."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from moontide.kvstore.nvme import ExtentRead, NvmeEntry, NvmeSettings, NvmeTier, NvmeWrite
from moontide.kvstore.nvme.index_scan import scan
from moontide.kvstore.nvme.probe import Probe
from moontide.kvstore.nvme.storage import Storage
from moontide.transfer import aligned_buffer, checksum

MIB = 1 << 20
NAMESPACE = "ab" * 32
WAIT_SECONDS = 30.0


def content(entry: bytes, *, extents: int = 3, extent_bytes: int = 4096) -> list[memoryview]:
    """The bytes that belong to a name."""
    source = random.Random(entry)
    return [memoryview(source.randbytes(extent_bytes)) for _ in range(extents)]


def names(start: int, stop: int, prefix: str = "k") -> list[bytes]:
    return [f"{prefix}{number:016d}".encode() for number in range(start, stop)]


class Rig:
    """`stored` and `removed` are what the callbacks told. The index is probed in this process."""

    def __init__(
        self,
        directory: Path,
        *,
        capacity_bytes: int = 16 * MIB,
        region_bytes: int | None = MIB,
        storage: Storage | None = None,
        probe: Probe = scan,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], int] = lambda: 0,
        comes_again: Callable[[bytes], bool] = lambda _: False,
        **settings: object,
    ) -> None:
        self.calls: deque[Callable[[], None]] = deque()
        self.stored: list[NvmeEntry] = []
        self.removed: list[NvmeEntry] = []
        self.tier = NvmeTier.open(
            NvmeSettings(
                directory=directory,
                capacity_bytes=capacity_bytes,
                region_bytes=region_bytes,
                free_floor_bytes=settings.pop("free_floor_bytes", 0),  # type: ignore[arg-type]  # forwarded
                **settings,  # type: ignore[arg-type]  # forwarded
            ),
            post=self.calls.append,
            on_stored=self.stored.extend,
            on_removed=self.removed.extend,
            comes_again=comes_again,
            storage=storage,
            probe=probe,
            clock=clock,
            today=today,
        )

    def wait(self, until: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not until():
            assert time.monotonic() < deadline
            if self.calls:
                self.calls.popleft()()
            else:
                time.sleep(0.0005)

    def submit(
        self,
        entry: bytes,
        data: Sequence[memoryview] | None = None,
        done: Callable[[bool], None] = lambda _: None,
        *,
        namespace: str = NAMESPACE,
        element_bytes: int = 1,
    ) -> bool:
        extents = content(entry) if data is None else data
        sums = [checksum(extent) for extent in extents]
        return self.tier.write(
            NvmeWrite(entry, namespace, b"parent", extents, sums, element_bytes), done
        )

    def put_many(self, entries: Iterable[bytes]) -> list[bool]:
        """In order; waits when the queue is full."""
        results: list[bool] = []
        count = 0
        for entry in entries:
            self.wait(lambda entry=entry: self.submit(entry, done=results.append))
            count += 1
        self.hurry()
        self.wait(lambda: len(results) == count)
        return results

    def put(self, entry: bytes, data: Sequence[memoryview] | None = None, **how: object) -> bool:
        results: list[bool] = []
        assert self.submit(entry, data, results.append, **how)  # type: ignore[arg-type]  # forwarded
        self.hurry()
        self.wait(lambda: results)
        return results[0]

    def hurry(self) -> None:
        """Ends the wait for company of what is queued."""
        self.tier.drop([], lambda _: None)

    def get(self, entry: bytes) -> list[bytes | None] | None:
        """Extents, None for one that failed; None for a miss."""
        return self.get_many([entry])[0]

    def get_many(self, entries: Sequence[bytes]) -> list[list[bytes | None] | None]:
        found = self.tier.locate(entries)
        requests = [
            ExtentRead(location, extent, aligned_buffer(length)[:length])
            for location in found
            if location is not None
            for extent, length in enumerate(location.extent_lengths)
        ]
        results: list[Sequence[bool]] = []
        assert self.tier.read(requests, results.append)
        self.wait(lambda: results)
        parts = [
            bytes(request.destination) if good else None
            for request, good in zip(requests, results[0], strict=True)
        ]
        values: list[list[bytes | None] | None] = []
        for location in found:
            if location is None:
                values.append(None)
            else:
                values.append(parts[: location.num_extents])
                parts = parts[location.num_extents :]
        return values

    def hits(self, entries: Sequence[bytes]) -> list[bytes]:
        """Entries that come back whole; asserts that no wrong byte comes back."""
        good = []
        for entry, value in zip(entries, self.get_many(entries), strict=True):
            right = [bytes(extent) for extent in content(entry)]
            for part, expected in zip(value or [], right, strict=bool(value)):
                assert part is None or part == expected, entry
            if value == right:
                good.append(entry)
        return good

    def drop(self, *entries: bytes) -> bool:
        return self._ask(lambda done: self.tier.drop(entries, done))

    def clear(self, namespace: str | None) -> bool:
        return self._ask(lambda done: self.tier.clear(namespace, done))

    def flush(self) -> bool:
        return self._ask(self.tier.flush)

    def listed(self) -> set[bytes]:
        return {entry for _, entries in self.tier.entries() for entry in entries}

    def close(self) -> None:
        self.tier.close(10.0)
        while self.calls:
            self.calls.popleft()()

    def _ask(self, call: Callable[[Callable[[bool], None]], bool]) -> bool:
        results: list[bool] = []
        assert call(results.append)
        self.wait(lambda: results)
        return results[0]


def disk_bytes(directory: Path) -> int:
    """As `du` counts."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def region_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("region-*.log"))
