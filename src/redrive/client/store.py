"""`RemoteStore`: the contract of `redrive.store`, spoken to a server.

Nothing is done twice. Each commit has an id: where its connection breaks, it is sent again under the same one, and the
server, which remembers what it answered, runs it only if it had not. A server that was started anew does not remember;
then calls that may be repeated are, and of others the outcome is unknown.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from redrive.client.line import Answer, Line, Lost, Server, Unsent, server_at
from redrive.client.repeating import are_safe_to_repeat
from redrive.client.watching import Watching
from redrive.clock import Clock, Instant, ServerClock
from redrive.errors import (
    Closed,
    EngineUnsupported,
    InvalidInput,
    NotAStore,
    OutcomeUnknown,
    RedriveError,
    RequestTooLarge,
    StoreError,
    StoreFailed,
    StoreUnavailable,
)
from redrive.model.item import Receipt
from redrive.model.limits import MIB
from redrive.store import KINDS, Call, Commit, Durability, LeaseItems, Put, Query
from redrive.wire.errors import ErrorBody, error_from
from redrive.wire.messages import (
    CONTENT_TYPE,
    MISDIRECTED,
    WIRE_VERSION,
    About,
    CommitRequest,
    decode_about,
    read_commit,
)
from redrive.wire.results import encode, read_answer

ANSWER_SECONDS = 30.0
"""How long an answer is waited for."""
UNSENT_SECONDS = 1.0
"""How long something is tried again that did not leave."""
LOST_SECONDS = 10.0
"""How long the server is asked again what became of a request whose connection broke."""
PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
MAX_REQUEST_BYTES = 16 * MIB
"""A batch that is larger is sent in parts."""

_GATEWAY = frozenset({502, 503, 504})
"""What something between here and the server answers, when it has not got an answer itself."""
_decode_error = msgspec.json.Decoder(ErrorBody).decode
_PLACES = {kind: place for place, kinds in enumerate(KINDS) for kind in kinds}


class RemoteStore:
    """Queues and items of one namespace, kept by a server."""

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
        self._server: Server = server_at(url, namespace, token)
        self._boot = ""
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
                f"the server at {self._server.url} calls its store '{about.store}', not '{name}'; leave name= out, or "
                f"start the server with that name"
            )

    def _open(self, bell: Callable[[], None] | None) -> None:
        self._closed = False
        self._pid = os.getpid()
        self._id = secrets.token_hex(12)
        self._numbers = itertools.count(1)
        self._end = threading.Event()
        self._line = Line(self._server)
        self._watching = Watching(self._server, bell)

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        self._check_open()
        wanted = {call.queue for call in calls if call.__class__ is LeaseItems}
        if wanted:
            self._watching.want(wanted)
        return self._commit(calls, now)

    def read(self, query: Query) -> Any:
        self._check_open()
        answer = self._ask("store.read", _encoded(query))
        try:
            return read_answer(query, answer.body)
        except ValueError as error:  # also for texts that are not UTF-8
            raise StoreFailed(self._server.url, f"its answer cannot be read: {error}") from error

    def put_within(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        raise InvalidInput(
            f"store {self.name} is a server and takes part in no transaction of yours; put without `within`, or "
            f"use a store in the database that your transaction is in"
        )

    def changed(self) -> Collection[str] | None:
        self._check_open()
        return self._watching.heard()

    def listen(self, bell: Callable[[], None]) -> None:
        self._watching.listen(bell)

    def durability(self) -> Durability:
        self._check_open()
        return self._about().durability

    def warnings(self) -> tuple[str, ...]:
        self._check_open()
        return self._about().warnings

    def reopen(self) -> None:
        _kept_for_ever.append((self._line, self._watching))
        self._open(self._watching.bell)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._end.set()
        if self._pid == os.getpid():
            self._watching.close()
            self._line.close()

    def _commit(self, calls: Sequence[Call], now: Instant | None) -> Commit:
        """In one request, or in parts where it is too large."""
        request = CommitRequest(f"{self._id}-{next(self._numbers):x}", self._boot, list(calls), now)
        try:
            body = _encoded(request)
            if len(body) <= MAX_REQUEST_BYTES or len(calls) == 1:
                return self._send(request, body)
        except InvalidInput as error:
            if len(calls) == 1:
                return Commit([error], {}, self.clock.now())
        except RequestTooLarge as error:
            if len(calls) == 1:
                return Commit([error], {}, self.clock.now())
        return self._commit_in_parts(calls, now)

    def _commit_in_parts(self, calls: Sequence[Call], now: Instant | None) -> Commit:
        """Two halves, one after the other, in the order of kinds. Where the second breaks off, the first is done."""
        places = sorted(range(len(calls)), key=lambda place: _PLACES[calls[place].__class__])
        half = (len(places) + 1) // 2
        first = self._commit([calls[place] for place in places[:half]], now)
        try:
            second = self._commit([calls[place] for place in places[half:]], now)
        except (StoreError, OutcomeUnknown) as problem:
            second = Commit([problem] * (len(places) - half), {}, first.now)
        results: list[Any] = [None] * len(calls)
        for place, result in zip(places, (*first.results, *second.results), strict=True):
            results[place] = result
        return Commit(results, Counter(first.arrivals) + Counter(second.arrivals), second.now)

    def _send(self, request: CommitRequest, body: bytes) -> Commit:
        began_at = time.monotonic()
        lost: Lost | None = None
        tries = _Tries(self._end, UNSENT_SECONDS)
        while True:
            try:
                answer = self._line.post("store.commit", body, ANSWER_SECONDS if lost is None else tries.left)
                if answer.status == MISDIRECTED and lost is None:
                    request = self._redirected(request, answer)
                    body = _encoded(request)
                    raise Unsent("it is started again and again, or is not always the same one")
                if self._says_what_became_of_it(answer, lost is not None):
                    break
                raise Lost(f"HTTP status {answer.status}")
            except Unsent as problem:
                if not tries.again():
                    if lost is not None:
                        raise OutcomeUnknown(self._server.url, str(lost)) from problem
                    raise StoreUnavailable(self._server.url, str(problem)) from problem
            except Lost as problem:
                if lost is None:
                    lost, tries = problem, _Tries(self._end, LOST_SECONDS)
                if not tries.again():
                    raise OutcomeUnknown(self._server.url, str(lost)) from problem
            if lost is not None:
                age = time.monotonic() - began_at
                body = _encoded(msgspec.structs.replace(request, again=True, age=age))
        try:
            return self._committed(request.calls, answer)
        except OutcomeUnknown:
            if lost is None or not are_safe_to_repeat(request.calls):
                raise
        return self._commit(request.calls, request.now)

    def _redirected(self, request: CommitRequest, answer: Answer) -> CommitRequest:
        """The same for the server that answered: it was started since, or is another one."""
        with contextlib.suppress(ValueError, KeyError):
            self._boot = _decode_error(answer.body).details["boot"]
        return msgspec.structs.replace(request, boot=self._boot)

    def _says_what_became_of_it(self, answer: Answer, is_repeated: bool) -> bool:
        """Whether an answer is the server's word on a commit. Something in between may have given it; and who is
        refused when he asks again is not told of what he did before."""
        if answer.status == 200:
            return True
        if is_repeated:
            return isinstance(self._error(answer), OutcomeUnknown)
        return answer.status not in _GATEWAY or answer.content_type == "application/json"

    def _committed(self, calls: Sequence[Call], answer: Answer) -> Commit:
        if answer.status != 200:
            error = self._error(answer)
            if answer.status == 500:
                raise OutcomeUnknown(self._server.url, str(error))
            raise error
        try:
            self._boot, commit = read_commit(calls, answer.body)
        except ValueError as error:  # also for texts that are not UTF-8
            raise OutcomeUnknown(self._server.url, f"its answer cannot be read: {error}") from error
        self._follow(commit.now)
        return commit

    def _ask(self, route: str, body: bytes) -> Answer:
        """Ask what may be asked twice."""
        tries = _Tries(self._end, UNSENT_SECONDS)
        was_lost = False
        while True:
            try:
                answer = self._line.post(route, body, ANSWER_SECONDS)
                break
            except (Unsent, Lost) as problem:
                if (was_lost and isinstance(problem, Lost)) or not tries.again():
                    raise StoreUnavailable(self._server.url, str(problem)) from problem
                was_lost |= isinstance(problem, Lost)
        if answer.status != 200:
            raise self._error(answer)
        return answer

    def _about(self) -> About:
        answer = self._ask("store.about", _encoded(None))
        if answer.content_type != CONTENT_TYPE:
            raise NotAStore(self._server.url, "what answers there is not a Redrive server")
        try:
            about = decode_about(answer.body)
        except ValueError as error:  # also for texts that are not UTF-8
            raise NotAStore(self._server.url, f"what answers there is not a Redrive server ({error})") from error
        if about.wire != WIRE_VERSION:
            problem = f"this client speaks version {WIRE_VERSION}; use the same release of Redrive on both sides"
            raise EngineUnsupported("the server at " + self._server.url, f"version {about.wire}", problem)
        self._boot = about.boot
        self._follow(about.now)
        return about

    def _error(self, answer: Answer) -> RedriveError:
        """What an answer refuses with."""
        try:
            body = _decode_error(answer.body)
        except ValueError:
            if answer.status in _GATEWAY:
                return StoreUnavailable(self._server.url, f"HTTP status {answer.status}")
            return NotAStore(self._server.url, f"no Redrive server answers there, but HTTP status {answer.status}")
        if body.code in ("no_such_path", "method_not_allowed"):
            return NotAStore(self._server.url, "what answers there is not a Redrive server of this release")
        if answer.status == 500:
            return StoreFailed(self._server.url, f"{body.message} {body.details.get('id', '')}".rstrip())
        error = error_from(answer.status, body)
        if isinstance(error, Closed):
            return StoreUnavailable(self._server.url, "it is shutting down")
        return error

    def _follow(self, now: Instant) -> None:
        if self._server_clock is not None:
            self._server_clock.follow(now)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed


_kept_for_ever: list[object] = []
"""Connections of a parent process: the child lets them be."""


class _Tries:
    """Tries again for some time, with pauses that grow."""

    def __init__(self, end: threading.Event, seconds: float) -> None:
        self._end = end
        self._until = time.monotonic() + seconds
        self._pause = PAUSE_SECONDS

    @property
    def left(self) -> float:
        """Seconds until the last try."""
        return max(self._until - time.monotonic(), PAUSE_SECONDS)

    def again(self) -> bool:
        """Wait, and say whether to try again."""
        if time.monotonic() >= self._until:
            return False
        pause, self._pause = min(self._pause, self.left), min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return not self._end.wait(pause)


def _encoded(asked: Any) -> bytes:
    try:
        return encode(asked)
    except (UnicodeEncodeError, OverflowError, TypeError, NotImplementedError, RecursionError) as error:
        raise InvalidInput(f"this cannot be sent to a server: {error}") from error
