"""What all messages have in common."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A msgpack array: the tag, then the fields in order. Fields are only added, at the end and
    with a default; tags are not used again."""
