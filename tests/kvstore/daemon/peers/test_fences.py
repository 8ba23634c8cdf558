"""Who may change an entry, and what an answer is worth that was asked for before a change."""

from __future__ import annotations

import pytest

from moontide.kvstore import Busy
from moontide.kvstore.daemon.peers.fences import Fences
from moontide.kvstore.keys import BlockKey, EntryId, string_entry_id

FIRST, SECOND = string_entry_id("first"), string_entry_id("second")


def test_an_entry_has_one_holder_until_its_time() -> None:
    fences = Fences()
    fences.take([FIRST], "a", until=10.0, now=0.0)
    fences.take([FIRST], "a", until=12.0, now=1.0)
    with pytest.raises(Busy, match="first"):
        fences.take([SECOND, FIRST], "b", until=10.0, now=11.9)
    assert not fences.is_fenced(SECOND, 11.9)  # all or none
    fences.release([FIRST], "b")
    assert fences.is_fenced(FIRST, 11.9)
    fences.take([FIRST], "b", until=20.0, now=12.0)


def test_an_answer_is_void_once_its_entry_was_changed_meanwhile() -> None:
    """The change may have begun and ended between question and answer."""
    fences = Fences()
    with fences.watch([FIRST, SECOND], 0.0) as first, fences.watch([FIRST], 0.0) as second:
        fences.take([FIRST], "a", until=10.0, now=0.0)
        fences.release([FIRST], "a")
        assert (first, second) == ({SECOND}, set())
    fences.take([SECOND], "a", until=10.0, now=0.0)
    assert first == {SECOND}  # nobody watches any more
    with fences.watch([FIRST, SECOND], 1.0) as third:
        assert third == {FIRST}


def test_blocks_are_looked_for_up_to_the_first_that_is_being_removed() -> None:
    """And what was asked for before a fence was taken is void: it counts them."""
    fences = Fences()
    keys = [BlockKey(bytes([number]) * 16) for number in range(4)]
    assert fences.leading(keys, 0.0) == keys
    fences.take([FIRST], "a", until=10.0, now=0.0)
    assert fences.num_block_fences == 0
    fences.take([EntryId(b"k" + keys[2])], "a", until=10.0, now=0.0)
    assert fences.num_block_fences == 1
    assert fences.leading(keys, 9.0) == keys[:2]
    with pytest.raises(Busy, match=f"^kv:{keys[2].hex()} is being removed"):
        fences.check([EntryId(b"k" + keys[2])], "b", 9.0)
    fences.release([EntryId(b"k" + keys[2])], "a")
    assert fences.leading(keys, 9.0) == keys
