"""Settings that change while the daemon runs. What is changed holds until the next start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ..errors import InvalidRequest
from ..service import changed_settings
from .settings import StoreSettings

logger = logging.getLogger(__name__)

Applier = Callable[[StoreSettings], None]
"""Puts one setting in force. Raises InvalidRequest with nothing changed."""


class LiveSettings:
    def __init__(self, settings: StoreSettings, appliers: Mapping[str, Applier]) -> None:
        self.in_force = settings
        self._appliers = appliers

    @property
    def changeable(self) -> list[str]:
        return sorted(self._appliers)

    def change(self, values: Mapping[str, str]) -> None:
        """All of them or, when one is wrong, none. Raises InvalidRequest naming the setting."""
        fixed = sorted(set(values) - set(self._appliers))
        if fixed:
            raise InvalidRequest(
                f"{', '.join(fixed)[:200]} cannot change while the store runs; these can: "
                f"{', '.join(self.changeable)}; for others restart it"
            )
        before, after = self.in_force, changed_settings(self.in_force, values)
        applied = []
        try:
            for name in values:
                applied.append(name)
                self._appliers[name](after)
        except InvalidRequest:
            for name in applied:
                self._appliers[name](before)
            raise
        self.in_force = after
        logger.info("settings_changed names=%s", ",".join(values))
