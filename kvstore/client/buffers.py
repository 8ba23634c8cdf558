"""Callers' buffers as flat bytes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from moontide.transfer import Bytes

from ..errors import InvalidRequest

if TYPE_CHECKING:  # collections.abc has it from Python 3.12 on
    from typing_extensions import Buffer

_SHAPE = attrgetter("format", "ndim", "c_contiguous")
_FLAT = {("B", 1, True)}
"""Of a memoryview of bytes."""


def readable_bytes(data: Buffer) -> memoryview:
    """All bytes of a C-contiguous buffer, without a copy. Raises InvalidRequest."""
    return _flat(data, "data")


def all_readable_bytes(values: Sequence[Buffer]) -> Sequence[Bytes]:
    """`readable_bytes` of each, at less cost where all are flat already."""
    kinds = set(map(type, values))
    if kinds == {bytes} or (kinds == {memoryview} and _FLAT.issuperset(map(_SHAPE, values))):
        return values  # type: ignore[return-value]  # as was just seen
    return list(map(readable_bytes, values))


def writable_bytes(buffer: Buffer) -> memoryview:
    """All bytes of a writable C-contiguous buffer. Raises InvalidRequest."""
    flat = _flat(buffer, "buffer")
    if flat.readonly:
        raise InvalidRequest(
            f"buffer of type {type(buffer).__name__} is read-only; give a bytearray or array"
        )
    return flat


def _flat(data: Buffer, name: str) -> memoryview:
    if type(data) is memoryview and data.format == "B" and data.ndim == 1 and data.c_contiguous:
        return data
    try:
        view = memoryview(data)
    except (TypeError, ValueError) as error:  # no buffer, or, as of dates, none that can be given
        raise InvalidRequest(
            f"{name} is a {type(data).__name__}; give bytes or any contiguous buffer"
        ) from error
    if not view.c_contiguous:
        raise InvalidRequest(
            f"{name} of shape {view.shape} with strides {view.strides} is not C-contiguous; "
            "copy it first, for example with numpy.ascontiguousarray"
        )
    if not view.nbytes:
        return memoryview(b"") if view.readonly else memoryview(bytearray())
    if view.format == "B" and view.ndim == 1:
        return view
    try:
        return view.cast("B")
    except (ValueError, TypeError):  # a format memoryview does not know, as of structured arrays
        return np.frombuffer(view, np.uint8).data
