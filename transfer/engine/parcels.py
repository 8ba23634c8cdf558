"""What the engine gives to a rail at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..batches import Batch, Batches
from ..types import Opcode, TransferRequest
from .types import EngineLimits, Location, RailName


@dataclass(frozen=True, slots=True)
class Terms:
    """Of one batch: where its memory lies, and since when it waits."""

    location: Location
    submitted: float


@dataclass(slots=True, eq=False)
class Parcel:
    """Slices of one batch, one opcode and one peer that travel together, or a piece of a large one.
    `tried`: rails that failed it; nothing of it is touched by them any more."""

    batch: Batch
    terms: Terms
    instance: str
    opcode: Opcode
    indices: list[int]  # of the slices, within the batch
    requests: list[TransferRequest]
    num_bytes: int
    tried: frozenset[RailName] = frozenset()

    def again(self, positions: Sequence[int], rail: RailName) -> Parcel:
        """What is left of it after `rail` failed these."""
        requests = [self.requests[position] for position in positions]
        return Parcel(
            self.batch,
            self.terms,
            self.instance,
            self.opcode,
            [self.indices[position] for position in positions],
            requests,
            sum(request.local.nbytes for request in requests),
            self.tried | {rail},
        )


def parcels_of(
    batches: Batches, batch: Batch, terms: Terms, limits: EngineLimits
) -> Iterator[Parcel]:
    """All of a batch; `batches` expects as many settlements of each slice."""
    filling: dict[tuple[str, Opcode], Parcel] = {}
    most_bytes, most_slices = limits.parcel_bytes, limits.parcel_slices
    for index, request in enumerate(batch.requests):
        num_bytes = request.local.nbytes
        instance, opcode = request.remote.instance, request.opcode
        if num_bytes > most_bytes:
            batches.split(batch, index, -(-num_bytes // most_bytes))
            for piece in _cut(request, most_bytes):
                size = piece.local.nbytes
                yield Parcel(batch, terms, instance, opcode, [index], [piece], size)
            continue
        key = (instance, opcode)
        parcel = filling.get(key)
        if parcel is not None:
            if parcel.num_bytes + num_bytes <= most_bytes and len(parcel.indices) < most_slices:
                parcel.indices.append(index)
                parcel.requests.append(request)
                parcel.num_bytes += num_bytes
                continue
            yield parcel
        filling[key] = Parcel(batch, terms, instance, opcode, [index], [request], num_bytes)
    yield from filling.values()


def _cut(request: TransferRequest, most_bytes: int) -> Iterator[TransferRequest]:
    local = request.local
    for start in range(0, local.nbytes, most_bytes):
        yield TransferRequest(
            request.opcode,
            local[start : start + most_bytes],
            request.remote,
            request.offset + start,
        )
