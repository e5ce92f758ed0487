"""Settings of a worker's queues, as its jobs need them: how items are run, and how long their leases are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from redrive.broker.broker import Broker
from redrive.errors import RedriveError
from redrive.model.duration import SECOND
from redrive.model.queue import QueueSettings, RetryAfter
from redrive.worker.execution import HandlerSettings

SETTINGS_SECONDS = 5.0
"""Seconds after which settings are read again."""
_UNREAD = QueueSettings(lease_timeout=SECOND)


class SettingsCache:
    """The settings of some queues. If they cannot be read, the last ones, or the default."""

    def __init__(self, broker: Broker, queues: Sequence[str]) -> None:
        self._broker = broker
        self._queues: dict[str, tuple[HandlerSettings, QueueSettings, float]] = {}
        """By queue: the settings for handlers, all settings, and the time at which these were read."""
        for queue in queues:
            self.handling_of(queue)

    @property
    def shortest_lease(self) -> int:
        """The shortest lease_timeout of the queues. From any thread."""
        return min((settings.lease_timeout for _, settings, _ in tuple(self._queues.values())), default=SECOND)

    def may_prefetch(self, queue: str) -> bool:
        """Return whether to lease more of a queue than can run now. Not in gate mode: a Retry-After would refuse it."""
        return self._queues[queue][1].retry_after_mode is not RetryAfter.GATE

    def settings_of(self, queue: str) -> QueueSettings:
        """Return the settings of a queue."""
        return self._queues[queue][1] if queue in self._queues else _UNREAD

    def handling_of(self, queue: str) -> HandlerSettings:
        """Return the settings for handlers of a queue, read again if they are older than SETTINGS_SECONDS."""
        now = time.monotonic()
        handling, settings, read_at = self._queues.get(queue, (HandlerSettings(), _UNREAD, -SETTINGS_SECONDS - 1))
        if now - read_at > SETTINGS_SECONDS:
            with suppress(RedriveError):
                settings = self._broker.get_queue(queue).settings
                handling = HandlerSettings(settings.error_rules, bool(settings.keep_completed), settings.redact)
            self._queues[queue] = handling, settings, now
        return handling
