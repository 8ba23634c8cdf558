"""What was asked on one connection and not answered yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..batches import Batch
from ..errors import Malformed
from ..types import Opcode
from ..wire import Header, Kind
from .frames import Nowhere
from .pieces import PIECE_BYTES, Piece

_UNWANTED_SECONDS = 0.2
"""How long a connection may be taken up by what nobody waits for any more."""
_READ_ANSWERS = (Kind.DATA, Kind.DATAS)
_WRITE_ANSWERS = (Kind.DONE, Kind.DONES)


@dataclass(slots=True, eq=False)
class _Asked:
    """`piece` is None once it was let go: its answer is thrown away."""

    piece: Piece | None
    opcode: Opcode
    num_bytes: int


class Asked:
    """Pieces by the ids of their requests, in the order in which they are asked and answered. Not
    thread-safe."""

    def __init__(self, nowhere: Nowhere) -> None:
        self._nowhere = nowhere
        self._asked: dict[int, _Asked] = {}
        self._last_id = 0
        self._unwanted_since = 0.0
        self.num_bytes = 0  # none: nothing is due
        self.num_reads = 0
        self.unwanted_bytes = 0  # of answers that are due, and thrown away

    def __len__(self) -> int:
        return len(self._asked)

    def carries(self, batch: Batch) -> bool:
        """A piece of it may be touched yet. The rest may change meanwhile."""
        for asked in [*self._asked.values()]:
            if asked.piece is not None and asked.piece.batch is batch:
                return True
        return False

    def add(self, piece: Piece) -> int:
        """The id of its request."""
        self._last_id += 1
        num_bytes = piece.view.nbytes
        self._asked[self._last_id] = _Asked(piece, piece.opcode, num_bytes)
        self.num_bytes += num_bytes
        self.num_reads += piece.opcode is Opcode.READ
        return self._last_id

    def pieces(self) -> Iterator[tuple[int, Piece]]:
        """Those that were not let go, by id. The rest may change meanwhile."""
        for request_id, asked in [*self._asked.items()]:
            if asked.piece is not None:
                yield request_id, asked.piece

    def places(self, answer: Header) -> list[memoryview]:
        """Where its payload goes. Raises Malformed."""
        if answer.kind in _READ_ANSWERS:
            opcode = Opcode.READ
        elif answer.kind in _WRITE_ANSWERS:
            opcode = Opcode.WRITE
        else:
            raise Malformed(f"{answer.kind.name} is no answer")
        asked = [self._asked.get(request_id) for request_id in answer.request_ids]
        if asked == [None]:
            return self._nowhere.views(answer.length)
        num_bytes, places = 0, []
        for each in asked:
            if each is None or each.opcode is not opcode:
                raise Malformed(f"{answer.kind.name} answers what was not asked")
            num_bytes += each.num_bytes
            places += [each.piece.view] if each.piece else self._nowhere.views(each.num_bytes)
        if opcode is Opcode.WRITE:
            return []
        if answer.length != num_bytes:
            raise Malformed(
                f"{answer.kind.name} of {answer.length} bytes answers READs of {num_bytes}"
            )
        return places

    def end(self, answer: Header) -> list[Piece] | None:
        """The pieces that were answered; None: it was never asked for."""
        pieces = []
        for request_id in answer.request_ids:
            asked = self._pop(request_id)
            if asked is None:
                return None
            if asked.piece is not None:
                pieces.append(asked.piece)
            else:
                self.unwanted_bytes -= asked.num_bytes
        return pieces

    def withdraw(self, request_id: int) -> None:
        """It was never sent."""
        self._pop(request_id)

    def let_go(self, request_id: int, now: float) -> None:
        """Its memory is not touched from now on, once the reader is told (`span_in`)."""
        asked = self._asked[request_id]
        asked.piece = None
        self.unwanted_bytes += asked.num_bytes
        self._unwanted_since = now

    def span_in(self, answer: Header, request_id: int) -> range:
        """Which bytes of the answer's payload are this request's."""
        if request_id not in answer.request_ids:
            return range(0)
        sizes = [self._asked[each].num_bytes for each in range(answer.request_id, request_id)]
        start = sum(sizes)
        return range(start, start + self._asked[request_id].num_bytes)

    def is_held_up(self, now: float) -> bool:
        """More than a piece that nobody wants has come before what is asked next for a while, and
        all else that is due may be asked for elsewhere."""
        is_late = now >= self._unwanted_since + _UNWANTED_SECONDS
        if self.unwanted_bytes <= PIECE_BYTES or not is_late:
            return False
        return all(piece.may_retry for _, piece in self.pieces())

    def patience(self, seconds: float) -> float:
        """So long, or less where `is_held_up` has to be asked before."""
        return min(seconds, _UNWANTED_SECONDS) if self.unwanted_bytes else seconds

    def carried(self, waiting: Mapping[int, bool]) -> list[Piece]:
        """What is left when the connection has ended, with what the writer had yet to send."""
        pieces = []
        for request_id, piece in self.pieces():
            piece.attempts -= not waiting.get(request_id, True)
            pieces.append(piece)
        return pieces

    def _pop(self, request_id: int) -> _Asked | None:
        asked = self._asked.pop(request_id, None)
        if asked is not None:
            self.num_bytes -= asked.num_bytes
            self.num_reads -= asked.opcode is Opcode.READ
        return asked
