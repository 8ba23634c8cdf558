"""Pages of the device KV pool, shared by content.

page states
  FREE ──allocate──► PRIVATE (one holder may write) ──publish(key)──► SHARED (read only, hittable)
    ▲                    │ release                                       │ last release
    └────────────────────┘                                               ▼
    └───────────────evict (least recently used), clear────────────── IDLE (unreferenced, hittable)

After nano-vllm's BlockManager; idle pages stay hittable in LRU order as in vLLM's BlockPool. A page
holds exactly one block, so a full page has a block key.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moontide.kvstore import BlockKey


@dataclass(frozen=True, slots=True)
class PoolChanges:
    """What became hittable and what no longer is, since the last call."""

    stored: tuple[BlockKey, ...]
    removed: tuple[BlockKey, ...]


class PagePool:
    """Decides which page holds what; the tensors are someone else's. Single-threaded."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._references = [0] * num_pages
        self._keys: list[BlockKey | None] = [None] * num_pages
        self._page_of: dict[BlockKey, int] = {}
        self._free: deque[int] = deque(range(num_pages))
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._changes: dict[BlockKey, bool] = {}  # True: hittable now and not at the last drain

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can hand out now, evicting idle ones."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_referenced(self) -> int:
        return self.num_pages - self.num_available

    def match(self, keys: Iterable[BlockKey]) -> list[int]:
        """Pages of the longest hittable prefix. They are not held: `acquire` them before anything
        else."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def acquire(self, pages: Iterable[int]) -> None:
        """One more holder for each of these hittable pages."""
        for page in pages:
            assert self._keys[page] is not None, f"page {page} is not shared"
            self._idle.pop(page, None)
            self._references[page] += 1

    def allocate(self, count: int) -> list[int] | None:
        """`count` private pages, or None (and no change) when not that many are available."""
        if count > self.num_available:
            return None
        while len(self._free) < count:
            self._evict_oldest()
        pages = [self._free.popleft() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each page. Later pages of a chain become eviction candidates first,
        so a chain shrinks from its end."""
        for page in reversed(pages):
            assert self._references[page] > 0, f"page {page} has no holder"
            self._references[page] -= 1
            if self._references[page]:
                continue
            if self._keys[page] is None:
                self._free.append(page)
            else:
                self._idle[page] = None

    def publish(self, page: int, key: BlockKey) -> None:
        """The page's block is complete: from now on it is hittable and never written. When another
        page already holds that block, this one stays private."""
        assert self.is_writable(page), f"page {page} is shared or free"
        if key in self._page_of:
            return
        self._keys[page] = key
        self._page_of[key] = page
        self._note(key, hittable=True)

    def is_writable(self, page: int) -> bool:
        """True for a page with one holder and no key: nobody else can be reading it."""
        return self._references[page] == 1 and self._keys[page] is None

    def clear(self) -> int:
        """Forgets every idle page. Returns how many."""
        count = len(self._idle)
        while self._idle:
            self._evict_oldest()
        return count

    def hittable(self) -> list[BlockKey]:
        return list(self._page_of)

    def drain_changes(self) -> PoolChanges:
        """Net changes since the last drain: a block that came and went is not mentioned."""
        changes, self._changes = self._changes, {}
        return PoolChanges(
            tuple(key for key, hittable in changes.items() if hittable),
            tuple(key for key, hittable in changes.items() if not hittable),
        )

    def check_integrity(self, holders: Iterable[Sequence[int]] = ()) -> None:
        """Recomputes the accounting; `holders` are the page lists of every live sequence."""
        counted = Counter(page for pages in holders for page in pages)
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free)
        assert not free & idle
        for page in range(self.num_pages):
            key = self._keys[page]
            assert self._references[page] == counted[page], f"page {page}: wrong holder count"
            assert (self._references[page] == 0) == (page in free or page in idle)
            assert (key is None) if page in free else True
            assert (key is not None) if page in idle else True
            assert key is None or self._page_of[key] == page
        assert len(self._page_of) == sum(key is not None for key in self._keys)

    def _evict_oldest(self) -> None:
        page, _ = self._idle.popitem(last=False)
        key = self._keys[page]
        assert key is not None
        self._keys[page] = None
        del self._page_of[key]
        self._free.append(page)
        self._note(key, hittable=False)

    def _note(self, key: BlockKey, *, hittable: bool) -> None:
        """A change that undoes one not drained yet cancels it."""
        if self._changes.get(key, hittable) != hittable:
            del self._changes[key]
        else:
            self._changes[key] = hittable
