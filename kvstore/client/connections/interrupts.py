"""What a signal handler raises (KeyboardInterrupt, or what its owner likes) may end a call
anywhere."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from ...errors import StoreError


class Interruptible:
    """`with` it: `hang_up` is called when anything but a StoreError ends what is within."""

    __slots__ = ("_hang_up",)

    def __init__(self, hang_up: Callable[[], None]) -> None:
        self._hang_up = hang_up

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and not issubclass(kind, StoreError):
            self._hang_up()
