"""Routes that change how the store behaves: draining, settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from ...service import AnyRoute, Call, Plain, Route
from ..drain import Drain
from ..live_settings import LiveSettings
from .bodies import ConfigAnswer, ConfigRequest, DrainAnswer, DrainRequest
from .copying import CopyRoutes


class SteeringRoutes:
    """`in_flight`: entries being written now."""

    def __init__(
        self,
        settings: LiveSettings,
        drain: Drain,
        copying: CopyRoutes,
        in_flight: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._drain = drain
        self._copying = copying
        self._in_flight = in_flight

    def routes(self) -> list[AnyRoute]:
        return [
            Route(
                method="POST",
                path="/v1/drain",
                handler=self._begin_drain,
                summary="Take no more writes, bring what is here to disk and, in part, to others",
                request=DrainRequest,
                response=DrainAnswer,
            ),
            Route(
                method="POST",
                path="/v1/undrain",
                handler=self._end_drain,
                summary="Take writes again",
                response=DrainAnswer,
            ),
            Route(
                method="GET",
                path="/v1/config",
                handler=self._config,
                summary="Settings in force",
                response=ConfigAnswer,
            ),
            Route(
                method="PATCH",
                path="/v1/config",
                handler=self._change_config,
                summary="Change settings until the next start",
                request=ConfigRequest,
                response=ConfigAnswer,
            ),
        ]

    async def _begin_drain(self, call: Call[DrainRequest, None]) -> DrainAnswer:
        """Answered when everything that can be on disk and at other nodes is there, or the time for
        it is over."""
        self._copying.check_node(call.body.to)
        is_flushed, copied = await asyncio.gather(
            self._drain.begin(), self._copying.spread_hot(call.body.to, call.body.seconds)
        )
        num_copied = sum(copied.by_node.values())
        return DrainAnswer(
            True, is_flushed, self._in_flight(), num_copied, copied.left, copied.reason
        )

    async def _end_drain(self, call: Plain) -> DrainAnswer:
        self._drain.end()
        return DrainAnswer(False, False, self._in_flight())

    async def _config(self, call: Plain) -> ConfigAnswer:
        return self._answer()

    def _answer(self) -> ConfigAnswer:
        values = msgspec.structs.asdict(self._settings.in_force)
        return ConfigAnswer(
            {name: _as_flag(value) for name, value in values.items()}, self._settings.changeable
        )

    async def _change_config(self, call: Call[ConfigRequest, None]) -> ConfigAnswer:
        """All of them, or none."""
        self._settings.change(call.body.settings)
        return self._answer()


def _as_flag(value: object) -> str:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)
