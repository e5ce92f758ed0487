"""What two stores are asked about many items: changes by hand, operations, imports; finding, groups, the feed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.simulation.twins import QUEUES, Twins

from redrive import Dead, DeadReason, Operation, RedriveError, Status
from redrive.clock import Instant
from redrive.contract.admin_calls import ManualChange, ManualTarget, SetOperation, StartOperation, StepOperation
from redrive.contract.maintenance_calls import Import
from redrive.contract.queries import CountItems, FindItems, GetItem, GetNextDue, GetQueue, ListGroups, ReadFeed
from redrive.model.classify import ErrorClass
from redrive.model.duration import SECOND
from redrive.model.feed import FeedKind
from redrive.model.filter import Filter, Order
from redrive.model.ids import ItemId
from redrive.model.item import Result
from redrive.model.operation import BULK_VERBS, OperationStatus
from redrive.model.state_machine import Verb

WORDS = ("boom", "err hand", "bo*", "policy", "1", "n", "x", "edited", "never", "!?")
TYPES = ("", "Error", "redrive.Error", "Boom")

MakeFilter = Callable[[int], Filter]


def change_by_hand(twins: Twins, pick: random.Random) -> None:
    if not twins.ids[0]:
        return
    verb = pick.choice(
        (Verb.UNDO, Verb.UNDO, Verb.MOVE, Verb.MOVE, Verb.PURGE, Verb.REDRIVE, Verb.REDRIVE, Verb.ARCHIVE, Verb.DROP)
    )
    positions = [pick.randrange(len(twins.ids[0])) for _ in range(pick.choice([1, 2, 8]))]
    to = pick.choice([None, *QUEUES, "nowhere"]) if verb is not Verb.MOVE else pick.choice([None, *QUEUES, *QUEUES])
    force, note = pick.random() < 0.3, pick.choice([None, "why"])
    payload = Result(b'"edited"' * pick.choice([1, 2]), "application/json") if pick.random() < 0.5 else None
    headers = {"tenant": "edited"} if pick.random() < 0.3 else None
    if verb is not Verb.REDRIVE:
        payload = headers = None

    def call(side: int) -> ManualChange:
        ids = [ItemId(twins.ids[side][position]) for position in positions]
        targets = tuple(ManualTarget(id, payload=payload, headers=headers) for id in ids)
        return ManualChange(verb, targets, "me", force, to, note)

    twins.keep_settled(twins.commit(f"{verb} {positions} to={to} force={force} edited={payload or headers}", call))


def start_operation(twins: Twins, pick: random.Random) -> None:
    verb, where = pick.choice(sorted(BULK_VERBS)), some_filter(twins, pick, few=True)
    options: dict[str, Any] = {
        "to": pick.choice([None, None, *QUEUES]) if verb in (Verb.MOVE, Verb.REDRIVE) else None,
        "rate": pick.choice([None, None, 0.5]),
        "canary": pick.choice([0, 0, 1, 2]) if verb is not Verb.BURY else 0,  # which a broker refuses
        "paused": pick.random() < 0.1,
        "note": pick.choice([None, "many"]),
    }
    answers = twins.commit(
        f"start {verb} {options} {where(0)}",
        lambda side: StartOperation(verb=verb, where=where(side), actor="me", **options),
    )
    if isinstance(answers[0], Operation):
        for side, operation in enumerate(answers):
            twins.operations[side].append(operation.id)


def drive_operation(twins: Twins, pick: random.Random) -> None:
    if not twins.operations[0]:
        return
    position, limit = pick.randrange(len(twins.operations[0])), pick.choice([1, 2, 3, 1000])
    versions = [{queue: _version(twins, side, queue) for queue in QUEUES} for side in (0, 1)]
    to = pick.choice([None, "dead"])

    def call(side: int) -> StepOperation:
        id = twins.operations[side][position]
        known = {
            queue: (Dead(DeadReason.BURIED, to if queue != "dead" else None), version)
            for queue, version in versions[side].items()
            if version is not None
        }
        if limit == 3:
            known.pop("a", None)
        return StepOperation(id, twins.brokers[side].get_operation(id).steps, limit, known)

    twins.commit(f"step operation {position} by {limit}", call)


def _version(twins: Twins, side: int, queue: str) -> int | None:
    try:
        version: int = twins.brokers[side].core.store.read(GetQueue(queue)).version
    except RedriveError:
        return None
    return version


def set_operation(twins: Twins, pick: random.Random) -> None:
    if not twins.operations[0]:
        return
    position = pick.randrange(len(twins.operations[0]))
    running, paused = OperationStatus.RUNNING, OperationStatus.PAUSED
    status = pick.choice([None, running, running, paused, OperationStatus.CANCELLED, OperationStatus.STOPPED])
    rate, problem = pick.choice([None, 0, 2.0]), "odd" if status is OperationStatus.STOPPED else None
    twins.commit(
        f"set operation {position} {status} {rate}",
        lambda side: SetOperation(twins.operations[side][position], "me", status, problem, rate),
    )


def import_again(twins: Twins, pick: random.Random) -> None:
    if not twins.ids[0]:
        return
    queue = pick.choice(QUEUES)
    positions = [pick.randrange(len(twins.ids[0])) for _ in range(pick.choice([1, 3]))]

    def call(side: int) -> Import:
        store = twins.brokers[side].core.store
        return Import(queue, tuple(store.read(GetItem(ItemId(twins.ids[side][each]))) for each in positions), "me")

    twins.keep(twins.commit(f"import {positions} into {queue}", call))


def look_at_many(twins: Twins, pick: random.Random) -> None:
    where, order, limit = some_filter(twins, pick), pick.choice(list(Order)), pick.choice([1, 3, 100])
    twins.ask(f"find {where(0)} {order} by {limit}", lambda side, _: _all_pages(twins, side, where(side), order, limit))
    twins.read(f"count {where(0)}", lambda side: CountItems(where(side)))
    queue = pick.choice([None, *QUEUES])
    twins.read(f"groups of {queue}", lambda _: ListGroups(queue))
    twins.read("next due", lambda _: GetNextDue())
    _look_at_feed(twins, pick)


def look_at_all_items(twins: Twins) -> None:
    """In their order: letters and archived items by their deaths, others by puts and moves."""
    for status in (None, Status.DEAD, Status.ARCHIVED):
        where = Filter(status=status)
        twins.ask(f"all {status}", lambda side, _, w=where: _all_pages(twins, side, w, Order.OLDEST, 100))  # type: ignore[misc]


def _all_pages(twins: Twins, side: int, where: Filter, order: Order, limit: int) -> list[Any]:
    pages, cursor = [], None
    while True:
        page = twins.brokers[side].core.store.read(FindItems(where, order, limit, cursor))
        pages.append(page.items)
        if (cursor := page.cursor) is None:
            return pages


def _look_at_feed(twins: Twins, pick: random.Random) -> None:
    position = pick.randrange(len(twins.ids[0])) if twins.ids[0] and pick.random() < 0.3 else None
    queue = pick.choice(QUEUES)
    kinds = pick.choice([None, None, (FeedKind.DEAD,), (FeedKind.REDRIVEN, FeedKind.UNDONE)])
    backwards, limit = pick.random() < 0.5, pick.choice([1, 10, 1000])

    def query(side: int) -> ReadFeed:
        id = None if position is None else ItemId(twins.ids[side][position])
        return ReadFeed(None, limit, queue, id, kinds, before=2**62 if backwards else None)

    twins.read(f"feed of {queue} {position} {kinds} backwards={backwards}", query)


def some_filter(twins: Twins, pick: random.Random, *, few: bool = False) -> MakeFilter:
    """A filter for each side: the same but for ids."""
    now = twins.clocks[0].now()
    possible: dict[str, Callable[[], Any]] = {
        "queue": lambda: pick.choice(QUEUES),
        "origin_queue": lambda: pick.choice(QUEUES),
        "reason": lambda: pick.choice(list(DeadReason)),
        "error_type": lambda: pick.choice(TYPES),
        "error_class": lambda: pick.choice(list(ErrorClass)),
        "fingerprint": lambda: pick.choice(twins.fingerprints or ["0" * 16]),
        "words": lambda: pick.choice(WORDS),
        "since": lambda: Instant(now - pick.choice([1, 20, 100]) * SECOND),
        "until": lambda: Instant(now - pick.choice([0, 1, 20, 100]) * SECOND),
        "min_attempts": lambda: pick.choice([0, 1, 2]),
        "min_redrives": lambda: pick.choice([0, 1]),
        "max_redrives": lambda: pick.choice([0, 1]),
        "headers": lambda: {"tenant": pick.choice(["a", "edited"])},
        "held": lambda: pick.random() < 0.5,
        "held_by": lambda: "h",
        "archived": lambda: True,
        "dropped": lambda: pick.random() < 0.5,
    }
    chance = 0.05 if few else 0.12
    conditions = {name: choose() for name, choose in possible.items() if pick.random() < chance}
    statuses = (Status.DEAD, Status.DEAD, Status.DEAD, None, Status.ARCHIVED, Status.PENDING, Status.FAILED)
    conditions["status"] = pick.choice([*statuses, Status.ACTIVE, Status.COMPLETED])
    listed = [pick.randrange(len(twins.ids[0])) for _ in range(6)] if twins.ids[0] and pick.random() < 0.15 else None
    prefix = pick.randrange(len(twins.ids[0])) if twins.ids[0] and pick.random() < 0.05 else None
    operation = pick.randrange(len(twins.operations[0])) if twins.operations[0] and pick.random() < 0.2 else None

    def of(side: int) -> Filter:
        own = dict(conditions)
        if listed is not None:
            own["ids"] = tuple(twins.ids[side][position] for position in listed)
        if prefix is not None:
            own["id_prefix"] = twins.ids[side][prefix][:8]
        if operation is not None:
            own["operation"] = twins.operations[side][operation]
        return Filter(**own)

    return of
