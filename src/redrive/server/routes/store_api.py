"""The routes for our own client, `redrive.client`: the contract of `redrive.store` in MessagePack.

Calls of many clients share transactions. A request repeated because its connection broke gets the first response, and
runs once.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from redrive.auth.caller import Caller
from redrive.auth.permissions import WATCHES_QUEUES
from redrive.auth.principal import Permission
from redrive.auth.result_filter import filter_results, visible_arrivals, withheld_tokens
from redrive.auth.store_call_authorization import authorize_calls
from redrive.broker.core import Core
from redrive.broker.flow import raise_if_refused
from redrive.broker.notifier import Notifier
from redrive.contract import Call, Query
from redrive.contract.admin_calls import SetOperation, StartOperation
from redrive.contract.item_calls import Complete, LeaseItems, Put, ReturnLease, Settle
from redrive.contract.maintenance_calls import Import
from redrive.errors import InvalidInput, OutcomeUnknown, RedriveError, RequestTooLarge
from redrive.model.ids import RESULTS
from redrive.model.item import Settled
from redrive.model.judge import RetryVerdict
from redrive.model.limits import MAX_CALLS_PER_COMMIT
from redrive.server import response_budget
from redrive.server.long_poll import ArrivalLog
from redrive.server.replay_cache import ReplayCache
from redrive.server.request import MESSAGEPACK, Request, Response
from redrive.server.route import Route
from redrive.server.validation.dispatch import validate_call
from redrive.store import Commit
from redrive.telemetry import events
from redrive.wire.error_codec import ErrorBody
from redrive.wire.messages import (
    MISDIRECTED,
    WIRE_VERSION,
    CommitPosition,
    CommitRequest,
    ServerInfo,
    WatchAnswer,
    decode_commit,
    decode_query,
    decode_watch,
    encode_commit,
)
from redrive.wire.result_codec import encode

_log = events.logger("redrive.server")

MAX_ID_CHARS = 100
"""Maximum length of a request id, which is stored with the response."""
MAX_ITEMS_PER_COMMIT = 100_000
"""Maximum number of new items in one commit, which delays other commits. Our client splits larger ones."""
MAX_WATCHED = 1000
"""Maximum number of queues that one client watches by name; with more, it watches all."""


def routes(*, trusts_clock: bool = False) -> tuple[Route, ...]:
    """Return the routes. With `trusts_clock`, clients set the time: for tests only."""
    remote = _Remote(trusts_clock)
    handlers = {
        "store.about": (remote.about, "What a client has to know of this server."),
        "store.commit": (remote.commit, "Execute calls of the store contract, exactly once."),
        "store.read": (remote.read, "Answer a query of the contract of stores."),
        "store.watch": (remote.watch, "Wait until something arrives in a queue."),
    }
    return tuple(
        Route(
            name=name,
            summary=summary,
            request_type=None,
            response_type=None,
            permission=Permission.READ,
            handler=handle,
        )
        for name, (handle, summary) in handlers.items()
    )


class _Remote:
    """The shared state of the routes: the epoch of this server, its responses, and pending watches."""

    def __init__(self, trusts_clock: bool) -> None:
        self._trusts_clock = trusts_clock
        self._server_epoch = secrets.token_hex(8)
        self._answers: ReplayCache[Response | OutcomeUnknown] = ReplayCache(_size)
        self._arrivals: WeakKeyDictionary[Notifier, ArrivalLog] = WeakKeyDictionary()
        """By notifier: a namespace that was closed and opened again has a new one."""

    @property
    def _seen(self) -> CommitPosition:
        return CommitPosition(self._server_epoch, self._answers.number)

    async def about(self, request: Request, body: bytes) -> Response:
        store = request.broker.core.store
        loop = asyncio.get_running_loop()
        durability = await loop.run_in_executor(None, store.durability)
        warnings = await loop.run_in_executor(None, store.warnings)
        now, number = store.clock.now(), self._answers.number
        return _response(ServerInfo(WIRE_VERSION, self._server_epoch, store.name, now, durability, warnings, number))

    async def commit(self, request: Request, body: bytes) -> Response:
        asked: CommitRequest = _decoded("store.commit", decode_commit, body)
        if len(asked.id) > MAX_ID_CHARS:
            raise InvalidInput(f"the id of a request has {MAX_ID_CHARS} characters at most")
        id = (request.principal.name, request.namespace, asked.id)
        work = self._answers.get(id)
        if work is None:
            if asked.server_epoch != self._server_epoch:
                return self._misdirected()
            if asked.is_retry and not self._answers.covers_since(asked.position):
                problem = "the connection broke, and the server that it was sent to does not remember it"
                raise OutcomeUnknown(request.broker.core.store.name, problem)
            work = asyncio.ensure_future(self._commit(request, asked))
            self._answers.add(id, work)
        answer = await asyncio.shield(work)  # a repeated request finds the task, even if this client is gone
        if isinstance(answer, OutcomeUnknown):
            raise answer
        return answer

    def _misdirected(self) -> Response:
        seen = msgspec.structs.asdict(self._seen)
        body = ErrorBody("misdirected", "this is for another server, and this one did not run it", seen)
        return Response(MISDIRECTED, msgspec.json.encode(body))

    async def _commit(self, request: Request, asked: CommitRequest) -> Response | OutcomeUnknown:
        """Commit and return the response; also an unknown outcome is returned, since the request must not run again."""
        if len(asked.calls) > MAX_CALLS_PER_COMMIT:
            raise RequestTooLarge("the number of calls", MAX_CALLS_PER_COMMIT)
        if sum(map(_new_items, asked.calls)) > MAX_ITEMS_PER_COMMIT:
            raise RequestTooLarge("the number of items", MAX_ITEMS_PER_COMMIT)
        calls = await self._authorized(request, asked.calls)
        let_in = [call for call in calls if not isinstance(call, RedriveError)]
        core = request.broker.core
        try:
            commit = await self._carry_out(core, let_in, asked)
        except OutcomeUnknown as unknown:
            return unknown
        try:
            return await self._answer(request, asked, calls, let_in, commit)
        except Exception:  # it is committed: a repeated request must not run again
            _log.exception("response_internal_error", id=asked.id)
            return OutcomeUnknown(core.store.name, "it was committed, and the outcome of each call is unknown")

    async def _answer(
        self, request: Request, asked: CommitRequest, calls: Sequence[Any], let_in: Sequence[Call], commit: Commit
    ) -> Response:
        core = request.broker.core
        _wake(core, let_in, commit)
        most = request.limits.max_response_bytes
        kept, given_back = response_budget.truncate_results(let_in, commit.results, most, commit.now)
        given_back += withheld_tokens(request.caller, let_in, kept)
        if given_back:
            with contextlib.suppress(RedriveError):  # then the leases expire
                await self._carry_out(core, [ReturnLease(token) for token in given_back], asked)
        results = iter(kept)
        answered = [call if isinstance(call, RedriveError) else next(results) for call in calls]
        shown = await request.broker.run_flow(filter_results(request.caller, asked.calls, answered))
        given = Commit(shown, visible_arrivals(request.caller, _caused(let_in, commit)), commit.now)
        return Response(200, encode_commit(self._seen, asked.calls, given), MESSAGEPACK)

    async def _carry_out(self, core: Core, calls: Sequence[Call], asked: CommitRequest) -> Commit:
        if asked.now is None:
            return await core.committer.submit_many(calls)
        if not self._trusts_clock:
            raise InvalidInput("a server keeps its own time; leave `now` out")
        loop = asyncio.get_running_loop()
        commit = await loop.run_in_executor(None, core.store.commit, calls, asked.now)
        core.notify.notify_arrivals(commit.arrivals)
        return commit

    async def read(self, request: Request, body: bytes) -> Response:
        asked: Query = _decoded("store.read", decode_query, body)
        query = raise_if_refused((await self._authorized(request, (asked,)))[0])
        core, most = request.broker.core, request.limits.max_response_bytes
        answer = await asyncio.get_running_loop().run_in_executor(None, response_budget.read, core, query, most)
        (shown,) = await request.broker.run_flow(filter_results(request.caller, (asked,), (answer,)))
        return _response(shown)

    async def _authorized(self, request: Request, calls: Sequence[Call | Query]) -> list[Any]:
        """Return each call, validated, since its values come from a client, or the error that refuses it."""
        now = request.broker.core.clock.now()
        return await request.broker.run_flow(
            authorize_calls(request.caller, calls, lambda call: validate_call(call, now))
        )

    async def watch(self, request: Request, body: bytes) -> Response:
        asked = _decoded("store.watch", decode_watch, body)
        arrivals = self._arrivals_of(request)
        if asked.server_epoch != self._server_epoch:
            return _response(WatchAnswer(self._server_epoch, arrivals.number, None, True))
        queues = _allowed(request.caller, asked.queues)
        seconds = max(0.0, min(asked.seconds, request.limits.wait_seconds))
        await request.wait_for(arrivals.wait(asked.since, queues, seconds))
        number = arrivals.number  # read before the arrivals: a duplicate notification is better than a missed one
        found = arrivals.since(asked.since, queues)
        return _response(WatchAnswer(self._server_epoch, number, found, number > asked.since))

    def _arrivals_of(self, request: Request) -> ArrivalLog:
        notify = request.broker.core.notify
        arrivals = self._arrivals.get(notify)
        if arrivals is None:
            arrivals = self._arrivals[notify] = ArrivalLog(notify)
        return arrivals


def _size(answer: Response | OutcomeUnknown) -> int:
    return len(answer.body) if isinstance(answer, Response) else 0


def _allowed(caller: Caller, queues: Collection[str] | None) -> Collection[str] | None:
    """Return those of the queues that the caller may watch. Result topics, which name no item, are for all callers."""
    if caller.may_everywhere(WATCHES_QUEUES):
        return None if queues is None or len(queues) > MAX_WATCHED else queues
    some = islice(queues or (), MAX_WATCHED)
    return [name for name in some if name == RESULTS or caller.may(WATCHES_QUEUES, name)]


def _wake(core: Core, calls: Sequence[Call], commit: Commit) -> None:
    """Wake the maintenance for work that the calls have created."""
    if any(isinstance(call, StartOperation | SetOperation) for call in calls):
        core.wake_maintenance()
    core.start_moves(commit.results)


def _caused(calls: Sequence[Call], commit: Commit) -> Mapping[str, int]:
    """Return the arrivals that calls of this request may have caused; all arrivals if that is unknown."""
    queues: set[str] = set()
    for call, result in zip(calls, commit.results, strict=True):
        match call:
            case Put() | LeaseItems():
                queues.add(call.queue)
            case Complete(reply=None):
                queues.update(put.queue for put in call.puts)
            case ReturnLease() | Settle(verdict=RetryVerdict()) if isinstance(result, Settled | RedriveError):
                queues.update(() if isinstance(result, RedriveError) else (result.queue,))
            case _:
                return commit.arrivals
    return {name: count for name, count in commit.arrivals.items() if name in queues or name.startswith(RESULTS)}


def _new_items(call: Call) -> int:
    return len(call.items) if isinstance(call, Import) else sum(len(put.items) for put in call.puts)


def _decoded(name: str, decode: Any, body: bytes) -> Any:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the request is not what {name} takes: {error}") from error


def _response(answer: Any) -> Response:
    return Response(200, encode(answer), MESSAGEPACK)
