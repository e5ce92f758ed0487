"""Notifications of arrivals from the server: a thread that long-polls on a separate connection."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable

from redrive.client.http_transport import Endpoint, HttpTransport, RequestNotSent, ResponseLost
from redrive.errors import Closed
from redrive.model.ids import RESULTS
from redrive.wire.messages import WatchAnswer, WatchRequest, decode_watch_answer
from redrive.wire.result_codec import encode

POLL_SECONDS = 25.0
"""Seconds that one request waits at the server: networks drop connections without traffic."""
SLACK_SECONDS = 10.0
"""Seconds that a response may be late."""
PAUSE_SECONDS = 0.01
"""Minimum seconds between two requests."""
RETRY_SECONDS = 0.25
LONGEST_AGAIN_SECONDS = 2.0
"""Maximum seconds before the next attempt if the server is unreachable or has restarted. Until then callers poll
the store themselves."""
MAX_WANTED = 1000
"""Queues that are watched by name; with more, all are watched."""
AWAITED_SECONDS = 3.0
"""Seconds after the last read of a result in which topics are watched. Callers that await one poll every second."""
_ANYTHING = ""
"""Represents any commit; no queue can have this name."""


class ChangeWatcher:
    """The queues with arrivals since the last call of `received`, whose first call starts the thread."""

    def __init__(self, endpoint: Endpoint, wake: Callable[[], None] | None = None) -> None:
        self._line = HttpTransport(endpoint, most=1, is_unwanted=lambda: self._again or self._closed)
        self._wake = wake
        self._lock = threading.Lock()
        self._wanted: frozenset[str] = frozenset()
        self._awaited_at = float("-inf")
        self._heard: set[str] = set()
        self._anywhere = False
        self._asked = threading.Event()
        """Set while `received` has returned all notifications."""
        self._again = False
        self._closed = False
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @property
    def wake(self) -> Callable[[], None] | None:
        """The callback for notifications."""
        return self._wake

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Set the callback for notifications; it is called from the first `received` on."""
        self._wake = wake

    def watch_queues(self, queues: Iterable[str]) -> None:
        """Watch these queues too: callers wait for them, or may soon."""
        if self._wanted.issuperset(queues):
            return
        with self._lock:
            self._wanted = self._wanted.union(queues)
            waits = self._thread is not None
            self._again = waits
        if waits:
            self._line.abort_requests()  # the current request waits for fewer queues

    def watch_results(self) -> None:
        """Watch result topics too, as long as a caller that awaits a result polls for it."""
        is_watched = self._awaits_results
        self._awaited_at = time.monotonic()  # set first, otherwise the next request would omit them again
        if not is_watched:
            self.watch_queues((RESULTS,))

    @property
    def _awaits_results(self) -> bool:
        return RESULTS in self._wanted and time.monotonic() - self._awaited_at < AWAITED_SECONDS

    def received(self) -> Collection[str] | None:
        """Return the queues with arrivals since the last call; None: any queue."""
        with self._lock:
            if self._closed:
                raise Closed
            found, self._heard = self._heard, set()
            anywhere, self._anywhere = self._anywhere, False
            if self._thread is None:
                anywhere = True
                self._thread = threading.Thread(target=self._run, name="redrive-watch", daemon=True)
                self._thread.start()
            self._asked.set()
        return None if anywhere else found

    def close(self) -> None:
        """Stop the thread and abort its request."""
        with self._lock:
            self._closed = True
            self._asked.set()
            thread = self._thread
        self._end.set()
        if thread is None or self._pid != os.getpid():
            return
        self._line.abort_requests()
        # A thread that Ctrl-C kept from starting cannot be joined.
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join()
        self._line.close()

    def _run(self) -> None:
        known = WatchAnswer("", 0)
        pause = RETRY_SECONDS
        while not self._closed:
            answer = self._ask(known)
            if answer is not None and known.server_epoch in ("", answer.server_epoch):
                known, pause = answer, RETRY_SECONDS
                self._tell(answer.queues, answer.anything)
                self._end.wait(PAUSE_SECONDS)
            elif not self._again and not self._closed:
                known = answer or known  # another epoch: the server has restarted, or several servers share the address
                self._tell(None, True)
                self._end.wait(pause)
                pause = min(2 * pause, LONGEST_AGAIN_SECONDS)
            self._asked.wait()

    def _ask(self, known: WatchAnswer) -> WatchAnswer | None:
        with self._lock:
            self._again = False
            if not self._awaits_results:
                self._wanted = self._wanted - {RESULTS}
            wanted = tuple(self._wanted) if len(self._wanted) <= MAX_WANTED else None
        request = WatchRequest(known.server_epoch or None, known.number, wanted, POLL_SECONDS)
        try:
            answer = self._line.post("store.watch", encode(request), POLL_SECONDS + SLACK_SECONDS)
            return decode_watch_answer(answer.body) if answer.status == 200 else None
        except (RequestNotSent, ResponseLost, ValueError):  # ValueError: not a valid response
            return None

    def _tell(self, queues: Collection[str] | None, anything: bool) -> None:
        if queues == () and not anything:
            return
        with self._lock:
            self._anywhere |= queues is None
            self._heard.update(queues or ())
            if anything:
                self._heard.add(_ANYTHING)
            if not self._closed:
                self._asked.clear()
        if self._wake is not None:
            self._wake()
