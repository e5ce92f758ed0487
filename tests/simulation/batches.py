"""What two stores are asked in one transaction: calls of every kind beside each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from tests.simulation.twins import QUEUES, Twins

from redrive import Broker, Dead, DeadReason, Receipt, RedriveError, RetryVerdict, Settled, Status
from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.admin_calls import Hold, ManualChange, ManualTarget, Register, SetPaused, Unhold
from redrive.contract.item_calls import (
    Complete,
    Extend,
    LeaseByIds,
    Leased,
    LeaseItems,
    NewItem,
    Put,
    Reply,
    ReturnLease,
    Settle,
    leases_of,
)
from redrive.contract.maintenance_calls import ApplyRetention, Expire
from redrive.contract.queries import GetItem, GetOverdue, GetQueue
from redrive.contract.replies import REPLY_TO, REQUEST_ID
from redrive.model.duration import DAY, SECOND
from redrive.model.failure import failure_from_fields
from redrive.model.ids import ItemId
from redrive.model.item import Result
from redrive.model.judge import OutcomeKind, Verdict
from redrive.model.payload import JSON
from redrive.model.state_machine import MANUAL_VERBS, Verb

MakeCall = Callable[[int], Call]
"""The call for each side: the same but for ids."""
FAILURES = tuple(failure_from_fields("Error", text, worker="w") for text in ("boom", "other trouble"))
VERDICTS: dict[OutcomeKind, tuple[Verdict, ...]] = {
    OutcomeKind.FAILED: (
        RetryVerdict.after("5s"),
        RetryVerdict(0, Status.FAILED, ("breaker", "h")),
        Dead(DeadReason.RETRIES_EXHAUSTED),
        Dead(DeadReason.POLICY, to="dead"),
        Dead(DeadReason.POLICY, drop=True),
        Dead(DeadReason.POLICY, to="far@there"),
    ),
    OutcomeKind.RELEASED: (RetryVerdict(0), RetryVerdict(7 * SECOND), Dead(DeadReason.MAX_ATTEMPTS)),
    OutcomeKind.LOST: (RetryVerdict(0), Dead(DeadReason.WORKER_LOST), Dead(DeadReason.WORKER_LOST, to="dead")),
    OutcomeKind.RETURNED: (RetryVerdict(0), RetryVerdict(3 * SECOND)),
    OutcomeKind.BURIED: (Dead(), Dead(to="dead"), Dead(note="enough")),
}
RESULT = Result(b'"done"', JSON)


def commit_batch(twins: Twins, pick: random.Random) -> None:
    # Into one queue: those of several may be written in any order, and are then found in that.
    queue = pick.choice(QUEUES)
    # Stores may take completions apart from other ends of deliveries.
    makers = (*MAKERS, *pick.choice(((_settle, _settle, _settle), (_end, _end))))
    drawn = [pick.choice(makers)(twins, pick, queue) for _ in range(pick.choice([2, 3, 5, 9]))]
    # One of each: stores may take the plain puts of a batch first, and do not see when its leases run out.
    drawn += [maker(twins, pick, queue) for maker in (_put, _lease) if pick.random() < 0.5]
    _commit(twins, [maker for maker in drawn if maker is not None])


def commit_ends(twins: Twins, pick: random.Random) -> None:
    """Ends of deliveries beside puts and a lease: a store may leave some to another transaction, with what follows."""
    if not twins.leases[0]:
        return
    queue, kinds = pick.choice(QUEUES), pick.choice((_ENDS, (*_ENDS, "die")))
    drawn = [_put_plain(queue) for _ in range(pick.choice([0, 0, 1, 3]))]
    drawn += [_end_with_puts(twins, pick, queue, pick.choice(kinds)) for _ in range(pick.choice([2, 4, 7]))]
    # Stores may take plain completions last.
    drawn += [_end_with_puts(twins, pick, queue, "complete") for _ in range(pick.choice([0, 0, 2]))]
    drawn += [_lease(twins, pick, queue) for _ in range(pick.choice([0, 1]))]
    _commit(twins, drawn)


def _commit(twins: Twins, made: list[MakeCall]) -> None:
    def carry_out(side: int, broker: Broker) -> list[Any]:
        results = broker.core.store.commit([maker(side) for maker in made], twins.clocks[side].now()).results
        return [replace(each, leases=tuple(each.leases)) if isinstance(each, Leased) else each for each in results]

    names = [type(maker(0)).__name__ for maker in made]
    answers = twins.ask(f"batch of {names}", carry_out)
    for side, results in enumerate(answers):
        _keep(twins, side, results)


def _keep(twins: Twins, side: int, results: list[Any]) -> None:
    for result in results:
        twins.leases[side] += leases_of(result)
        for each in result if isinstance(result, tuple) else (result,):
            if isinstance(each, Receipt) or (isinstance(each, Settled) and each.source_id):
                twins.ids[side].append(each.id)


def _put(twins: Twins, pick: random.Random, queue: str) -> MakeCall:
    now = twins.clocks[0].now()
    possible: dict[str, Callable[[], Any]] = {
        "headers": lambda: {REPLY_TO: pick.choice([*QUEUES, "far@there", "nowhere"]), REQUEST_ID: "r"},
        "priority": lambda: pick.choice([0, 9]),
        "delay": lambda: 5 * SECOND,
        "enqueue_at": lambda: Instant(now + pick.choice([-3, 4]) * SECOND),
        "expire_timeout": lambda: pick.choice([SECOND, 3 * SECOND]),
        "idempotency_key": lambda: pick.choice("xyz"),
        "held_by": lambda: pick.choice(["h", "breaker"]),
        "hold_is_lasting": lambda: True,
        "source_id": lambda: ItemId(f"{pick.choice([1, 2, 3]):032x}"),
    }
    items = []
    for _ in range(pick.choice([1, 1, 2, 4])):
        fields = {name: draw() for name, draw in possible.items() if pick.random() < 0.15}
        if "source_id" in fields:
            fields.pop("idempotency_key", None)
        items.append(NewItem(b"1", JSON, **fields, is_plain=fields.keys() <= {"priority", "expire_timeout"}))
    return lambda side: Put(queue, tuple(items))


def _put_plain(queue: str) -> MakeCall:
    return lambda side: Put(queue, (NewItem(b"2", JSON, is_plain=True),))


_ENDS = ("put", "put", "put", "put", "put by key", "put by key", "retry", "release", "extend", "return")


def _end_with_puts(twins: Twins, pick: random.Random, queue: str, kind: str) -> MakeCall:
    """The end of a delivery, most often a completion that puts an item."""
    count = len(twins.leases[0])
    position = pick.randrange(max(0, count - 10), count)  # most of the others have ended
    item = NewItem(pick.choice([b"1", b"2"]), JSON, idempotency_key=pick.choice("xyz"))
    if kind == "put":
        item = NewItem(b"1", JSON, is_plain=True)

    def call(side: int) -> Call:
        lease = twins.leases[side][position]
        match kind:
            case "put" | "put by key":
                return Complete(lease.token, puts=(Put(queue, (item,)),))
            case "complete":
                return Complete(lease.token)
            case "extend":
                return Extend(lease.token, 30 * SECOND)
            case "return":
                return ReturnLease(lease.token)
            case _:
                outcome_kind, verdict = _VERDICTS_OF_ENDS[kind]
                failure = None if kind == "release" else FAILURES[0]
                return Settle(lease.token, outcome_kind, verdict, _version(twins, side, lease.id), failure)

    return call


_VERDICTS_OF_ENDS: dict[str, tuple[OutcomeKind, Verdict]] = {
    "retry": (OutcomeKind.FAILED, RetryVerdict(0, Status.FAILED)),
    "release": (OutcomeKind.RELEASED, RetryVerdict(0)),
    "die": (OutcomeKind.FAILED, Dead(DeadReason.POLICY)),
}


def _settle(twins: Twins, pick: random.Random, queue: str) -> MakeCall | None:
    if not twins.leases[0]:
        return None
    position = pick.randrange(len(twins.leases[0]))
    kind = pick.choice(tuple(VERDICTS))
    verdict, failure = pick.choice(VERDICTS[kind]), pick.choice((None, *FAILURES))
    if kind is OutcomeKind.FAILED:
        failure = failure or FAILURES[0]
        kind = pick.choice((kind, kind, OutcomeKind.EXTRA_FAILED))
    note = pick.choice([None, "so"])

    def call(side: int) -> Settle:
        lease = twins.leases[side][position]
        version = _version(twins, side, lease.id)
        return Settle(lease.token, kind, verdict, version, failure, note, worker_is_gone=True)

    return call


def _end(twins: Twins, pick: random.Random, queue: str) -> MakeCall | None:
    """A delivery that ends in a plain way, or continues."""
    if not twins.leases[0]:
        return None
    position, reply = pick.randrange(len(twins.leases[0])), pick.choice([None, None, RESULT])
    puts = (Put(queue, (NewItem(b"1", JSON),)),) if pick.random() < 0.2 else ()
    kept, wanted = pick.choice([None, 30 * SECOND]), pick.choice([None, None, None, queue])
    kind = pick.choice((Complete, Complete, Complete, ReturnLease, Extend, Reply))
    if REPLY_TO not in twins.leases[0][position].headers:  # of two reasons to refuse a reply, stores may name either
        reply, kind = None, Complete if kind is Reply else kind

    def call(side: int) -> Call:
        token = twins.leases[side][position].token
        if kind is Complete:
            return Complete(token, RESULT, puts, kept, wanted, reply)
        return Reply(token, RESULT, wanted) if kind is Reply else kind(token, queue=wanted)

    return call


def _change(twins: Twins, pick: random.Random, queue: str) -> MakeCall | None:
    if not twins.ids[0]:
        return None
    verb = pick.choice(sorted(MANUAL_VERBS - {Verb.RESCHEDULE}))  # which the frozen store does not know
    positions = [pick.randrange(len(twins.ids[0])) for _ in range(pick.choice([1, 2, 6]))]
    to = pick.choice([None, None, *QUEUES]) if verb in (Verb.REDRIVE, Verb.MOVE) else None
    kind = OutcomeKind.FAILED if verb is Verb.FAIL else OutcomeKind.BURIED
    verdict = pick.choice(VERDICTS[kind]) if verb in (Verb.FAIL, Verb.BURY) else None
    failure, force = FAILURES[0] if verb is Verb.FAIL else None, pick.random() < 0.3

    def call(side: int) -> ManualChange:
        ids = [ItemId(twins.ids[side][position]) for position in positions]
        targets = [ManualTarget(id, verdict, (verdict and _version(twins, side, id)) or 0, failure) for id in ids]
        return ManualChange(verb, tuple(targets), "ann", force, to)

    return call


def _hold(twins: Twins, pick: random.Random, queue: str) -> MakeCall | None:
    if not twins.ids[0]:
        return None
    positions = [pick.randrange(len(twins.ids[0])) for _ in range(pick.choice([1, 3]))]
    name, lasting, released = pick.choice(("h", "g", "breaker")), pick.random() < 0.5, pick.random() < 0.4
    stale = pick.choice([None, None, 0, 1])

    def call(side: int) -> Call:
        ids = tuple(ItemId(twins.ids[side][position]) for position in positions)
        if released:
            return Unhold(name, ids)
        version = None if stale is None else _queue_version(twins, side, queue) - stale
        return Hold(ids, name, lasting, None if version is None else (queue, version))

    return call


def _expire(twins: Twins, pick: random.Random, queue: str) -> MakeCall | None:
    overdue = [
        [each for each in broker.core.store.read(GetOverdue()) if each.token is None] for broker in twins.brokers
    ]
    if not overdue[0] or len(overdue[0]) != len(overdue[1]):
        return None
    position, to = pick.randrange(len(overdue[0])), pick.choice([None, "dead"])

    def call(side: int) -> Expire:
        id = overdue[side][position].id
        return Expire(id, Dead(DeadReason.EXPIRED, to), _version(twins, side, id))

    return call


def _lease(twins: Twins, pick: random.Random, queue: str) -> MakeCall:
    limit = pick.choice([1, 3])
    return lambda side: LeaseItems(queue, limit, "w")


def _lease_by_id(twins: Twins, pick: random.Random, queue: str) -> MakeCall:
    positions = [pick.randrange(len(twins.ids[0])) for _ in range(3)] if twins.ids[0] else []
    dead = pick.random() < 0.7
    return lambda side: LeaseByIds(tuple(ItemId(twins.ids[side][each]) for each in positions), "w", None, dead)


def _maintain(twins: Twins, pick: random.Random, queue: str) -> MakeCall:
    # What a batch itself makes due may be promoted by it, or by the next one: Promote comes alone, by maintenance.
    call: Call = pick.choice((ApplyRetention(), SetPaused(queue, pick.random() < 0.2, "ann")))
    return lambda side: call


def _register(twins: Twins, pick: random.Random, queue: str) -> MakeCall:
    puts = (Put(queue, (NewItem(b"1", JSON, idempotency_key=pick.choice([None, "x"])),)),)
    call = Register("schedule", pick.choice("xy"), b"v", None, pick.choice([None, 0]), puts)
    return lambda side: call


MAKERS: tuple[Callable[[Twins, random.Random, str], MakeCall | None], ...] = (
    *(_change, _change, _change, _hold, _expire, _expire, _lease_by_id, _maintain, _register),
)


def long_time(twins: Twins, pick: random.Random) -> None:
    """What is kept for days is forgotten: keys, source ids, entries of the feed, operations. Seldom, as all is gone."""
    if pick.random() < 0.85:
        return
    days = pick.choice([2, 8, 40])
    for clock in twins.clocks:
        clock.advance(days * DAY // SECOND)
    twins.log.append(f"{days} days pass")
    twins.ask("step", lambda _, broker: broker.run_maintenance())


def work_off(twins: Twins, pick: random.Random) -> None:
    """Several deliveries of one queue end in one transaction: deaths, retries and completions in the order of it."""
    queue, deaths = pick.choice(QUEUES), [pick.choice(VERDICTS[OutcomeKind.FAILED]) for _ in range(pick.randrange(6))]
    ends = [*deaths, *[None] * (6 - len(deaths))]  # stores may take plain completions last
    answers = twins.ask(f"lease 6 of {queue}", lambda _, broker: broker.lease(queue, 6, worker="w"))
    if isinstance(answers[0], RedriveError) or not answers[0]:
        return

    def carry_out(side: int, broker: Broker) -> list[Any]:
        version = broker.core.store.read(GetQueue(queue)).version
        calls = [
            Complete(lease.token) if end is None else Settle(lease.token, OutcomeKind.FAILED, end, version, FAILURES[0])
            for lease, end in zip(answers[side], ends, strict=False)
        ]
        return broker.core.store.commit(calls, twins.clocks[side].now()).results

    settled = twins.ask(f"work off {[end and type(end).__name__ for end in ends]}", carry_out)
    for side, results in enumerate(settled):
        _keep(twins, side, results)


def _version(twins: Twins, side: int, id: ItemId) -> int:
    """Of the settings of the queue that an item is in; 1 where it is gone."""
    try:
        return _queue_version(twins, side, twins.brokers[side].core.store.read(GetItem(id)).queue)
    except RedriveError:
        return 1


def _queue_version(twins: Twins, side: int, queue: str) -> int:
    try:
        version: int = twins.brokers[side].core.store.read(GetQueue(queue)).version
    except RedriveError:
        return 1
    return version
