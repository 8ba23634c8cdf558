"""The demo's first phase: a worker on each node computes whole requests, and finds their KV in
every place it can lie."""

from __future__ import annotations

from collections.abc import Callable

from .checks import Seen, full_blocks
from .client import Reply, chat
from .prompts import Message, check_border, first_turn, second_turn
from .recorder import Recorder
from .report import Case

ANSWER_TOKENS = 64  # enough to fill a block: the second turn shows that answers are kept too
_SECOND_ANSWER_TOKENS = 24


class WholeRequests:
    """Each question cold, from DRAM, from the engine's own blocks, one turn further, from NVMe, and
    from the other node. `restart_stores` ends and starts the store daemons."""

    def __init__(self, recorder: Recorder, restart_stores: Callable[[], None]) -> None:
        self._recorder = recorder
        self._restart_stores = restart_stores
        self._home = self._other = ""  # workers

    def warm_up(self) -> None:
        """A short answer of each worker, so that no row pays for first-time work."""
        self._recorder.say("waiting for a first short answer of each worker, to warm up")
        services = self._recorder.services
        for worker in services.plan.workers:
            chat(
                services.plan.conductor.url,
                services.model,
                [Message("user", "Hello")],
                max_tokens=4,
                worker=worker.id,
            )

    def run(self, question: str) -> Reply:
        """All rows of one question; the cold reply. The second turn is run last without any cache
        as well, as the reference of its text and time."""
        recorder, first = self._recorder, first_turn(question)
        cold = self._cold(question, first)
        cached = full_blocks(cold.usage.prompt_tokens)

        recorder.services.empty_engine_caches()
        recorder.say("waiting for the same prompt, its KV from DRAM")
        dram = recorder.ask(first, max_tokens=ANSWER_TOKENS)
        self._add_at_home("dram", question, dram, cold, cached)

        recorder.say("waiting for the same prompt, its KV in the engine")
        colocated = recorder.ask(first, max_tokens=ANSWER_TOKENS)
        self._add_at_home("colocated", question, colocated, cold, cached)

        tokens_before = cold.usage.prompt_tokens + cold.usage.completion_tokens
        second = second_turn(first, cold.text, tokens_before=tokens_before)
        recorder.say("waiting for the second turn")
        turn = recorder.ask(second, max_tokens=_SECOND_ANSWER_TOKENS)
        check_border(turn.reply.usage.prompt_tokens)

        self._from_nvme(question, first, cold)
        self._from_the_other_node(question, first, cold)

        recorder.forget_everything()
        recorder.say("waiting for the second turn once more, cold, to compare")
        again = recorder.ask(second, max_tokens=_SECOND_ANSWER_TOKENS, worker=self._home)
        at_least = tokens_before - recorder.services.block_tokens
        self._add_at_home("second_turn", question, turn, again.reply, at_least)
        return cold

    def _cold(self, question: str, first: list[Message]) -> Reply:
        """Whoever serves it is at home from here on: later requests should be sent there."""
        recorder = self._recorder
        recorder.forget_everything()
        recorder.say(f"waiting for a cold prefill: {question}")
        seen = recorder.ask(first, max_tokens=ANSWER_TOKENS)
        check_border(seen.reply.usage.prompt_tokens)
        self._home = seen.reply.worker
        [self._other] = [w.id for w in recorder.services.plan.workers if w.id != self._home]
        self._add_at_home("cold", question, seen, seen.reply, 0)
        return seen.reply

    def _from_nvme(self, question: str, first: list[Message], cold: Reply) -> None:
        """After a restart of the stores: nothing lies in DRAM or in the page cache."""
        recorder = self._recorder
        recorder.say("waiting for the stores to write everything to NVMe, and to start again")
        recorder.services.flush()
        self._restart_stores()
        recorder.services.await_joined()
        recorder.services.empty_engine_caches()
        recorder.services.drop_page_cache()
        recorder.say("waiting for the same prompt, its KV from NVMe")
        seen = recorder.ask(first, max_tokens=ANSWER_TOKENS, worker=self._home)
        cached = full_blocks(cold.usage.prompt_tokens)
        self._add_at_home("nvme", question, seen, cold, cached)

    def _from_the_other_node(self, question: str, first: list[Message], cold: Reply) -> None:
        recorder, services = self._recorder, self._recorder.services
        source, node = services.node_of(self._home), services.node_of(self._other)
        services.empty_engine_caches()
        services.empty_stores(node)
        services.await_known(source, node)
        recorder.say("waiting for the same prompt at the other node, its KV from this one's DRAM")
        seen = recorder.ask(first, max_tokens=ANSWER_TOKENS, worker=self._other)
        recorder.add(
            "remote",
            question,
            seen,
            reference=cold,
            worker=self._other,
            source=source,
            at_least=full_blocks(cold.usage.prompt_tokens),
        )

    def _add_at_home(
        self, case: Case, question: str, seen: Seen, reference: Reply, at_least: int
    ) -> None:
        self._recorder.add(
            case,
            question,
            seen,
            reference=reference,
            worker=self._home,
            source=self._recorder.services.node_of(self._home),
            at_least=at_least,
        )
