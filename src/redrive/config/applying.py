"""A file becomes the settings of a store: all of it, or nothing.

Everything that can be told before is told before anything is changed. Then all changes are one batch; if the store
refuses one of them all the same, those that it took are put back. Queues that vanished from the file stay as they are,
and nobody manages them any more; a setting that vanished has its default again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker import dead_queues, managed
from redrive.broker.broker import Broker
from redrive.broker.flow import Flow, Send, ask
from redrive.broker.managed import Management
from redrive.broker.queues import MAX_ROUNDS
from redrive.config.config import FILE_NAME, Config
from redrive.config.lines import KeyPath
from redrive.errors import InvalidFile, InvalidInput, QueueExists, RedriveError, StoreFailed
from redrive.model.dead_queue import check_dead_queues, elsewhere, here
from redrive.model.queue import Queue, QueueSettings, settings_from
from redrive.store import Call, CreateQueue, DeleteQueue, ListQueues, Stale, UpdateQueue
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.core import Core

ACTOR = FILE_NAME
"""Who changes settings, in the audit."""
_log = events.logger("redrive.file")


class Applied(msgspec.Struct, frozen=True):
    """What became of a file: the names of queues."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    """They are not in the file any more, and nobody manages them."""

    @property
    def is_nothing(self) -> bool:
        """Whether everything was as the file says."""
        return not (self.created or self.updated or self.released)


def apply(broker: Broker, config: Config) -> Applied:
    """Set what the file says, and register that it manages it.

    Raises `InvalidFile` where the store refuses something of it, and whatever the store raises; then it is as it was.
    """
    applied = broker._run(_apply(broker._core, config))
    if not applied.is_nothing:
        _log.info(
            "file_applied",
            file=str(config.file),
            created=applied.created or None,
            updated=applied.updated or None,
            released=applied.released or None,
        )
    return applied


class _Plan(msgspec.Struct, frozen=True):
    """What is to be done, and what there was before."""

    present: Mapping[str, Queue]
    wanted: Mapping[str, QueueSettings]
    """Every queue that the file has, or sends its dead to, as it is to be."""
    calls: tuple[Call, ...]
    backs: tuple[Call | None, ...]
    """For each call, the one that takes it back. None: it is made from the result."""
    released: tuple[str, ...]


def _apply(core: Core, config: Config) -> Flow[Applied]:
    for _ in range(MAX_ROUNDS):
        present = {queue.name: queue for queue in (yield from ask(ListQueues()))}
        managements = yield from managed.managements()
        plan = _plan(core, config, present, managements)
        results = yield from _carry_out(core, config, plan)
        if results is not None:
            return _applied(plan)
    raise StoreFailed(core.store.name, f"queues of {config.file} changed {MAX_ROUNDS} times meanwhile")


def _applied(plan: _Plan) -> Applied:
    created = tuple(call.name for call in plan.calls if isinstance(call, CreateQueue))
    updated = tuple(call.name for call in plan.calls if isinstance(call, UpdateQueue))
    return Applied(created, updated, plan.released)


# What is to be done.


def _plan(core: Core, config: Config, present: Mapping[str, Queue], managements: Mapping[str, Management]) -> _Plan:
    wanted = _wanted(core, config, present, managements)
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
        before, after = managements.get(name), Management(str(config.file), tuple(sorted(settings)))
        if before != after:
            calls.append(managed.manage(name, after))
            backs.append(managed.leave(name) if before is None else managed.manage(name, before))
    released = tuple(
        name for name, each in managements.items() if each.file == str(config.file) and name not in config.queues
    )
    calls += [managed.leave(name) for name in released]
    backs += [managed.manage(name, managements[name]) for name in released]
    return _Plan(present, wanted, tuple(calls), tuple(backs), released)


def _wanted(
    core: Core, config: Config, present: Mapping[str, Queue], managements: Mapping[str, Management]
) -> dict[str, QueueSettings]:
    """The settings of each queue as they are to be; dead queues that are nowhere yet are created."""
    wanted: dict[str, QueueSettings] = {}
    problems = []
    for name, values in config.queues.items():
        base = present[name].settings if name in present else QueueSettings()
        vanished = set(managements[name].settings) - values.keys() if name in managements else set()
        try:
            settings = settings_from(values, base=managed.without(base, vanished))
            wanted[name] = dead_queues.addressed(core, settings)
        except InvalidInput as error:
            problems.append(_problem(config, name, error))
    if problems:
        raise config.invalid(*problems)
    for name in [to for settings in wanted.values() for to in here(settings)]:
        if name not in present:
            wanted.setdefault(name, QueueSettings())
    return wanted


def _check_dead_queues(config: Config, present: Mapping[str, Queue], wanted: Mapping[str, QueueSettings]) -> None:
    """As each store does, but of all at once: how it is when everything was done."""
    settings = {**{name: queue.settings for name, queue in present.items()}, **wanted}
    problems = []
    for name in wanted:
        try:
            check_dead_queues(name, wanted[name], settings, present[name].used_by if name in present else ())
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


def _carry_out(core: Core, config: Config, plan: _Plan) -> Flow[list[Any] | None]:
    """The results, if all of it was done. None: somebody changed something meanwhile, and it is to be planned anew."""
    yield from _tell(core, config, plan)
    try:
        results: list[Any] = (yield Send(plan.calls)) if plan.calls else []
    except RedriveError:
        yield from _forget(core, plan)
        raise
    refused = [(call, result) for call, result in zip(plan.calls, results, strict=True) if _is_refused(result)]
    if refused:
        yield from _put_back(plan, results)
    for result in results:
        if isinstance(result, Queue):
            core.remember(result)
    yield from _forget(core, plan)
    problems = []
    for call, result in refused:
        if isinstance(result, InvalidInput) and isinstance(call, CreateQueue | UpdateQueue):
            problems.append(_problem(config, call.name, result))
        elif isinstance(result, RedriveError) and not isinstance(result, QueueExists):
            raise result
    if problems:
        raise config.invalid(*problems)
    return None if refused else results


def _is_refused(result: Any) -> bool:
    return isinstance(result, RedriveError | Stale)


def _put_back(plan: _Plan, results: Iterable[Any]) -> Flow[None]:
    """What was done of a plan of which something was refused. Whoever changed it since has the last word."""
    calls: list[Call] = []
    for call, back, result in zip(plan.calls, plan.backs, results, strict=True):
        if _is_refused(result):
            continue
        if isinstance(call, UpdateQueue):
            calls.append(UpdateQueue(call.name, plan.present[call.name].settings, result.version, ACTOR))
        elif back is not None:
            calls.append(back)
    if not calls:
        return
    answers = yield Send(calls[::-1])
    left = [str(answer) for answer in answers if isinstance(answer, RedriveError)]
    if left:
        _log.error("file_not_put_back", errors=left)


def _tell(core: Core, config: Config, plan: _Plan) -> Flow[None]:
    """Dead queues in other stores learn of it first."""
    for name, settings in plan.wanted.items():
        if name in plan.present and plan.present[name].settings == settings:
            continue
        try:
            yield from dead_queues.tell(core, name, settings)
        except RedriveError as error:
            yield from _forget(core, plan)
            if isinstance(error, InvalidInput):
                raise config.invalid(_problem(config, name, error)) from None
            raise


def _forget(core: Core, plan: _Plan) -> Flow[None]:
    """Dead queues in other stores that are not used, as it is now, are told so."""
    for name, settings in plan.wanted.items():
        named = set(elsewhere(settings))
        if name in plan.present:
            named |= set(elsewhere(plan.present[name].settings))
        yield from dead_queues.take_back(core, name, named)


def _problem(config: Config, queue: str, error: InvalidInput) -> tuple[int, str, str]:
    """What a store or the broker says of a queue, at the key it is about."""
    from redrive.config.queues import told_by

    if isinstance(error, InvalidFile):
        raise error
    key, problem = told_by(error, config.queues.get(queue, {}))
    path: KeyPath = ("queue", queue, *key)
    return config.problem(path, problem)
