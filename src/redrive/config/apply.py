"""A file becomes the settings of a store: all of it, or nothing.

Everything that can be told before is told before anything is changed. Then all changes are one batch. Where somebody
else changed a queue meanwhile (another process that applies the same file, say), what is left to do is planned anew; if
the store refuses something for good, all that was done is put back. Queues that vanished from the file stay as they
are, and nobody manages them any more; a setting that vanished has its default again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker.broker import Broker
from redrive.broker.flow import CommitCalls, Flow, run_query
from redrive.broker.flows import queues, registrations
from redrive.broker.flows.queues import ManagedSettings
from redrive.broker.flows.registrations import CAPTURE_KIND
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
from redrive.errors import InvalidConfig, InvalidInput, Problem, QueueExists, QueueNotFound, RedriveError, StoreFailed
from redrive.model.dead_queue import check_dead_queues, local_dead_queues, remote_dead_queues
from redrive.model.queue import Queue, QueueSettings
from redrive.model.queue_options import parse_settings
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.core import Core

ACTOR = FILE_NAME
"""Who changes settings, in the audit."""
_OVERTAKEN = (StaleSettings, VersionConflict, QueueExists, QueueNotFound)
"""What a store answers where somebody changed, created or deleted a queue since it was read."""
_log = events.logger("redrive.config")


class ApplyResult(msgspec.Struct, frozen=True):
    """What became of a file: the names of queues."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    """They are not in the file any more, and nobody manages them."""

    @property
    def is_empty(self) -> bool:
        """Whether everything was as the file says."""
        return not (self.created or self.updated or self.released)


def apply(broker: Broker, config: Config) -> ApplyResult:
    """Set what the file says, and register that it manages it.

    Raises `InvalidConfig` where the store refuses something of it, and whatever the store raises; then it is as it was.
    """
    applied = broker.run_flow(_apply(broker.core, config))
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
    """What was done so far, in one round or several."""

    created: set[str] = set()
    updated: set[str] = set()
    released: set[str] = set()
    rollback: list[Call] = []
    """What takes it back, the last of it last."""

    @property
    def result(self) -> ApplyResult:
        """The outcome, each queue once."""
        updated = self.updated - self.created - self.released
        return ApplyResult(*(tuple(sorted(names)) for names in (self.created, updated, self.released)))

    def add(self, plan: _Plan, call: Call, back: Call | None, result: Any) -> None:
        """The store has carried out a call of a plan."""
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
    """What is to be done, and what there was before."""

    present: Mapping[str, Queue]
    wanted: Mapping[str, QueueSettings]
    """Every queue that the file has, or sends its dead to, as it is to be."""
    calls: tuple[Call, ...]
    backs: tuple[Call | None, ...]
    """For each call, the one that takes it back. None: it is made from the result."""


def _apply(core: Core, config: Config) -> Flow[ApplyResult]:
    done = _Done()
    managed_before: dict[str, set[str]] = {}
    try:
        for _ in range(MAX_ROUNDS):
            present = {queue.name: queue for queue in (yield from run_query(ListQueues()))}
            managements = yield from queues.list_managed()
            captures = yield from _list_captures()
            for name, each in managements.items():
                managed_before.setdefault(name, set()).update(each.settings)
            plan = _plan(core, config, present, managements, managed_before, captures)
            if (yield from _carry_out(core, config, plan, done)):
                return done.result
        raise StoreFailed(core.store.name, f"queues of {config.file} changed {MAX_ROUNDS} times meanwhile")
    except RedriveError:
        yield from _put_back(done)
        raise


# What is to be done.


def _plan(
    core: Core,
    config: Config,
    present: Mapping[str, Queue],
    managements: Mapping[str, ManagedSettings],
    managed_before: Mapping[str, Collection[str]],
    captures: Mapping[str, Registration],
) -> _Plan:
    wanted = _wanted(core, config, present, managed_before)
    _check_dead_queues(config, present, wanted)
    calls: list[Call] = []
    backs: list[Call | None] = []
    for name in _in_order(present, wanted):
        queue = present.get(name)
        if queue is None:
            calls.append(CreateQueue(name, wanted[name]))
            backs.append(DeleteQueue(name, None, ACTOR))
        elif queue.settings != wanted[name]:
            calls.append(UpdateQueue(name, wanted[name], queue.version, ACTOR))
            backs.append(None)
    for name, settings in config.queues.items():
        before = managements.get(name)
        after = ManagedSettings(str(config.file), tuple(sorted(settings)), name in config.external)
        if before != after:
            calls.append(queues.manage(name, after))
            backs.append(queues.stop_managing(name) if before is None else queues.manage(name, before))
    released = tuple(
        name for name, each in managements.items() if each.file == str(config.file) and name not in config.queues
    )
    calls += [queues.stop_managing(name) for name in released]
    backs += [queues.manage(name, managements[name]) for name in released]
    for call, back in _capture_calls(config, captures):
        calls.append(call)
        backs.append(back)
    return _Plan(present, wanted, tuple(calls), tuple(backs))


def _list_captures() -> Flow[dict[str, Registration]]:
    """The settings of capture queues that are registered, by queue."""
    return {each.name: each for each in (yield from registrations.list_registrations(CAPTURE_KIND))}


def _capture_calls(config: Config, before: Mapping[str, Registration]) -> Iterator[tuple[Call, Call]]:
    """Register the settings of each capture queue, with the file; remove what this file had registered. With each call,
    the one that undoes it."""
    file = str(config.file)
    wanted = {name: msgspec.json.encode({"file": file, **each}) for name, each in config.captures.items()}
    for name, each in before.items():
        if name not in wanted and _file_of(each.value) == file:
            yield Unregister(CAPTURE_KIND, name), Register(CAPTURE_KIND, name, each.value)
    for name, value in wanted.items():
        known = before.get(name)
        if known is None:
            yield Register(CAPTURE_KIND, name, value, version=0), Unregister(CAPTURE_KIND, name)
        elif known.value != value:
            back = Register(CAPTURE_KIND, name, known.value)
            yield Register(CAPTURE_KIND, name, value, version=known.version), back


def _file_of(value: bytes) -> object:
    """The file that registered settings; None if another program wrote them."""
    try:
        read = msgspec.json.decode(value)
    except ValueError:
        return None
    return read.get("file") if isinstance(read, dict) else None


def _wanted(
    core: Core, config: Config, present: Mapping[str, Queue], managed_before: Mapping[str, Collection[str]]
) -> dict[str, QueueSettings]:
    """The settings of each queue as they are to be; dead queues that are nowhere yet are created.

    `managed_before`: the settings of queues that a file managed, before anything of this one was applied.
    """
    wanted: dict[str, QueueSettings] = {}
    problems = []
    for name, values in config.queues.items():
        usual = parse_settings(CAPTURE_QUEUE if name in config.captures else {})
        base = present[name].settings if name in present else usual
        vanished = set(managed_before.get(name, ())) - values.keys()
        try:
            settings = parse_settings(values, base=queues.without_settings(base, vanished, usual))
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
    """As each store does, but of all at once: how it is when everything was done."""
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
    """Such that no step breaks a rule that the whole keeps.

    Those that end without a dead queue come first: they may become one. Of the others, those that have one already
    come first: what they used until now may be the next to get one.
    """

    def place(name: str) -> int:
        if wanted[name].dead_queue is None:
            return 0
        return 1 if name in present and present[name].settings.dead_queue is not None else 2

    return sorted(wanted, key=place)


# Doing it.


def _carry_out(core: Core, config: Config, plan: _Plan, done: _Done) -> Flow[bool]:
    """Whether all of it was done. If not, somebody changed something meanwhile, and the rest is to be planned anew."""
    yield from _tell(core, config, plan)
    try:
        results: list[Any] = (yield CommitCalls(plan.calls)) if plan.calls else []
    except RedriveError:
        yield from _forget(core, plan)
        raise
    refused: list[tuple[Call, Any]] = []
    for call, back, result in zip(plan.calls, plan.backs, results, strict=True):
        if isinstance(result, Queue):
            core.cache_queue(result)
        if isinstance(result, RedriveError | StaleSettings | VersionConflict):
            refused.append((call, result))
        else:
            done.add(plan, call, back, result)
    yield from _forget(core, plan)
    if any(isinstance(result, _OVERTAKEN) for _, result in refused):
        return False  # what is wrong with the file itself is told by the next plan
    problems = []
    for call, result in refused:
        if not isinstance(result, InvalidInput) or not isinstance(call, CreateQueue | UpdateQueue):
            raise result
        problems.append(_problem(config, call.name, result))
    if problems:
        raise config.invalid(*problems)
    return True


def _put_back(done: _Done) -> Flow[None]:
    """What was done of a file of which something was refused. Whoever changed it since has the last word."""
    if not done.rollback:
        return
    try:
        answers = yield CommitCalls(done.rollback[::-1])
    except RedriveError as error:
        answers = [error]
    left = [str(answer) for answer in answers if isinstance(answer, RedriveError)]
    if left:
        _log.error("config_rollback_failed", errors=left)


def _tell(core: Core, config: Config, plan: _Plan) -> Flow[None]:
    """Dead queues in other stores learn of it first."""
    for name, settings in plan.wanted.items():
        if name in plan.present and plan.present[name].settings == settings:
            continue
        try:
            yield from queues.link_dead_queue(core, name, settings)
        except RedriveError as error:
            yield from _forget(core, plan)
            if isinstance(error, InvalidInput):
                raise config.invalid(_problem(config, name, error)) from None
            raise


def _forget(core: Core, plan: _Plan) -> Flow[None]:
    """Dead queues in other stores that are not used, as it is now, are told so."""
    for name, settings in plan.wanted.items():
        named = set(remote_dead_queues(settings))
        if name in plan.present:
            named |= set(remote_dead_queues(plan.present[name].settings))
        yield from queues.unlink_dead_queue(core, name, named)


def _problem(config: Config, queue: str, error: InvalidInput) -> Problem:
    """What a store or the broker says of a queue, at the key it is about."""
    from redrive.config.queue_tables import problem_in

    if isinstance(error, InvalidConfig):
        raise error
    key, problem = problem_in(error, config.queues.get(queue, {}))
    path: KeyPath = ("queue", queue, *key)
    return config.problem(path, problem)
