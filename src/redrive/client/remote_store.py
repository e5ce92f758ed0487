"""`RemoteStore`: the contract of `redrive.store`, executed by a server.

Nothing runs twice. Each commit has an id and is for one server process: if its connection breaks, the client repeats
it with the same id, and that server, which remembers its responses, runs it only if it has not run. A restarted server
does not remember: the client then repeats idempotent calls; the outcome of others is unknown.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from redrive.client.change_watcher import ChangeWatcher
from redrive.client.http_transport import (
    Endpoint,
    HttpResponse,
    HttpTransport,
    RequestNotSent,
    ResponseLost,
    endpoint_of,
)
from redrive.client.server_answer import is_from_server, not_a_server, position_in, refusal_in
from redrive.clock import Clock, Instant, ServerClock
from redrive.contract import Call, Query
from redrive.contract.base import in_commit_order
from redrive.contract.item_calls import LeaseItems, Put
from redrive.contract.queries import GetQueue, GetResult
from redrive.errors import (
    Closed,
    EngineUnsupported,
    InvalidInput,
    OutcomeUnknown,
    RedriveError,
    StoreFailed,
    StoreUnavailable,
)
from redrive.model.item import Receipt
from redrive.model.limits import MIB
from redrive.model.queue import WITH_ITEM, Queue
from redrive.store import Commit, Durability, commit_rest
from redrive.wire.messages import (
    CONTENT_TYPE,
    MISDIRECTED,
    WIRE_VERSION,
    CommitPosition,
    CommitRequest,
    ServerInfo,
    decode_about,
    read_commit,
)
from redrive.wire.result_codec import decode_answer, encode_request

ANSWER_SECONDS = 30.0
"""Seconds to wait for a response."""
UNSENT_SECONDS = 1.0
"""Seconds for which a request that could not be sent is retried."""
LOST_SECONDS = 10.0
"""Seconds for which the server is asked for the outcome of a request whose connection broke."""
PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
MAX_TURNS = 32
"""Maximum number of immediate repeats if a server other than the intended one receives the request."""
QUIET_SECONDS = 10.0
"""Seconds without a response after which the client first asks for the server's position. Responses are kept longer."""
MAX_REQUEST_BYTES = 16 * MIB
"""Maximum bytes of a batch; a larger one is sent in parts."""


