"""Taking a lock that whatever a signal handler raises cannot leave locked."""

from __future__ import annotations

import threading


def take(lock: threading.Lock, seconds: float = 0.0) -> bool:
    """Whether it was free within `seconds`. The caller's next statement is a `try` whose `finally`
    releases it: no KeyboardInterrupt comes in between. The interpreter runs signal handlers after
    calls that it makes itself, so after `lock.acquire()`; not after what a `map` calls."""
    (is_taken,) = map(lock.acquire, (True,), (seconds,))
    return is_taken
