"""Hand-offs that this worker receives, by the id the Conductor gave them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from moontide.kvstore.service import HttpError

from .generation import Generation


@dataclass(slots=True)
class _Open:
    generation: Generation
    token_id: int | None = None


class Handoffs:
    """Knows an id exactly as long as its request lives, so there are never more than requests.
    Event loop only."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def check_free(self, handoff_id: str) -> None:
        """Raises HttpError 409 while the id is in use."""
        if handoff_id in self._open:
            raise HttpError(
                409, "conflict", f"hand-off {handoff_id} is under way; ids are for one request"
            )

    @contextlib.contextmanager
    def open(self, handoff_id: str, generation: Generation) -> Iterator[None]:
        """The id is known within this context."""
        self.check_free(handoff_id)
        self._open[handoff_id] = _Open(generation)
        try:
            yield
        finally:
            del self._open[handoff_id]

    def give_first_token(self, handoff_id: str, token_id: int) -> None:
        """Raises HttpError 404 for one that has ended, 409 when it was given another token,
        EngineError."""
        known = self._open.get(handoff_id)
        if known is None:
            raise HttpError(
                404, "not_found", f"hand-off {handoff_id} is unknown, or its request has ended"
            )
        if known.token_id is None:
            known.generation.give_first_token(token_id)
            known.token_id = token_id
        elif known.token_id != token_id:
            raise HttpError(
                409,
                "conflict",
                f"hand-off {handoff_id} was given first token {known.token_id}, now {token_id}",
            )
