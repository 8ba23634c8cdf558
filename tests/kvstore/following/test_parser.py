"""Server-sent events in pieces of any size."""

from __future__ import annotations

import collections
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.kvstore.following import Event, EventParser, EventTooLarge
from moontide.kvstore.following import parser as parsing

TEXT = (
    b': keep-alive\n\nevent: kv\ndata: {"a": 1}\n\ndata: one\ndata:two\n\n'
    b"id: 7\nretry: 5\ndata: x\r\n\r\n\n\nevent: empty\n\ndata: [DONE]\n\n"
)
EVENTS = [Event(b'{"a": 1}', "kv"), Event(b"one\ntwo"), Event(b"x"), Event(b"[DONE]")]


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
def test_events_do_not_depend_on_how_the_bytes_arrive(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    parser = EventParser()
    found = [event for start, stop in pairwise(edges) for event in parser.feed(TEXT[start:stop])]
    assert found == EVENTS


@pytest.mark.parametrize("piece", [b"x" * 50, b"data: " + b"x" * 10 + b"\n", b"data:\n"])
def test_an_event_without_end_is_refused(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "MAX_EVENT_BYTES", 200)
    parser = EventParser()
    with pytest.raises(EventTooLarge):
        collections.deque(event for _ in range(100) for event in parser.feed(piece))
