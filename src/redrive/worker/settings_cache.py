"""Settings of a worker's queues, as its jobs need them: how items are run, and how long their leases are."""

from __future__ import annotations

import time
from collections.abc import Sequence

from redrive.broker.broker import Broker
from redrive.errors import RedriveError
from redrive.model.duration import SECOND
from redrive.worker.execution import HandlerSettings

SETTINGS_SECONDS = 5.0
"""How old the settings may be that say how errors are classified."""


class SettingsCache:
    """The settings of some queues. Where they cannot be read, the last ones, or the default."""

    def __init__(self, broker: Broker, queues: Sequence[str]) -> None:
        self._broker = broker
        self._queues: dict[str, tuple[HandlerSettings, int, float]] = {}
        """How items are run, the lease_timeout, and when both were read."""
        for queue in queues:
            self.handling_of(queue)

    @property
    def shortest_lease(self) -> int:
        """The shortest lease_timeout of the queues. From any thread."""
        return min((timeout for _, timeout, _ in tuple(self._queues.values())), default=SECOND)

    def handling_of(self, queue: str) -> HandlerSettings:
        """How items of a queue are run, by settings that are not much older than now."""
        now = time.monotonic()
        handling, timeout, read_at = self._queues.get(queue, (None, 0, 0.0))
        if handling is None or now - read_at > SETTINGS_SECONDS:
            try:
                settings = self._broker.get_queue(queue).settings
            except RedriveError:
                handling, timeout = handling or HandlerSettings(), timeout or SECOND
            else:
                handling = HandlerSettings(settings.error_rules, bool(settings.keep_completed), settings.redact)
                timeout = settings.lease_timeout
            self._queues[queue] = handling, timeout, now
        return handling
