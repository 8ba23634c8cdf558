"""The chunks of one answer, whoever generates them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from ..errors import TookTooLong
from ..protocol import PromptTokensDetails, Usage
from ..routing import Choice
from ..upstream import Chunk
from .attempts import Attempts
from .job import Delivery, Job
from .legs import LegFailed
from .runs import Run


class Answer:
    """Goes on at another worker when one is lost, after the tokens it had: the client sees neither
    a repetition nor a gap. `usage` is there after the last chunk."""

    def __init__(self, job: Job, attempts: Attempts, deadline: float) -> None:
        self.job = job
        self.ttft_seconds = 0.0
        self.usage: Usage | None = None
        self.evidence: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
        self.is_complete = False
        self.is_measured = True  # the usage is one worker's for all of it, or one hand-off's
        self._attempts = attempts
        self._deadline = deadline  # monotonic, for all of it
        self._choice, self._run = attempts.begin(())
        self._output: list[int] = []
        self._has_finished = False  # a finish reason came
        self._taken: deque[Chunk] = deque()  # not shown yet

    @property
    def choice(self) -> Choice:
        """The latest decision."""
        return self._choice

    @property
    def run(self) -> Run:
        """The latest attempt; who works on it may still change until the first token."""
        return self._run

    @property
    def attempts(self) -> int:
        return self._attempts.count

    async def begin(self) -> None:
        """Wait for the first token, or for all of a plain answer. Raises ConductorError."""
        while not self._taken or self.job.delivery is Delivery.WHOLE:
            if not await self._take():
                return

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Those with choices. Raises ConductorError where nobody can go on with it."""
        while True:
            while self._taken:
                yield self._taken.popleft()
            if not await self._take():
                return

    def close(self) -> None:
        """Where the answer is not complete the workers see an abort."""
        self._run.close()

    async def _take(self) -> bool:
        """One more chunk; False after the last."""
        if self.is_complete:
            return False
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                chunk = await self._next()
        except TimeoutError as error:
            seconds = self._deadline - self.job.arrived_at
            raise TookTooLong(
                f"the answer was not complete within {seconds:g} s; {len(self._output)} tokens of "
                "it were generated"
            ) from error
        if chunk is None:
            self.is_complete = True
            return False
        self._note(chunk)
        return True

    async def _next(self) -> Chunk | None:
        """From the present run or, where that fails, from the next one."""
        while True:
            try:
                return await self._run.next()
            except LegFailed as failed:
                self._run.close()
                if self._has_finished:  # only its usage is lost
                    return self._conclusion()
                self._attempts.failed(failed, self._output)
            self._choice, self._run = self._attempts.begin(self._output)
            self.is_measured &= not self._output

    def _note(self, chunk: Chunk) -> None:
        if chunk.num_tokens and not self._output:
            self.ttft_seconds = time.monotonic() - self.job.arrived_at
        for choice in chunk.choices:
            self._output += choice.token_ids or ()
            self._has_finished |= choice.finish_reason is not None
        if chunk.choices:
            self._taken.append(chunk)
        if chunk.usage is not None:
            self.usage, self.evidence = _within_prompt(chunk.usage), chunk.moontide

    def _conclusion(self) -> Chunk | None:
        """In place of what a worker that was lost after the last token did not tell any more."""
        if self.usage is not None:
            return None
        self.is_measured = False
        num_prompt, num_output = len(self.job.prompt.token_ids), len(self._output)
        return Chunk(usage=Usage(num_prompt, num_output, num_prompt + num_output))


def _within_prompt(usage: Usage) -> Usage:
    """A resumed worker may also have reused output: of the prompt no more than all."""
    cached = min(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens)
    return msgspec.structs.replace(usage, prompt_tokens_details=PromptTokensDetails(cached))
