"""Applying a config file to a store: the whole file, or nothing of it.

All problems that can be found in advance are reported before anything is changed. Then all changes are one batch. If
another process changed a queue concurrently (one that applies the same file, for example), the remaining changes are
planned again; if the store refuses a change permanently, all completed changes are rolled back. A queue removed from
the file keeps its settings and is no longer managed; a setting removed from the file returns to its default. A queue
that another file manages with other settings is refused, unless this file takes it over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker.broker import Broker
from redrive.broker.flow import CommitCalls, Flow, run_query
from redrive.broker.flows import queues
from redrive.broker.flows.queues import ManagedSettings
from redrive.broker.flows.registrations import CAPTURE_KIND, list_registrations
from redrive.broker.flows.stale_settings import MAX_ROUNDS
from redrive.capture.capture_queue import QUEUE_SETTINGS as CAPTURE_QUEUE
from redrive.config.config import FILE_NAME, Config
from redrive.config.line_numbers import KeyPath
from redrive.contract import Call
from redrive.contract.admin_calls import (
    CreateQueue,
    DeleteQueue,
    Register,
    Registration,
    Unregister,
    UpdateQueue,
    VersionConflict,
)
from redrive.contract.item_calls import StaleSettings
from redrive.contract.queries import ListQueues
from redrive.errors import (
    InvalidConfig,
    InvalidInput,
    Problem,
    QueueExists,
    QueueNotFound,
    RedriveError,
    StoreFailed,
    StoreUnavailable,
)
from redrive.model.dead_queue import check_dead_queues, local_dead_queues, remote_dead_queues
from redrive.model.limits import split_address
from redrive.model.queue import Queue, QueueSettings
from redrive.model.queue_options import parse_settings
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.core import Core

ACTOR = FILE_NAME
"""The actor of changes of settings in the audit."""
_OVERTAKEN = (StaleSettings, VersionConflict, QueueExists, QueueNotFound)
"""The answers of a store if another client changed, created or deleted a queue since it was read."""
_CONTRADICTED = (
    "is managed by {} with other settings; declare the queue in one of the two files. If this one is to replace the "
    "other: redrive config apply --take-over"
)
_log = events.logger("redrive.config")


class ApplyResult(msgspec.Struct, frozen=True):
    """The result of applying a file: the names of the queues."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    """Queues that are no longer in the file, and no longer managed."""
    deferred: Mapping[str, str] = {}
    """Queues that keep their old dead queue, because the store of the new one is unavailable; each with the error."""

    @property
    def is_empty(self) -> bool:
        """True if the store already was as the file says."""
        return not (self.created or self.updated or self.released)


def apply(broker: Broker, config: Config, *, take_over: bool = False, defer: bool = False) -> ApplyResult:
    """Apply the settings of a file, and register that the file manages them.

    take_over: whether it replaces another file that manages some of its queues with other settings.
    defer: whether a queue keeps its old dead queue while the store of the new one is unavailable.
    Raises `InvalidConfig` if the store refuses a part of it, and any error of the store; then the store is unchanged.
    """
    applied = broker.run_flow(_apply(broker.core, config, take_over, defer))
    if not applied.is_empty:
        _log.info(
            "config_applied",
            file=str(config.file),
            created=applied.created or None,
            updated=applied.updated or None,
            released=applied.released or None,
        )
    return applied


class _Done(msgspec.Struct):
    """The changes made so far, in one round or several."""

    created: set[str] = set()
    updated: set[str] = set()
    released: set[str] = set()
    deferred: dict[str, str] = {}
    rollback: list[Call] = []
    """The calls that undo them, in the order of the changes."""

    @property
    def result(self) -> ApplyResult:
        """The result, each queue once."""
        updated = self.updated - self.created - self.released
        names = [tuple(sorted(names)) for names in (self.created, updated, self.released)]
        return ApplyResult(names[0], names[1], names[2], self.deferred)

    def add(self, plan: _Plan, call: Call, back: Call | None, result: Any) -> None:
        """Record that the store has executed a call of a plan."""
        match call:
            case CreateQueue(name):
                self.created.add(name)
            case UpdateQueue(name):
                self.updated.add(name)
                back = UpdateQueue(name, plan.present[name].settings, result.version, ACTOR)
            case Register(kind=kind, name=name) if kind == CAPTURE_KIND:
                self.updated.add(name)
                if isinstance(back, Register):
                    back = msgspec.structs.replace(back, version=result.version)
            case Unregister(kind=kind, name=name) if kind == CAPTURE_KIND:
                self.updated |= {name} if result else set()
            case Unregister(_, name):
                self.released.add(name)
        if back is not None:
            self.rollback.append(back)


class _Plan(msgspec.Struct, frozen=True):
    """The changes to make, and the state before them."""

    present: Mapping[str, Queue]
    wanted: Mapping[str, QueueSettings]
    """The wanted settings of every queue of the file, and of every queue that receives its dead letters."""
    deferred: Collection[str]
    """Queues whose dead queue stays."""
    changes: list[tuple[Call, Call | None]]
    """Each call, and the call that undoes it. None: that is built from the result."""


def _apply(core: Core, config: Config, take_over: bool, defer: bool) -> Flow[ApplyResult]:
    done = _Done()
    managed_before: dict[str, set[str]] = {}
    try:
        for _ in range(MAX_ROUNDS):
            present = {queue.name: queue for queue in (yield from run_query(ListQueues()))}
            managers = {each.name: each for each in (yield from list_registrations(queues.MANAGED_KIND))}
            captures = {each.name: each for each in (yield from list_registrations(CAPTURE_KIND))}
            for name, registered in managers.items():
                if (management := queues.read_managed(registered)) is not None:
                    managed_before.setdefault(name, set()).update(management.settings)
            wanted = _wanted(core, config, present, managed_before, done.deferred)
            plan = _plan(config, present, wanted, managers, captures, done.deferred, take_over)
            away = yield from _tell(core, config, plan, defer)
            if away:
                done.deferred |= away
            elif (yield from _carry_out(core, config, plan, done)):
                return done.result
        raise StoreFailed(core.store.name, f"queues of {config.file} changed concurrently, {MAX_ROUNDS} times")
    except RedriveError:
        yield from _put_back(done)
        raise


# Planning.


def _plan(
    config: Config,
    present: Mapping[str, Queue],
    wanted: Mapping[str, QueueSettings],
    managers: Mapping[str, Registration],
    captures: Mapping[str, Registration],
    deferred: Collection[str],
    take_over: bool,
) -> _Plan:
    _check_dead_queues(config, present, wanted)
    changes: list[tuple[Call, Call | None]] = []
    for name in _in_order(present, wanted):
        queue = present.get(name)
        if queue is None:
            changes.append((CreateQueue(name, wanted[name]), DeleteQueue(name, None, ACTOR)))
        elif queue.settings != wanted[name]:
            changes.append((UpdateQueue(name, wanted[name], queue.version, ACTOR), None))
    file = str(config.file)
    problems = []
    for name, settings in config.queues.items():
        registered = managers.get(name)
        before = None if registered is None else queues.read_managed(registered)
        after = ManagedSettings(file, tuple(sorted(settings)), name in config.external)
        if before is not None and before.file != file and not take_over:
            is_same = before == msgspec.structs.replace(after, file=before.file)
            if not is_same or name not in present or present[name].settings != wanted[name]:
                problems.append(config.problem(("queue", name), _CONTRADICTED.format(before.file)))
        elif before != after:
            call = queues.manage(name, after, 0 if registered is None else registered.version)
            changes.append((call, queues.stop_managing(name) if before is None else queues.manage(name, before)))
    if problems:
        raise config.invalid(*problems)
    for name, registered in managers.items():
        before = queues.read_managed(registered)
        if before is not None and before.file == file and name not in config.queues:
            changes.append((queues.stop_managing(name), queues.manage(name, before)))
    changes += _capture_calls(config, captures, take_over)
    return _Plan(present, wanted, deferred, changes)


def _capture_calls(config: Config, before: Mapping[str, Registration], take_over: bool) -> Iterator[tuple[Call, Call]]:
    """Yield the calls that register the settings of each capture queue with the file, and that remove what this file
    registered before and no longer has. Each comes with the call that undoes it."""
    file = str(config.file)
    problems = []
    for name, each in before.items():
        if name not in config.captures and _file_of(each.value) == file:
            yield Unregister(CAPTURE_KIND, name), Register(CAPTURE_KIND, name, each.value)
    for name, settings in config.captures.items():
        known = before.get(name)
        other = None if known is None else _file_of(known.value)
        keeps = other is not None and other != file and not take_over
        value = msgspec.json.encode({"file": other if keeps else file, **settings})
        if known is None:
            yield Register(CAPTURE_KIND, name, value, version=0), Unregister(CAPTURE_KIND, name)
        elif known.value != value and keeps:
            problems.append(config.problem(("capture", name), _CONTRADICTED.format(other)))
        elif known.value != value:
            back = Register(CAPTURE_KIND, name, known.value)
            yield Register(CAPTURE_KIND, name, value, version=known.version), back
    if problems:
        raise config.invalid(*problems)


def _file_of(value: bytes) -> object:
    """Return the file that registered settings; None if another program wrote them."""
    try:
        read = msgspec.json.decode(value)
    except ValueError:
        return None
    return read.get("file") if isinstance(read, dict) else None


def _wanted(
    core: Core,
    config: Config,
    present: Mapping[str, Queue],
    managed_before: Mapping[str, Collection[str]],
    deferred: Collection[str],
) -> dict[str, QueueSettings]:
    """Return the wanted settings of each queue, including dead queues that do not exist yet.

    `managed_before`: the settings of each queue that a file managed before any of this one was applied.
    `deferred`: the queues whose dead queue stays.
    """
    wanted: dict[str, QueueSettings] = {}
    problems = []
    for name, values in config.queues.items():
        usual = parse_settings(CAPTURE_QUEUE if name in config.captures else {})
        base = present[name].settings if name in present else usual
        vanished = set(managed_before.get(name, ())) - values.keys()
        try:
            settings = parse_settings(values, base=queues.without_settings(base, vanished, usual))
            if name in deferred:
                settings = msgspec.structs.replace(settings, dead_queue=base.dead_queue)
            wanted[name] = queues.normalize_dead_queue(core, settings)
        except InvalidInput as error:
            problems.append(_problem(config, name, error))
    if problems:
        raise config.invalid(*problems)
    for name in [to for settings in wanted.values() for to in local_dead_queues(settings)]:
        if name not in present:
            wanted.setdefault(name, QueueSettings())
    return wanted


def _check_dead_queues(config: Config, present: Mapping[str, Queue], wanted: Mapping[str, QueueSettings]) -> None:
    """Check the rules about dead queues as each store does, in the state after all changes."""
    settings = {**{name: queue.settings for name, queue in present.items()}, **wanted}
    problems = []
    for name in wanted:
        try:
            check_dead_queues(name, wanted[name], settings, present[name].source_queues if name in present else ())
        except InvalidInput as error:
            problems.append(_problem(config, name, error))
    if problems:
        raise config.invalid(*problems)


def _in_order(present: Mapping[str, Queue], wanted: Mapping[str, QueueSettings]) -> list[str]:
    """Return the queues in an order in which no single change breaks a rule that the final state keeps.

    Queues without a dead queue in the final state come first: they may become one. Then come queues that already have
    a dead queue: the one that they used until now may be the next to get a dead queue itself.
    """

    def place(name: str) -> int:
        if wanted[name].dead_queue is None:
            return 0
        return 1 if name in present and present[name].settings.dead_queue is not None else 2

    return sorted(wanted, key=place)


# Executing.


def _carry_out(core: Core, config: Config, plan: _Plan, done: _Done) -> Flow[bool]:
    """Execute a plan. Return false if another client changed a queue concurrently: then the rest is planned again."""
    try:
        results: list[Any] = (yield CommitCalls([call for call, _ in plan.changes])) if plan.changes else []
    except RedriveError:
        yield from _forget(core, plan)
        raise
    refused: list[tuple[Call, Any]] = []
    for (call, back), result in zip(plan.changes, results, strict=True):
        if isinstance(result, Queue):
            core.cache_queue(result)
        if isinstance(result, RedriveError | StaleSettings | VersionConflict):
            refused.append((call, result))
        else:
            done.add(plan, call, back, result)
    yield from _forget(core, plan)
    if any(isinstance(result, _OVERTAKEN) for _, result in refused):
        return False  # the next plan reports the problems of the file itself
    problems = []
    for call, result in refused:
        if not isinstance(result, InvalidInput) or not isinstance(call, CreateQueue | UpdateQueue):
            raise result
        problems.append(_problem(config, call.name, result))
    if problems:
        raise config.invalid(*problems)
    return True


def _put_back(done: _Done) -> Flow[None]:
    """Undo the changes of a file of which a part was refused. A change that another client made since is kept."""
    if not done.rollback:
        return
    try:
        answers = yield CommitCalls(done.rollback[::-1])
    except RedriveError as error:
        answers = [error]
    left = [str(answer) for answer in answers if isinstance(answer, RedriveError)]
    if left:
        _log.error("config_rollback_failed", errors=left)


def _tell(core: Core, config: Config, plan: _Plan, defer: bool) -> Flow[dict[str, str]]:
    """Notify dead queues in other stores before the queues of this store change. With `defer`, return the queues with a
    dead queue in a store that is unavailable, and the error of each."""
    away, deferred = dict[str | None, str](), dict[str, str]()
    for name, settings in plan.wanted.items():
        if name in plan.deferred or (name in plan.present and plan.present[name].settings == settings):
            continue
        stores = {split_address(address)[1] for address in remote_dead_queues(settings)}
        if known := stores & away.keys():
            deferred[name] = away[known.pop()]
            continue
        try:
            yield from queues.link_dead_queue(core, name, settings)
        except RedriveError as error:
            if defer and isinstance(error, StoreUnavailable):
                deferred[name] = str(error)
                away |= dict.fromkeys(stores, str(error))
                continue
            yield from _forget(core, plan)
            if isinstance(error, InvalidInput):
                raise config.invalid(_problem(config, name, error)) from None
            raise
    return deferred


def _forget(core: Core, plan: _Plan) -> Flow[None]:
    """Notify dead queues in other stores that no queue uses now."""
    for name, settings in plan.wanted.items():
        named = set(remote_dead_queues(settings))
        if name in plan.present:
            named |= set(remote_dead_queues(plan.present[name].settings))
        yield from queues.unlink_dead_queue(core, name, named)


def _problem(config: Config, queue: str, error: InvalidInput) -> Problem:
    """Return a refusal of the store or the broker as a problem of the file, at the key that it is about."""
    from redrive.config.queue_tables import problem_in

    if isinstance(error, InvalidConfig):
        raise error
    key, problem = problem_in(error, config.queues.get(queue, {}))
    path: KeyPath = ("queue", queue, *key)
    return config.problem(path, problem)
