"""Random histories for two stores, which are asked the same: every verb there is, on odd items too."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from tests.simulation.batches import commit_batch, commit_ends, long_time, work_off
from tests.simulation.many_items import (
    change_by_hand,
    drive_operation,
    import_again,
    look_at_all_items,
    look_at_many,
    set_operation,
    start_operation,
)
from tests.simulation.registrations import change_registrations, look_at_all_results, look_at_work
from tests.simulation.twins import QUEUES, Ask, Twins, by_queue

from redrive import Broker, Dead, DeadReason, Lease, RetryVerdict, Status, new_item
from redrive.clock import Instant
from redrive.contract.item_calls import NewItem, Put, Settle
from redrive.contract.maintenance_calls import ApplyRetention, Receive
from redrive.contract.queries import GetQueue, ListMoves, ListMoveTargets, ListOpenMoves, ListOperations, ReadFeed
from redrive.model.breaker import Breaker
from redrive.model.duration import SECOND
from redrive.model.failure import failure_from_fields
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.model.judge import OutcomeKind
from redrive.model.payload import JSON
from redrive.testing.conformance.gates import change_of

Step = Callable[[Twins, random.Random], None]
CALLS = 120
FEWEST_ANSWERS = 60
POLICIES: list[dict[str, Any]] = [
    {"attempts": 3, "delay": "exponential", "base": "4s", "cap": "6s"},
    {"attempts": 9, "delay": "never"},
    {"attempts": 1, "by_type": {"Error": "1s"}, "by_class": {"network": "never"}},
]
BY_A_WORKER = failure_from_fields("Error", "outside", worker="w1")


def random_history(
    twins: Twins, after_each: Callable[[], None] = lambda: None, steps: Sequence[Step] | None = None
) -> None:
    """Ask both the same random things, STEPS unless others are given, and then everything."""
    pick = twins.random
    twins.ask("create dead", lambda _, broker: broker.create_queue("dead"))
    for name in ("a", "b"):
        settings = {**some_settings(pick), "on_dead": pick.choice(["keep", "keep", "drop"])}
        twins.ask(f"create {name}", lambda _, broker, n=name, s=settings: broker.create_queue(n, **s))  # type: ignore[misc]
    for _ in range(CALLS):
        pick.choice(steps or STEPS)(twins, pick)
        after_each()
    look_at_everything(twins)
    for broker in twins.brokers:
        broker.close()
    assert len(twins.log) > FEWEST_ANSWERS, "too little was asked to prove anything"


def some_settings(pick: random.Random) -> dict[str, Any]:
    return {
        "retry": {"attempts": pick.choice([0, 1, 2, 3]), "cooldown": pick.choice(["0s", "10s"])},
        "max_losses": pick.choice([0, 1, 2]),
        "keep_completed": pick.choice([0, "30s"]),
        "keep_dead": pick.choice([None, "100s"]),
        "expire_timeout": pick.choice([None, "60s"]),
        "max_size": pick.choice([None, 8]),
        "dead_queue": pick.choice([None, "dead", "dead", "far@there"]),
        "idempotency_timeout": pick.choice(["50s", "item"]),
        "lease_timeout": "20s",
        "archive_after": pick.choice([None, None, "50s"]),
        "keep_archived": pick.choice([None, None, "80s"]),
        "keep_dropped": pick.choice(["40s", "7d", 0]),
        "search": pick.random() < 0.8,
        "feed": pick.choice(["all", "all", ["dead", "redriven"]]),
    }


def put(twins: Twins, pick: random.Random) -> None:
    queue, value = pick.choice(QUEUES), pick.choice([1, 2])
    options: dict[str, Any] = {"idempotency_key": pick.choice("xyz")} if pick.random() < 0.3 else {}
    possible: dict[str, Any] = {"priority": 7, "delay": 15, "expire_timeout": 40, "held_by": "h", "max_attempts": 1}
    possible |= {"headers": {"tenant": pick.choice("ab")}, "retry": pick.choice(POLICIES)}
    options |= {name: setting for name, setting in possible.items() if pick.random() < 0.2}
    twins.keep(twins.ask(f"put {queue} {options}", lambda _, broker: broker.put(queue, value, **options)))


def put_failed(twins: Twins, pick: random.Random) -> None:
    queue, value, error = pick.choice(QUEUES), pick.choice([1, 1, 2]), pick.choice(["boom", BY_A_WORKER])
    possible = {"verdict": pick.choice(VERDICTS), "retry": pick.choice(POLICIES), "max_attempts": 1}
    options: dict[str, Any] = {name: setting for name, setting in possible.items() if pick.random() < 0.2}
    options["idempotency_key"] = pick.choice(["x", "y", "z", None])
    answers = twins.ask(f"put failed {queue}", lambda _, broker: broker.put_failed(queue, value, error, **options))
    twins.keep(answers)


def put_many_failed(twins: Twins, pick: random.Random) -> None:
    queue, dropped = pick.choice(QUEUES), Dead(DeadReason.POLICY, drop=True)
    drawn = [(pick.choice(["x", "y", None]), pick.choice([*VERDICTS[:4], dropped])) for _ in range(pick.choice([1, 3]))]

    def call(side: int) -> Put:
        version = twins.brokers[side].core.store.read(GetQueue(queue)).version
        failed = {"failure": BY_A_WORKER, "version": version}
        return Put(
            queue, tuple(NewItem(b"1", JSON, idempotency_key=key, verdict=verdict, **failed) for key, verdict in drawn)
        )

    twins.keep(twins.commit(f"several failures in {queue} with puts", call))


def put_many(twins: Twins, pick: random.Random) -> None:
    queue = pick.choice(QUEUES)
    options = [(pick.choice([5, 5, 7]), pick.choice([None, None, "x", "w"])) for _ in range(pick.randrange(4))]
    items = [new_item(n, priority=priority, idempotency_key=key) for n, (priority, key) in enumerate(options)]
    twins.keep(twins.ask(f"put many {queue}", lambda _, broker: broker.put_many(queue, items)))


def lease(twins: Twins, pick: random.Random) -> None:
    queue, limit = pick.choice(QUEUES), pick.choice([1, 1, 2, 5])
    answers = twins.ask(f"lease {queue} {limit}", lambda _, broker: broker.lease(queue, limit, worker="w"))
    twins.keep(answers, leases=True)


def lease_by_id(twins: Twins, pick: random.Random) -> None:
    if not twins.ids[0]:
        return
    positions = [pick.randrange(len(twins.ids[0])) for _ in range(pick.choice([1, 1, 3, 8]))]
    options: dict[str, Any] = {"include_dead": pick.random() < 0.7, "lease_timeout": pick.choice([None, 5, 60])}
    answers = twins.ask(
        f"lease {positions} {options}",
        lambda side, broker: broker.lease_by_id([twins.ids[side][p] for p in positions], worker="w", **options),
    )
    twins.keep([[each for each in answer if isinstance(each, Lease)] for answer in answers], leases=True)


VERDICTS = (
    RetryVerdict.after("5s"),
    RetryVerdict(0, Status.PENDING),
    Dead(DeadReason.POLICY),
    Dead(DeadReason.POLICY, to="dead"),
    Dead(DeadReason.POLICY, to="a"),
    Dead(DeadReason.POLICY, to="nowhere"),
)


def settle(twins: Twins, pick: random.Random) -> None:
    if not twins.leases[0]:
        return
    position, by_token = pick.randrange(len(twins.leases[0])), pick.random() < 0.3
    note, delay, flag, verdict = (
        pick.choice([None, "n"]),
        pick.choice([0, 7]),
        pick.random() < 0.5,
        pick.choice(VERDICTS),
    )
    # Into one queue: those of several may be written in any order, and are then found in that.
    target = pick.choice(QUEUES)
    puts = [(target, 1), (target, new_item(2, idempotency_key="x")), (target, 3)]

    def held(side: int) -> Any:
        chosen = twins.leases[side][position]
        return chosen.token if by_token else chosen

    verbs: dict[str, Ask] = {
        "complete": lambda side, broker: broker.complete(held(side), result=note),
        "complete kept": lambda side, broker: broker.complete(held(side), result=note, keep_result=30),
        "complete kept with puts": lambda side, broker: broker.complete(held(side), puts=puts, keep_result=30),
        "complete with puts": lambda side, broker: broker.complete(held(side), puts=puts),
        "fail": lambda side, broker: broker.fail(held(side), "err", final=flag),
        "fail with verdict": lambda side, broker: broker.fail(held(side), "err", verdict=verdict),
        "release": lambda side, broker: broker.release(held(side), delay=delay, counted=flag, error=note),
        "bury": lambda side, broker: broker.bury(held(side), note=note),
        "lost": lambda side, broker: broker.report_lost(held(side), note or "killed"),
        "extend": lambda side, broker: broker.extend(held(side), 10),
    }
    verb = pick.choice(tuple(verbs))
    twins.ask(verb, verbs[verb])
    if pick.random() < 0.7:
        for leases in twins.leases:
            leases.pop(position)


def by_hand(twins: Twins, pick: random.Random) -> None:
    if not twins.ids[0]:
        return
    positions = [pick.randrange(len(twins.ids[0])) for _ in range(pick.choice([1, 1, 3]))]
    name, lasting = pick.choice("hg"), pick.random() < 0.5
    force, to = pick.random() < 0.3, pick.choice([None, None, "a", "nowhere", "far@there"])

    def ids(side: int) -> list[str]:
        return [twins.ids[side][position] for position in positions]

    verbs: dict[str, Ask] = {
        "retry": lambda side, broker: broker.retry(ids(side), force=force),
        "redrive": lambda side, broker: broker.redrive(ids(side), force=force, to=to),
        "done": lambda side, broker: broker.complete_items(ids(side), force=force),
        "drop": lambda side, broker: broker.drop(ids(side), force=force),
        "archive": lambda side, broker: broker.archive(ids(side)),
        "restore": lambda side, broker: broker.restore(ids(side)),
        "undo": lambda side, broker: broker.undo(ids(side)),
        "fail": lambda side, broker: broker.fail_items(ids(side), "hand", force=force),
        "bury": lambda side, broker: broker.bury_items(ids(side), force=force, note="x"),
        "hold": lambda side, broker: broker.hold(ids(side), name, lasting=lasting),
        "unhold": lambda side, broker: broker.unhold(name),
    }
    verb = pick.choice(("redrive", "redrive", "drop", "undo", *verbs))
    twins.ask(f"{verb} by hand {positions} force={force} to={to}", verbs[verb])


def from_elsewhere(twins: Twins, pick: random.Random) -> None:
    """Items go to the other store and come back; some of them are received twice."""
    twice, to = pick.random() < 0.3, pick.choice([None, None, *(f"{queue}@here" for queue in QUEUES)])
    fate = pick.choice(["redrive", "move", "complete"])
    twins.read("destinations", lambda _: ListMoveTargets())
    twins.ask("moves", lambda _, broker: broker.moves())
    twins.ask("step", lambda _, broker: broker.run_maintenance().moved)

    def come_back(_: int, broker: Broker) -> Any:
        there = broker.on_store("there")
        for lease in there.lease("far", 2):
            if fate == "complete":
                there.complete(lease)
            elif fate == "move":
                there.move(lease.id, to or "a@here", force=True)
            else:
                there.redrive(lease.id, to=to, force=True)
        moves = there.core.store.read(ListMoves())
        calls = [Receive(move.route.to.partition("@")[0], move, "there") for move in moves]
        received = broker.core.store.commit(calls).results if twice else []
        left_open = sorted(each.queue for each in broker.core.store.read(ListOpenMoves("there")))
        return fate, received, left_open, there.run_maintenance().moved

    twins.ask("come back", come_back)


def queue_changes(twins: Twins, pick: random.Random) -> None:
    queue, settings = pick.choice(QUEUES), some_settings(pick)
    verbs: dict[str, Ask] = {
        "update": lambda _, broker: broker.update_queue(queue, **settings),
        "pause": lambda _, broker: broker.pause_queue(queue),
        "resume": lambda _, broker: broker.resume_queue(queue),
        "delete": lambda _, broker: broker.delete_queue(queue, confirm=3),
    }
    verb = pick.choice(("resume", "resume", *verbs))
    twins.ask(f"{verb} {queue}", verbs[verb])
    if verb == "delete":  # a store may remove the items at the next retention, and then counts them
        twins.ask("sweep", lambda side, broker: sweep(broker, twins.clocks[side].now()))


def sweep(broker: Broker, now: Instant) -> None:
    broker.core.store.commit([ApplyRetention()], now)


def change_gates(twins: Twins, pick: random.Random) -> None:
    """Without a gate half of the time, so that most leases are given."""
    queue, now = pick.choice(QUEUES), twins.clocks[0].now()
    until = Instant(now + pick.choice([0, 0, 3, 30]) * SECOND)
    gate = pick.choice([None, Gate(BREAKER_GATE, until, pick.choice([None, 0, 1, 3]))])
    breakers = pick.choice([(), (Breaker("network", now, until, "20 failures", SECOND, until),)])
    stale, replaced = pick.random() < 0.1, pick.random() < 0.9

    def set_breakers(_: int, broker: Broker) -> Any:
        call = change_of(broker.get_queue(queue), *breakers, **({"gate": gate} if replaced else {}))
        return broker.core.store.commit([msgspec.structs.replace(call, version=call.version - stale)]).results[0]

    twins.ask(f"breakers of {queue}", set_breakers)


def refuse_for_a_time(twins: Twins, pick: random.Random) -> None:
    """A peer of the item answers with a Retry-After."""
    if not twins.leases[0]:
        return
    position, seconds = pick.randrange(len(twins.leases[0])), pick.choice([-1, 2, 20, 10_000])
    verdict = RetryVerdict(0, pick.choice([Status.FAILED, Status.PENDING]))
    kind = OutcomeKind.FAILED if verdict.status is Status.FAILED else OutcomeKind.RELEASED

    def settle(side: int, broker: Broker) -> Any:
        lease, until = twins.leases[side][position], Instant(twins.clocks[side].now() + seconds * SECOND)
        version = broker.get_queue(broker.get(lease.id).queue).version
        call = Settle(lease.token, kind, verdict, version, close_until=until)
        return broker.core.store.commit([call]).results[0]

    twins.ask("retry after", settle)


def advance(twins: Twins, pick: random.Random) -> None:
    seconds = pick.choice([1, 5, 11, 25, 70])
    for clock in twins.clocks:
        clock.advance(seconds)
    twins.log.append(f"{seconds} s pass")
    if pick.random() < 0.4:
        twins.ask("step", lambda _, broker: broker.run_maintenance())


def look(twins: Twins, pick: random.Random) -> None:
    if pick.random() < 0.2:
        look_at_everything(twins)
    else:
        queue = pick.choice(QUEUES)
        twins.ask(f"stats {queue}", lambda _, broker: broker.stats(queue))


def look_at_everything(twins: Twins) -> None:
    for queue in QUEUES:
        twins.ask(f"stats {queue}", lambda _, broker, q=queue: broker.stats(q))  # type: ignore[misc]
        twins.ask(f"queue {queue}", lambda _, broker, q=queue: broker.get_queue(q))  # type: ignore[misc]
        twins.ask(f"keys of {queue}", lambda _, broker, q=queue: broker.find_by_key(q, list("xyzwp")))  # type: ignore[misc]
    twins.ask("stats of all", lambda _, broker: broker.list_stats())
    for position in range(len(twins.ids[0])):
        twins.ask(f"get {position}", lambda side, broker, p=position: broker.get(twins.ids[side][p]))  # type: ignore[misc]
    twins.ask("audit", lambda _, broker: by_queue(broker.audit(1_000)))
    twins.ask("feed", lambda _, broker: by_queue(broker.core.store.read(ReadFeed(limit=10_000)).entries))
    twins.read("operations", lambda _: ListOperations())
    look_at_all_items(twins)
    look_at_all_results(twins)


STEPS: Sequence[Step] = (
    *(put, put, put_many, put_failed, put_many_failed, lease, lease, lease_by_id, settle, settle, settle),
    *(by_hand, by_hand, queue_changes, change_gates, refuse_for_a_time, advance, look),
    *(change_by_hand, change_by_hand, start_operation, drive_operation, drive_operation, drive_operation),
    *(set_operation, import_again, look_at_many, look_at_many, from_elsewhere, from_elsewhere),
    *(change_registrations, look_at_work, commit_batch, commit_batch, commit_batch, commit_batch, work_off, work_off),
    long_time,
)
"""What may happen, the frequent things more than once."""
STEPS_OF_ENDS: Sequence[Step] = (
    *(put, put_many, lease, lease, lease, lease_by_id, lease_by_id, settle, by_hand, advance),
    *[commit_ends] * 8,
)
"""Mostly batches of calls that end deliveries."""
