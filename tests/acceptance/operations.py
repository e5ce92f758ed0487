"""The operations that are interrupted at every point, each with the state it starts from.

An operation is a list of steps, and each is acknowledged when it returns. Whatever happens, the file then holds the
state after all acknowledged steps, or that with the next step done as well; nothing between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from redrive import Broker, Settled, connect, new_item
from redrive.clock import Instant
from redrive.contract.admin_calls import Register, StepOperation
from redrive.contract.item_calls import NewItem, Put, Settle
from redrive.contract.maintenance_calls import ApplyRetention
from redrive.model.breaker import Breaker
from redrive.model.duration import MINUTE
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.model.item import Status
from redrive.model.judge import OutcomeKind, RetryVerdict
from redrive.testing.conformance.gates import change_of
from redrive.testing.fake_clock import FakeClock

Prepare = Callable[[Broker], Any]
Step = Callable[[Broker, Any], object]

ITEMS = 3
"""Items that lie around in other places while an operation runs: none of them may be touched."""

MANY, FEW = 20, 5
"""Items of a bulk change, and how many of them lie in a dead queue."""


class Operation(NamedTuple):
    """What is done to which file."""

    name: str
    prepare: Prepare | None
    """Makes the file, and gives what the steps need. None: there is no file, and opening it is part of the first."""
    steps: Sequence[Step]
    later: str = "0s"
    """How far the clock has gone on since the file was made."""
    checkpoint_pages: int | None = None
    """When to copy the log back, where it is not to be left to the engine."""


def open_broker(path: Path, later: str = "0s", **options: Any) -> Broker:
    """A broker on a clock that stands still, so that two runs of the same calls give the same state."""
    clock = FakeClock()
    clock.advance(later)
    return connect(f"sqlite:///{path}", clock=clock, maintenance=False, actor="test", **options)


def furnish(broker: Broker) -> None:
    """Queues, and items in every place."""
    broker.create_queue("morgue")
    broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1m"}, lease_timeout="1m", keep_completed="1d")
    broker.create_queue("moving", dead_queue="morgue", lease_timeout="1m")
    broker.create_queue("short", expire_timeout="10s")
    for n in range(ITEMS):
        broker.put("jobs", f"waits {n}", delay="1h")
        broker.put("jobs", f"held {n}", held_by="breaker")
        broker.put("jobs", n, priority=9)
    done, dead, _ = broker.lease("jobs", ITEMS)
    broker.complete(done)
    broker.fail(dead, "boom", final=True)


def _pending(broker: Broker) -> None:
    furnish(broker)
    broker.put_many("jobs", range(ITEMS))


def _gated(broker: Broker) -> None:
    _pending(broker)
    _set_gate(broker, 2)


def _set_gate(broker: Broker, allowance: int) -> None:
    """The breaker of the queue opens, and its gate gives that many leases."""
    queue, now = broker.get_queue("jobs"), broker.core.clock.now()
    breakers = (Breaker("queue", now, now, "20 failures", MINUTE, now),)
    gate = Gate(BREAKER_GATE, now, allowance)
    broker.submit(change_of(queue, *breakers, actor="test", note="why", gate=gate))


def _refuse(broker: Broker, lease: Any) -> None:
    """The delivery ends by a Retry-After."""
    version, until = broker.get_queue("jobs").version, Instant(lease.leased_at + MINUTE)
    verdict = RetryVerdict(MINUTE, Status.FAILED)
    broker.submit(Settle(lease.token, OutcomeKind.FAILED, verdict, version, close_until=until))


def _leased(broker: Broker, queue: str = "jobs") -> Any:
    furnish(broker)
    broker.put(queue, {"the": "item"})
    return broker.lease(queue)[0]


def _dead(broker: Broker, queue: str) -> str:
    return broker.fail(_leased(broker, queue), ValueError("boom"), final=True).id


def _dead_in_place(broker: Broker) -> str:
    return _dead(broker, "jobs")


def _dead_and_leased(broker: Broker) -> Any:
    return broker.lease_by_id(_dead_in_place(broker), include_dead=True)


def _dead_moved(broker: Broker) -> str:
    return _dead(broker, "moving")


def _expiring(broker: Broker) -> None:
    furnish(broker)
    broker.put_many("short", range(ITEMS))
    broker.put_many("moving", ["lost 1", "lost 2"])
    broker.lease("moving", 2)


def _doomed_queue(broker: Broker) -> None:
    furnish(broker)
    broker.create_queue("doomed")
    broker.put_many("doomed", [new_item(n, idempotency_key=str(n)) for n in range(ITEMS)])
    broker.fail(broker.lease("doomed")[0], "boom")
    ids = [item.id for item in broker.find(queue="doomed", status="pending").items]
    for name in ("one", "two"):
        broker.hold(ids, name, lasting=True)


def _many_dead(broker: Broker) -> list[str]:
    """Most of them in one queue, some in a dead queue."""
    furnish(broker)
    broker.put_many("jobs", range(MANY - FEW))
    broker.put_many("moving", range(FEW))
    ids: list[str] = []
    for queue in ("jobs", "moving"):
        for lease in broker.lease(queue, MANY):
            ids.append(broker.fail(lease, ValueError(f"boom in {queue}"), final=True).id)
    return ids


def _redriven(broker: Broker) -> list[str]:
    settled = broker.redrive(_many_dead(broker))
    return [each.id for each in settled if isinstance(each, Settled)]


def _archived(broker: Broker) -> list[str]:
    ids = _many_dead(broker)
    broker.archive(ids)
    return ids


def _in_every_status(broker: Broker) -> list[str]:
    """Ready with a key, delayed, held, failed, dead in place and in a dead queue, completed, leased, archived."""
    furnish(broker)
    broker.update_queue("jobs", keep_completed="30d", keep_dropped="1h")
    ready = broker.put("jobs", 7, idempotency_key="k").id
    waiting = [broker.put("jobs", 3, delay="1h").id, broker.put("jobs", 4, held_by="h").id]
    broker.hold(waiting, "lasting", lasting=True)
    failed, dead, done, leased, archived = (receipt.id for receipt in broker.put_many("jobs", range(5)))
    broker.fail(broker.lease_by_id(failed), "boom")
    broker.fail(broker.lease_by_id(dead), "boom", final=True)
    broker.complete(broker.lease_by_id(done), result="r")
    broker.lease_by_id(leased, lease_timeout="30d")
    broker.archive(archived)
    moved = broker.fail(broker.lease_by_id(broker.put("moving", 5).id), ValueError("boom"), final=True).id
    return [ready, *waiting, failed, dead, done, leased, archived, moved]


def _held(broker: Broker) -> list[str]:
    """Held by one name."""
    furnish(broker)
    return [broker.put("jobs", n, held_by="breaker").id for n in range(ITEMS)]


def _dropped(broker: Broker) -> list[str]:
    ids = _in_every_status(broker)
    broker.drop(ids, force=True)
    return ids


def _exported(broker: Broker) -> list[bytes]:
    """Items in every place, as lines."""
    _archived(broker)
    return list(broker.export(status=None))


def _take_step(limit: int) -> Step:
    """One step of the operation that is running; each is one transaction."""

    def step(broker: Broker, _: Any) -> None:
        (operation,) = broker.list_operations(unfinished=True)
        broker.submit(StepOperation(operation.id, operation.steps, limit))

    return step


def _tick(version: int) -> Step:
    """A schedule fires: what it remembers, and the item it puts."""
    put = Put("jobs", (NewItem(b"tick", "text/plain", idempotency_key=f"tick {version}"),))
    call = Register("schedule", "nightly", b"%d" % version, MINUTE, version, (put,))
    return lambda broker, _: broker.submit(call)


OPERATIONS = (
    Operation("put", furnish, [lambda broker, _: broker.put("jobs", 1, headers={"h": "x"}, idempotency_key="k")]),
    Operation("put_many", furnish, [lambda broker, _: broker.put_many("jobs", [b"x" * 3000] * 20)]),
    Operation("lease", _pending, [lambda broker, _: broker.lease("jobs", 2, worker="w")]),
    Operation("lease by id", _dead_in_place, [lambda broker, id: broker.lease_by_id(id, include_dead=True)]),
    Operation("set breakers", _pending, [lambda broker, _: _set_gate(broker, 2)]),
    Operation(
        "lease under an allowance",
        _gated,
        [lambda broker, _: broker.lease("jobs", 1), lambda broker, _: broker.lease("jobs", 5)],
    ),
    Operation("fail, Retry-After", _leased, [_refuse]),
    Operation("complete, was dead", _dead_and_leased, [lambda broker, lease: broker.complete(lease)]),
    Operation("fail, dead again", _dead_and_leased, [lambda broker, lease: broker.fail(lease, "boom")]),
    Operation("return, dead again", _dead_and_leased, [lambda broker, lease: broker.release(lease, counted=False)]),
    Operation("complete", _leased, [lambda broker, lease: broker.complete(lease, result="r")]),
    Operation(
        "complete, result kept",
        lambda broker: _leased(broker, "moving"),
        [lambda broker, lease: broker.complete(lease, result="r", keep_result="1h")],
    ),
    Operation("lost", _leased, [lambda broker, lease: broker.report_lost(lease, "killed by signal 9")]),
    Operation("register with puts", furnish, [_tick(0), _tick(1)]),
    Operation("fail, retried", _leased, [lambda broker, lease: broker.fail(lease, ValueError("boom"))]),
    Operation("fail, dead in place", _leased, [lambda broker, lease: broker.fail(lease, "boom", final=True)]),
    Operation(
        "fail, dead queue",
        lambda broker: _leased(broker, "moving"),
        [lambda broker, lease: broker.fail(lease, ValueError("boom"))],
    ),
    Operation("redrive in place", _dead_in_place, [lambda broker, id: broker.redrive(id)]),
    Operation("redrive from a dead queue", _dead_moved, [lambda broker, id: broker.redrive(id)]),
    Operation("expiry sweep", _expiring, [lambda broker, _: broker.run_maintenance()], later="2m"),
    Operation(
        "complete with puts",
        _leased,
        [lambda broker, lease: broker.complete(lease, result=1, puts=[("jobs", "next"), ("moving", "other")])],
    ),
    Operation(
        "migration",
        None,
        [
            lambda broker, _: None,
            lambda broker, _: broker.create_queue("jobs"),
            lambda broker, _: broker.put("jobs", 1),
        ],
    ),
    Operation(
        "checkpoint",
        furnish,
        [*([lambda broker, _: broker.put("jobs", b"x" * 2000)] * 8), lambda broker, _: broker.close()],
        checkpoint_pages=10,
    ),
    Operation("delete a queue", _doomed_queue, [lambda broker, _: broker.delete_queue("doomed", confirm=ITEMS)]),
    Operation(
        "redrive by filter",
        _many_dead,
        [lambda broker, _: broker.start_operation("redrive", note="mended"), *([_take_step(8)] * 3)],
    ),
    Operation(
        "put failed", furnish, [lambda broker, _: broker.put_failed("moving", 1, "boom", idempotency_key="k")] * 2
    ),
    Operation(
        "hold, bury, redrive, unhold",
        _held,
        [
            lambda broker, ids: broker.hold(ids, "second", lasting=True),
            lambda broker, ids: broker.hold(ids, "third", lasting=True),
            lambda broker, ids: broker.bury_items(ids),
            lambda broker, ids: broker.redrive(ids[:2]),
            lambda broker, ids: broker.unhold("second"),
            lambda broker, ids: broker.unhold("third", ids[1:]),
        ],
    ),
    Operation("undo", _redriven, [lambda broker, ids: broker.undo(ids)]),
    Operation("archive", _many_dead, [lambda broker, ids: broker.archive(ids)]),
    Operation("restore", _archived, [lambda broker, ids: broker.restore(ids)]),
    Operation("drop", _in_every_status, [lambda broker, ids: broker.drop(ids, force=True)]),
    Operation("undo a drop", _dropped, [lambda broker, ids: broker.undo(ids)]),
    Operation(
        "put under the key of a dropped item",
        _dropped,
        [lambda broker, _: broker.put("jobs", 7, idempotency_key="k"), lambda broker, ids: broker.undo(ids)],
    ),
    Operation(
        "archive and restore work",
        _in_every_status,
        [lambda broker, ids: broker.archive(ids), lambda broker, ids: broker.restore(ids)],
    ),
    Operation("retention of dropped items", _dropped, [lambda broker, _: broker.submit(ApplyRetention())], later="2h"),
    Operation("purge", _archived, [lambda broker, ids: broker.purge(ids)]),
    Operation("move", _many_dead, [lambda broker, ids: broker.move(ids, "short")]),
    Operation("redrive edited", _many_dead, [lambda broker, ids: broker.redrive(ids[:3], payload="mended")]),
    Operation("import", _exported, [lambda broker, lines: broker.import_items(lines, queue="short")]),
)
