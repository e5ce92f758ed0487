"""A connection that does not wait for ever, one whose server no longer answers is cut; and that hears warnings."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.errors import Diagnostic

ANSWER_TIMEOUT_SECONDS = 75.0
"""How long an answer is waited for. The server itself ends a statement sooner (`statement_timeout`): where this time is
over, it hangs, or something between here and there does that still acknowledges what it swallows. A network that
acknowledges nothing is noticed by the system (`tcp_user_timeout`)."""


class PatientConnection(psycopg.Connection[Any]):
    """A connection of psycopg; every wait for the server has an end."""

    gave_up = False
    """Whether it was cut because no answer came."""
    in_order = True
    """Whether whoever used it last came to an end: else something of that may be left in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.warnings: list[str] = []
        """What the server warned of, until somebody clears it."""
        warnings = self.warnings  # not `self`: a connection that nobody has is closed
        self.add_notice_handler(lambda notice: warnings.append(_words(notice)))

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait until it is done, as psycopg does."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Any) -> Generator[Any, Any, Any]:
        """The same steps. Psycopg takes one at least every tenth of a second, with nothing where nothing came."""
        end = time.monotonic() + ANSWER_TIMEOUT_SECONDS
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > end and not self.gave_up:
                    self._give_up()
                wanted = gen.send(ready)
        except StopIteration as ended:
            return ended.value

    def _give_up(self) -> None:
        """Cut it below libpq, which then sees a connection that was lost, whatever it was about to do."""
        self.gave_up = True
        ours = socket.socket(fileno=self.pgconn.socket)
        try:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
        finally:
            ours.detach()


def _words(notice: Diagnostic) -> str:
    return ": ".join(filter(None, (notice.message_primary, notice.message_detail)))