class RemoteStore:
    """Queues and items of one namespace, in the store of a server."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        name: str | None = None,
        token: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        server_clock = ServerClock()
        self.clock: Clock = clock or server_clock
        self._server_clock = server_clock if clock is None else None
        self.namespace = namespace
        self._endpoint: Endpoint = endpoint_of(url, namespace, token)
        self.place = self._endpoint.url
        self._open(None)
        try:
            about = self._about()
        except BaseException:
            self._line.close()
            raise
        self.name = about.store if name is None else name
        if self.name != about.store:
            self._line.close()
            raise InvalidInput(
                f"the server at {self._endpoint.url} calls its store '{about.store}', not '{name}'; "
                "leave store_name= out, or start the server with that name"
            )

    def _open(self, wake: Callable[[], None] | None) -> None:
        self._closed = False
        self._pid = os.getpid()
        self._id = secrets.token_hex(12)
        self._numbers = itertools.count(1)
        self._end = threading.Event()
        self._line = HttpTransport(self._endpoint)
        self._watching = ChangeWatcher(self._endpoint, wake)

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        self._check_open()
        wanted = {call.queue for call in calls if call.__class__ is LeaseItems}
        if wanted:
            self._watching.watch_queues(wanted)
        if time.monotonic() - self._seen_at > QUIET_SECONDS:
            self._look()
        return self._commit(calls, now)

    def read(self, query: Query) -> Any:
        self._check_open()
        if query.__class__ is GetResult:
            self._watching.watch_results()
        answer = self._ask("store.read", _encoded(query))
        try:
            return decode_answer(query, answer.body)
        except ValueError as error:  # also for texts that are not UTF-8
            raise StoreFailed(self._endpoint.url, f"its answer cannot be read: {error}") from error

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        raise InvalidInput(
            f"store {self.name} is a server and takes part in no transaction of yours; put without `transaction`, or "
            f"use a store in the database that your transaction is in"
        )

    def poll_changes(self) -> Collection[str] | None:
        self._check_open()
        return self._watching.received()

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._watching.subscribe(wake)

    def durability(self) -> Durability:
        self._check_open()
        return self._about().durability

    def warnings(self) -> tuple[str, ...]:
        self._check_open()
        return self._about().warnings

    def examine(self) -> tuple[str, ...]:
        return ()

    def reopen(self) -> None:
        _kept_for_ever.append((self._line, self._watching))
        self._open(self._watching.wake)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._end.set()
        if self._pid == os.getpid():
            self._watching.close()
            self._line.close()

    def _commit(self, calls: Sequence[Call], now: Instant | None) -> Commit:
        """Commit in one request, or in parts if it is too large."""
        seen = self._seen
        request = CommitRequest(
            f"{self._id}-{next(self._numbers):x}", seen.server_epoch, list(calls), now, position=seen.sequence
        )
        try:
            body = _encoded(request)
            if len(body) <= MAX_REQUEST_BYTES or len(calls) == 1:
                return self._send(request, body)
        except InvalidInput as error:
            if len(calls) == 1:
                return Commit([error], {}, self.clock.now())
        return self._commit_in_parts(calls, now)

    def _commit_in_parts(self, calls: Sequence[Call], now: Instant | None) -> Commit:
        """Commit two halves in sequence, in the order of kinds. If the second one fails, the first one is committed."""

        def execute(positions: Sequence[int]) -> Commit:
            return self._commit([calls[position] for position in positions], now)

        places = in_commit_order(calls)
        half = (len(places) + 1) // 2
        nothing = Commit([None] * len(calls), {}, self.clock.now() if now is None else now)
        first = commit_rest(nothing, places[:half], execute, self.name, is_first=True)
        return commit_rest(first, places[half:], execute, self.name)

    def _send(self, request: CommitRequest, body: bytes) -> Commit:
        """Send a commit and resolve its outcome. Raises `OutcomeUnknown` if that is impossible."""
        request, answer = self._retry_until_sent(request, body)
        if isinstance(answer, ResponseLost):
            answer = self._resolve_outcome(request, answer)
            if answer.status != 200 and self._may_be_repeated(request.calls):
                return self._commit(request.calls, request.now)
        return self._committed(request.calls, answer)

    def _may_be_repeated(self, calls: Sequence[Call]) -> bool:
        """Return whether calls are idempotent, and keys of puts stay known even after the items were completed."""
        if not all(call.is_repeatable for call in calls):
            return False
        names = {call.queue for call in calls if isinstance(call, Put) and call.relies_on_keys}
        try:
            queues: list[Queue] = [self.read(GetQueue(name)) for name in sorted(names)]
        except RedriveError:
            return False
        return all(queue.settings.idempotency_timeout != WITH_ITEM for queue in queues)

    def _retry_until_sent(
        self, request: CommitRequest, body: bytes
    ) -> tuple[CommitRequest, HttpResponse | ResponseLost]:
        """Retry until the intended server has received it. Returns the request as sent and the response, or its loss.

        Raises `StoreUnavailable` if no server has run it.
        """
        tries = _Tries(self._end, UNSENT_SECONDS)
        boots = {request.server_epoch}
        for _ in range(MAX_TURNS):
            try:
                answer = self._post_until_sent(body, tries)
            except ResponseLost as lost:
                return request, lost
            if not is_from_server(answer):
                return request, ResponseLost(f"HTTP status {answer.status}")
            if answer.status != MISDIRECTED:
                return request, answer
            seen = position_in(answer)
            if seen.server_epoch not in boots:  # otherwise servers share the address: retry for the intended one
                boots.add(seen.server_epoch)
                self._see(seen)
                request = msgspec.structs.replace(request, server_epoch=seen.server_epoch, position=seen.sequence)
                body = _encoded(request)
        raise StoreUnavailable(self._endpoint.url, "it is started again and again, or too many servers take turns")

    def _post_until_sent(self, body: bytes, tries: _Tries) -> HttpResponse:
        while True:
            try:
                return self._line.post("store.commit", body, ANSWER_SECONDS)
            except RequestNotSent as problem:
                if not tries.again():
                    raise StoreUnavailable(self._endpoint.url, str(problem)) from problem

    def _resolve_outcome(self, request: CommitRequest, lost: ResponseLost) -> HttpResponse:
        """Repeat the request with the same id. Returns the first response, the response of running it now if it had not
        arrived, or the error that the outcome is unknown. Other errors concern only the repeat and are ignored.

        Raises `OutcomeUnknown` if no server answers.
        """
        body = _encoded(msgspec.structs.replace(request, is_retry=True))
        tries = _Tries(self._end, LOST_SECONDS)
        while tries.again():
            with contextlib.suppress(RequestNotSent, ResponseLost):
                answer = self._post_in_turn(body, tries)
                if is_from_server(answer) and (
                    answer.status == 200 or isinstance(refusal_in(answer, self._endpoint.url), OutcomeUnknown)
                ):
                    return answer
        raise OutcomeUnknown(self._endpoint.url, str(lost)) from lost

    def _post_in_turn(self, body: bytes, tries: _Tries) -> HttpResponse:
        """Return the response of the intended server, or that of another one after `MAX_TURNS` attempts."""
        for _ in range(MAX_TURNS):
            answer = self._line.post("store.commit", body, tries.left)
            if answer.status != MISDIRECTED:
                break
        return answer

    def _look(self) -> None:
        """Read the server's position by a request for no server, so that responses dropped before do not matter if the
        next request is lost. If there is no response, that request will fail itself."""
        body = _encoded(CommitRequest("", "", []))
        for _ in range(2):  # an idle connection may be broken
            with contextlib.suppress(RequestNotSent, ResponseLost):
                answer = self._line.post("store.commit", body, LOST_SECONDS)
                if answer.status == MISDIRECTED and is_from_server(answer):
                    self._see(position_in(answer))
                return

    def _see(self, seen: CommitPosition) -> None:
        self._seen = seen
        self._seen_at = time.monotonic()

    def _committed(self, calls: Sequence[Call], answer: HttpResponse) -> Commit:
        if answer.status != 200:
            error = refusal_in(answer, self._endpoint.url)
            if answer.status == 500:
                raise OutcomeUnknown(self._endpoint.url, str(error))
            raise error
        try:
            seen, commit = read_commit(calls, answer.body)
        except ValueError as error:  # also for texts that are not UTF-8
            raise OutcomeUnknown(self._endpoint.url, f"its answer cannot be read: {error}") from error
        self._see(seen)
        self._follow(commit.now)
        return commit

    def _ask(self, route: str, body: bytes) -> HttpResponse:
        """Send an idempotent request. Retry it if it was not sent, and once if its response was lost."""
        tries = _Tries(self._end, UNSENT_SECONDS)
        was_lost = False
        while True:
            try:
                answer = self._line.post(route, body, ANSWER_SECONDS)
                break
            except (RequestNotSent, ResponseLost) as problem:
                if (was_lost and isinstance(problem, ResponseLost)) or not tries.again():
                    raise StoreUnavailable(self._endpoint.url, str(problem)) from problem
                was_lost |= isinstance(problem, ResponseLost)
        if answer.status != 200:
            raise refusal_in(answer, self._endpoint.url)
        return answer

    def _about(self) -> ServerInfo:
        answer = self._ask("store.about", _encoded(None))
        if answer.content_type != CONTENT_TYPE:
            raise not_a_server(self._endpoint.url, "what answers there is not a Redrive server")
        try:
            about = decode_about(answer.body)
        except ValueError as error:  # also for texts that are not UTF-8
            raise not_a_server(self._endpoint.url, f"what answers there is not a Redrive server ({error})") from error
        if about.wire != WIRE_VERSION:
            problem = f"this client speaks version {WIRE_VERSION}; use the same release of Redrive on both sides"
            raise EngineUnsupported("the server at " + self._endpoint.url, f"version {about.wire}", problem)
        self._see(CommitPosition(about.server_epoch, about.number))
        self._follow(about.now)
        return about

    def _follow(self, now: Instant) -> None:
        if self._server_clock is not None:
            self._server_clock.follow(now)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed


_kept_for_ever: list[object] = []
"""Connections of a parent process, which a child must not close."""


class _Tries:
    """Retries for a limited time, with exponential back-off."""

    def __init__(self, end: threading.Event, seconds: float) -> None:
        self._end = end
        self._until = time.monotonic() + seconds
        self._pause = PAUSE_SECONDS

    @property
    def left(self) -> float:
        """Seconds until the last attempt."""
        return max(self._until - time.monotonic(), PAUSE_SECONDS)

    def again(self) -> bool:
        """Wait for the back-off and return whether to retry."""
        if time.monotonic() >= self._until:
            return False
        pause, self._pause = min(self._pause, self.left), min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return not self._end.wait(pause)


def _encoded(asked: Any) -> bytes:
    try:
        return encode_request(asked)
    except (UnicodeEncodeError, OverflowError, TypeError, NotImplementedError, RecursionError) as error:
        raise InvalidInput(f"this cannot be sent to a server: {error}") from error
