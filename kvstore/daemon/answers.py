"""What a request handler tells its session to do next.

Handlers decide and touch the store; the session moves the bytes. A handler returns a plain
`wire.Reply` or one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moontide.transfer import do_nothing

from ..wire import Reply
from .buffers import PayloadSink


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A reply with descriptors, or with values sent straight from pool memory. `release` runs when
    they have left or never will; it may be what a plain reply need not wait for."""

    reply: Reply
    payload: tuple[memoryview, ...] = ()
    descriptors: tuple[int, ...] = ()
    release: Callable[[], None] | None = None

    @property
    def is_plain(self) -> bool:
        return not (self.payload or self.descriptors)


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing is sent."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """The request's payload goes to `sink`; `finish` makes the answer once all of it is there."""

    sink: PayloadSink
    finish: Callable[[], Reply | Deferred | Silence]


@dataclass(frozen=True, slots=True)
class Deferred:
    """Answered later: `start` gets the function to answer with and returns what cancels the wait
    (it is then not answered); after `timeout_s` seconds the answer is `expired`. `end` is called
    once, whatever came of it, also when it never began."""

    timeout_s: float
    start: Callable[[Respond], Callable[[], None]]
    expired: Reply
    end: Callable[[], None] = do_nothing


Respond = Callable[[Reply | Outgoing], None]
Answer = Reply | Outgoing | Incoming | Deferred | Silence


def mapped(
    answer: Reply | Deferred,
    change: Callable[[Reply | Outgoing], Reply | Outgoing],
    end: Callable[[], None],
) -> Reply | Deferred:
    """`answer`, now or later, with its reply changed; then, or when none comes, `end`."""
    if isinstance(answer, Deferred):
        start = answer.start
        return replace(
            answer, start=lambda respond: start(lambda reply: respond(change(reply))), end=end
        )
    changed = change(answer)
    assert not isinstance(changed, Outgoing), "a plain reply becomes a plain reply"
    end()
    return changed
