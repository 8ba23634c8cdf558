"""The demo's second phase: one node prefills, the other decodes, and the prompt's KV goes from one
to the other layer by layer while it is computed."""

from __future__ import annotations

from .client import Reply, chat
from .prompts import Message, first_turn
from .recorder import Recorder
from .whole import ANSWER_TOKENS


class SplitRequests:
    """Each question once, cold, with a hand-off. The cluster has one prefill and one decode
    worker."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        workers = {worker.role: worker for worker in recorder.services.plan.workers}
        self._prefill, self._decode = workers["prefill"], workers["decode"]

    def warm_up(self) -> None:
        self._recorder.say("waiting for a first short answer with a hand-off, to warm up")
        services = self._recorder.services
        message = Message("user", "Hello")
        chat(services.plan.conductor.url, services.model, [message], max_tokens=4)

    def run(self, question: str, cold: Reply) -> None:
        """`cold`: the same prompt computed cold by one worker."""
        recorder = self._recorder
        recorder.forget_everything()
        recorder.say(f"waiting for a cold prefill, handed off: {question}")
        seen = recorder.ask(first_turn(question), max_tokens=ANSWER_TOKENS)
        recorder.add(
            "split",
            question,
            seen,
            reference=cold,
            worker=self._decode.id,
            source=self._prefill.node,
        )
