"""What the store does during one step: loads before a layer, stores after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from .layer_store import LayerStore
from .plan import Chunk
from .store_connector import StoreConnector


class StepCut(Exception):
    """Nobody needs the rest of the forward pass: every chunk's request was aborted, or its load
    brought nothing."""


class StepTransfers:
    """The model's LayerHook for one step. Ended by exactly one of `finish` and `abandon`."""

    def __init__(
        self,
        connector: StoreConnector,
        chunks: Sequence[Chunk],
        *,
        is_aborted: Callable[[Chunk], bool],
    ) -> None:
        self._connector = connector
        self._chunks = chunks
        self._is_aborted = is_aborted
        self._loads = connector.begin_loads(chunks)
        self._stores = connector.begin_stores(chunks)
        self._tails = connector.begin_tails(chunks)

    def before_layer(self, layer: int) -> None:
        """Raises StepCut."""
        for chunk, load in self._loads.items():
            load.bring(layer, partial(self._is_needed, chunk))
            if load.failed:
                self._give_up_stores(chunk)
        if not any(map(self._is_wanted, self._chunks)):
            raise StepCut

    def after_layer(self, layer: int) -> None:
        for store in self._all_stores():
            store.offer(layer)
        self._connector.collect()

    def finish(self) -> None:
        """All layers were computed."""
        for load in self._loads.values():
            load.close()
        for store in self._all_stores():
            store.commit()
        self._connector.end_step(self._loads.values(), self._all_stores())

    def abandon(self) -> None:
        """The pass was cut: no load and no store of this step counts."""
        for load in self._loads.values():
            load.give_up()
            load.close()
        for store in self._all_stores():
            store.give_up()
        self._connector.end_step(self._loads.values(), self._all_stores())

    def failed_load(self, chunk: Chunk) -> int | None:
        """Blocks of its load that arrived whole, when not all did."""
        load = self._loads.get(chunk)
        return load.valid_blocks if load is not None and load.failed else None

    def stored_through(self, chunk: Chunk) -> int:
        """Leading blocks of the sequence that the store has or is being given."""
        store = self._stores.get(chunk)
        if store is None or store.given_up:
            return chunk.sequence.stored_blocks
        return chunk.store.stop

    def _all_stores(self) -> list[LayerStore]:
        return [*self._stores.values(), *self._tails.values()]

    def _give_up_stores(self, chunk: Chunk) -> None:
        for stores in (self._stores, self._tails):
            if chunk in stores:
                stores[chunk].give_up()

    def _is_needed(self, chunk: Chunk) -> bool:
        return not self._is_aborted(chunk)

    def _is_wanted(self, chunk: Chunk) -> bool:
        load = self._loads.get(chunk)
        return self._is_needed(chunk) and (load is None or load.valid_blocks > 0)
