"""What limits a step, and what the scheduler decides about one."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidRequest
from .sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one step and one sequence may ask for."""

    block_tokens: int
    context_tokens: int
    max_batch_tokens: int
    idle_batch_tokens: int  # while nobody decodes, so that a long step delays no token
    max_running: int
    max_waiting: int

    def room_tokens(self, num_pages: int) -> int:
        """Prompt and output together that one sequence can have. The last output token is never
        computed, so it needs no place in the pool."""
        return min(self.context_tokens, num_pages * self.block_tokens + 1)

    def clip_output(self, num_prompt: int, max_tokens: int, num_pages: int) -> int:
        """Output tokens a prompt of this length can get, at most `max_tokens`. Raises
        InvalidRequest when it leaves no room for one."""
        pool_tokens = num_pages * self.block_tokens
        if num_prompt == 0:
            raise InvalidRequest("the prompt has 0 tokens; it must have at least 1")
        if num_prompt >= self.context_tokens:
            raise InvalidRequest(
                f"the prompt has {num_prompt} tokens; the model's context is "
                f"{self.context_tokens} and must leave room for at least one more"
            )
        if num_prompt > pool_tokens:
            raise InvalidRequest(
                f"the prompt has {num_prompt} tokens; this worker's KV pool holds {pool_tokens}: "
                "start it with a larger --hbm"
            )
        return min(max_tokens, self.room_tokens(num_pages) - num_prompt)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """`num_tokens` tokens of one sequence to compute in this step, from its `num_computed` on.
    `load`: blocks the store must deliver into the sequence's pages first, layer by layer.
    `store`: blocks that are whole after this step and not in the store yet."""

    sequence: Sequence
    start: int
    num_tokens: int
    load: range
    store: range

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`preempted`: they hold nothing any more; those in phase LOOKUP wait for a new lookup.
    `loads`: their blocks `loading` are to be filled in the background."""

    chunks: tuple[Chunk, ...]
    preempted: tuple[Sequence, ...]
    loads: tuple[Sequence, ...] = ()
