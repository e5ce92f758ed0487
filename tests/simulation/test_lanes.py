"""Each lane of the SQL stores against the rules: the same calls, on the same items, give the same results and rows.

A lane is for calls that are frequent and plain; whatever is odd follows `stores/rules`, which says what is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Server
from tests.simulation.histories import look_at_everything, random_history
from tests.simulation.rows import all_rows
from tests.simulation.twins import Ask, Twins, opens
from tests.sizes import THOROUGH

from redrive import Broker, Dead, DeadReason, Operation, RetryVerdict, Status
from redrive.contract import Call
from redrive.contract.admin_calls import ManualChange, ManualTarget, StartOperation, StepOperation
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import Complete, Extend, NewItem, Put, ReturnLease, Settle
from redrive.contract.queries import GetQueue
from redrive.contract.replies import REPLY_TO, REQUEST_ID
from redrive.model.duration import MINUTE
from redrive.model.failure import failure_from_fields
from redrive.model.filter import Filter
from redrive.model.ids import ItemId, result_topic
from redrive.model.item import Overrides, Result
from redrive.model.judge import OutcomeKind
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST
from redrive.model.payload import JSON
from redrive.model.state_machine import Verb
from redrive.stores.relational import rule_execution, settle
from redrive.stores.relational.batch import Batch
from redrive.testing import FakeClock

SEEDS = 500 if THOROUGH else 12
EVERY = 20
"""After so many steps of a history all rows are compared."""
MANY = 12
"""More than a lane for many items needs."""
BOOM = failure_from_fields("Error", "boom")
RESULT = Result(b"1", JSON)
MakeCalls = Callable[[Broker], list[Call]]


class LaneTwins(Twins):
    """Two stores, SQLite files in a folder unless URLs are given: the first has lanes, the second follows the rules."""

    def __init__(self, seed: int, folder: Path, patch: pytest.MonkeyPatch, urls: Sequence[str] = ()) -> None:
        self.files = [] if urls else [folder / "lanes.db", folder / "rules.db"]
        self.followed: list[Counter[type]] = [Counter(), Counter()]
        """The calls that followed the rules on each side."""
        self.failed_together = 0
        """The calls that the lane of failures took."""
        self._patch = patch
        super().__init__(seed, *map(opens, urls or [f"sqlite:///{file}" for file in self.files]))

    def _answer(self, side: int, question: Ask) -> Any:
        with self.on_side(side):
            return super()._answer(side, question)

    @contextmanager
    def on_side(self, side: int) -> Iterator[None]:
        execute = rule_execution._execute_or_refuse

        def count(state: Any, call: Call) -> Any:
            self.followed[side][type(call)] += 1
            return execute(state, call)

        settle_failures = settle.settle_failures

        def count_failures(batch: Batch, failures: Any, results: Any) -> None:
            self.failed_together += len(failures)
            settle_failures(batch, failures, results)

        with self._patch.context() as patch:
            patch.setattr(Batch, "has_lanes", side == 0)
            patch.setattr(settle, "settle_failures", count_failures)
            patch.setattr(rule_execution, "_execute_or_refuse", count)
            yield

    def compare_rows(self) -> None:
        if self.files:
            self.ask("rows", lambda side, _: all_rows(self.files[side]))
        else:
            look_at_everything(self)

    def compare_lane(self, make: MakeCalls) -> None:
        """Both sides carry out calls, in one transaction: one by its lane, the other by the rules."""

        def carry_out(side: int, broker: Broker) -> Any:
            store = broker.core.store
            calls = make(broker)
            self.followed[side].clear()
            return store.commit(calls, self.clocks[side].now()).results

        self.ask("calls", carry_out)
        self.compare_rows()


def furnish(twins: Twins) -> None:
    """Queues of each kind, and items to change, which are the same on both sides."""
    for name, settings in QUEUES.items():
        twins.ask(name, lambda _, broker, n=name, s=settings: broker.create_queue(n, **s))  # type: ignore[misc]


QUEUES: dict[str, dict[str, Any]] = {
    "morgue": {},
    "plain": {},
    "told": {"feed": "all"},
    "kept": {"keep_completed": "1h", "feed": "all", "max_payload_size": 100},
    "to": {"dead_queue": "morgue", "feed": "all"},
    "dropped": {"on_dead": "drop"},
    "silent": {"feed": (), "search": False},
    "asked": {},
    "full": {"retry": {"attempts": 1000}},
    "limited": {"max_size": 100, "expire_timeout": "1h", "idempotency_timeout": "item"},
}


def leases(broker: Broker, queue: str, count: int = MANY) -> list[Any]:
    broker.put_many(queue, list(range(count)))
    return broker.lease(queue, count, worker="w")


def version(broker: Broker, queue: str) -> int:
    found: int = broker.core.store.read(GetQueue(queue)).version
    return found


def puts(queue: str) -> MakeCalls:
    def make(broker: Broker) -> list[Call]:
        plain = [Put(queue, (NewItem(b"1", JSON, is_plain=True),)) for _ in range(3)]
        return [*plain, Put(queue, tuple(NewItem(b"2", JSON, priority=7, is_plain=True) for _ in range(3)))]

    return make


def puts_with_options(queue: str) -> MakeCalls:
    options: list[dict[str, Any]] = [
        {"idempotency_key": "a"},
        {"idempotency_key": "a"},
        {"headers": {"h": "x"}, "delay": MINUTE},
        {"held_by": "ada", "priority": 9},
        {"overrides": Overrides(max_attempts=3), "expire_timeout": MINUTE},
    ]
    return lambda broker: [Put(queue, tuple(NewItem(b"1", JSON, **each) for each in options))]


def puts_under_known_keys(queue: str) -> MakeCalls:
    """The same again, another payload, a new key, too much; in one call another payload, and the same."""
    given = [("a", b"1"), ("a", b"2"), ("b", b"1"), ("c", b"x" * 200), ("d", b"1", b"2"), ("e", b"1", b"1")]

    def make(broker: Broker) -> list[Call]:
        broker.put(queue, 1, idempotency_key="a")
        return [Put(queue, tuple(NewItem(each, JSON, idempotency_key=key) for each in some)) for key, *some in given]

    return make


def failed_puts(queue: str) -> MakeCalls:
    def make(broker: Broker) -> list[Call]:
        fields: dict[str, Any] = {"failure": BOOM, "version": version(broker, queue)}
        later = RetryVerdict(MINUTE, Status.FAILED)
        return [Put(queue, (NewItem(b"1", JSON, idempotency_key=key, verdict=later, **fields),)) for key in "abc"]

    return make


def completions(queue: str, count: int = MANY, /, **options: Any) -> MakeCalls:
    return lambda broker: [Complete(lease.token, **options) for lease in leases(broker, queue, count)]


def completions_of_moved_items(broker: Broker) -> list[Call]:
    ids = [receipt.id for receipt in broker.put_many("plain", list(range(MANY)))]
    broker.move(ids, "kept")
    return [Complete(lease.token, RESULT, keep_result=MINUTE) for lease in broker.lease("kept", MANY)]


def refusals(broker: Broker) -> list[Call]:
    """Completed before, in another queue, too large, judged by other settings, not lost yet."""
    gone, *held = leases(broker, "kept")
    broker.complete(gone)
    now = version(broker, "kept")
    return [
        Complete(gone.token),
        Complete(gone.token, RESULT),
        Complete(held[0].token, queue="plain"),
        Complete(held[1].token, queue="nowhere"),
        Extend(held[2].token, queue="plain"),
        Complete(held[3].token, Result(b"1" * 200, JSON)),
        Settle(held[4].token, OutcomeKind.FAILED, LATER, now + 1, BOOM),
        Settle(held[5].token, OutcomeKind.LOST, TAIL, now),
        Complete(held[6].token, queue="kept"),
        Complete(held[6].token),
    ]


def ends(queue: str, kind: OutcomeKind, *verdicts: Any) -> MakeCalls:
    def make(broker: Broker) -> list[Call]:
        now = version(broker, queue)
        given = [verdicts[place % len(verdicts)] for place in range(MANY)]
        held = zip(leases(broker, queue), given, strict=True)
        return [Settle(lease.token, kind, verdict, now, BOOM, worker_is_gone=True) for lease, verdict in held]

    return make


def returns(queue: str) -> MakeCalls:
    def make(broker: Broker) -> list[Call]:
        held = leases(broker, queue)
        returned = [ReturnLease(each.token, note) for each, note in zip(held, [None, "why"] * 3, strict=False)]
        return [*returned, *(Extend(each.token, MINUTE) for each in held[6:])]

    return make


def wear_out(broker: Broker, lease: Any) -> Any:
    """Return a delivery so often that its history is as long as it gets."""
    for _ in range(HISTORY_FIRST + HISTORY_LAST):
        broker.core.store.commit([ReturnLease(lease.token, "again")], broker.core.clock.now())
        lease = broker.lease_by_id(lease.id, worker="w")
    return lease


def end_of_worn_delivery(broker: Broker) -> list[Call]:
    (lease,) = leases(broker, "plain", 1)
    return [Settle(wear_out(broker, lease).token, OutcomeKind.FAILED, LATER, version(broker, "plain"), BOOM)]


def letters(broker: Broker, queue: str, verb: Verb, *, worn: bool = False) -> list[ItemId]:
    """Dead letters that are alike; archived where the verb is for those. `worn`: with timeouts and a long history."""
    held = leases(broker, queue)
    if worn:
        broker.put(queue, 1, expire_timeout="1h")
        held += [wear_out(broker, lease) for lease in broker.lease(queue, worker="w")]
    for lease in held:
        broker.fail(lease, "boom", final=True)
    ids = [item.id for item in broker.find(queue=queue, order="oldest", limit=100).items]
    if verb in (Verb.RESTORE, Verb.PURGE):
        broker.archive(ids)
    return ids


def changes(queue: str, verb: Verb, *, worn: bool = False) -> MakeCalls:
    def make(broker: Broker) -> list[Call]:
        targets = tuple(ManualTarget(id) for id in letters(broker, queue, verb, worn=worn))
        return [ManualChange(verb, targets, "ada", note="n")]

    return make


def step(queue: str, verb: Verb, limit: int = MAINTENANCE_BATCH, /, **where: Any) -> MakeCalls:
    def make(broker: Broker) -> list[Call]:
        letters(broker, queue, verb)
        status = Status.ARCHIVED if verb in (Verb.RESTORE, Verb.PURGE) else Status.DEAD
        start = StartOperation(verb=verb, where=Filter(status=status, **{"queue": queue} | where), actor="ada")
        (operation,) = broker.core.store.commit([start], broker.core.clock.now()).results
        assert isinstance(operation, Operation)
        return [StepOperation(operation.id, steps, limit) for steps in range(2 if limit < MANY else 1)]

    return make


def leased_letters(broker: Broker) -> list[Any]:
    ids = letters(broker, "plain", Verb.RETRY)
    return [broker.lease_by_id(id, include_dead=True, worker="w") for id in ids]


LATER, TAIL = RetryVerdict(MINUTE, Status.FAILED), RetryVerdict(0)
DEAD = Dead(DeadReason.FINAL_ERROR)
MOVED = Dead(DeadReason.FINAL_ERROR, to="morgue")
OTHERWISE_ON_POSTGRES = ("completions in", "one completion", "refusals", "puts under", "puts with")
BULK = (Verb.RETRY, Verb.REDRIVE, Verb.ARCHIVE, Verb.RESTORE, Verb.PURGE)
TO_REPLY = {REPLY_TO: "kept", REQUEST_ID: "r"}
DEATHS = {
    OutcomeKind.LOST: DeadReason.WORKER_LOST,
    OutcomeKind.RELEASED: DeadReason.MAX_ATTEMPTS,
    OutcomeKind.BURIED: DeadReason.BURIED,
}
CONDITIONS: list[dict[str, Any]] = [
    {"queue": None},
    {"fingerprint": BOOM.fingerprint},
    {"fingerprint": BOOM.fingerprint, "queue": None},
    {"reason": DeadReason.FINAL_ERROR, "min_attempts": 1},
]
LANES: dict[str, MakeCalls] = {
    **{f"puts in {queue}": puts(queue) for queue in ("plain", "kept", "limited")},
    **{f"puts with options in {queue}": puts_with_options(queue) for queue in ("plain", "kept", "limited")},
    "one put": lambda broker: [Put("plain", (NewItem(b"1", JSON, is_plain=True),))],
    "puts that name a queue for replies": lambda broker: [Put("plain", (NewItem(b"1", JSON, headers=TO_REPLY),))] * 2,
    **{f"puts under known keys in {queue}": puts_under_known_keys(queue) for queue in ("kept", "limited")},
    "failed puts": failed_puts("plain"),
    **{f"completions in {queue}": completions(queue) for queue in ("plain", "told", "kept", "limited")},
    **{f"one completion in {queue}": completions(queue, 1) for queue in ("plain", "told", "kept")},
    "completions in a queue that they name": completions("plain", queue="plain"),
    "completions in another queue than they name": completions("plain", queue="kept"),
    "completions of moved items": completions_of_moved_items,
    "refusals": refusals,
    "completions with results": completions("kept", result=RESULT),
    "completions with kept results": completions("plain", result=RESULT, keep_result=MINUTE),
    "completions with puts": completions("plain", puts=(Put("limited", (NewItem(b"1", JSON),)),)),
    "retries": ends("kept", OutcomeKind.FAILED, LATER, TAIL),
    "retries that are held": ends("plain", OutcomeKind.FAILED, RetryVerdict(MINUTE, Status.FAILED, ("breaker",))),
    "losses": ends("plain", OutcomeKind.LOST, TAIL),
    "releases": ends("kept", OutcomeKind.RELEASED, TAIL, RetryVerdict(MINUTE)),
    "returns by verdicts": ends("kept", OutcomeKind.RETURNED, TAIL, RetryVerdict(MINUTE)),
    "failures that do not count as attempts": ends("plain", OutcomeKind.EXTRA_FAILED, LATER, DEAD),
    "returns and extensions": returns("kept"),
    "deaths": ends("plain", OutcomeKind.FAILED, DEAD),
    "deaths to a dead queue": ends("to", OutcomeKind.FAILED, MOVED),
    "deaths between retries": ends("to", OutcomeKind.FAILED, LATER, MOVED, DEAD),
    "deaths to a queue that was no dead queue": ends("plain", OutcomeKind.FAILED, Dead(DeadReason.POLICY, "told")),
    **{f"deaths when {kind}": ends("plain", kind, Dead(reason)) for kind, reason in DEATHS.items()},
    "end of a delivery with a long history": end_of_worn_delivery,
    **{f"{verb} of many": changes("plain", verb) for verb in BULK},
    **{f"{verb} of many with timeouts and a long history": changes("plain", verb, worn=True) for verb in BULK},
    **{f"{verb} by an operation": step("plain", verb) for verb in BULK},
    **{f"{verb} by two steps of 5": step("plain", verb, 5) for verb in BULK},
    **{f"retry by an operation where {where}": step("plain", Verb.RETRY, **where) for where in CONDITIONS},
}


@pytest.mark.parametrize("lane", LANES)
def test_lane_does_what_the_rules_say(lane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_with_rules(lane, LaneTwins(0, tmp_path, monkeypatch))


@pytest.mark.parametrize("lane", [lane for lane in LANES if lane.startswith(OTHERWISE_ON_POSTGRES)])
def test_lane_on_postgres_does_what_the_rules_say(
    lane: str, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has statements of its own for keys and plain completions."""
    compare_with_rules(lane, LaneTwins(0, tmp_path, monkeypatch, empty_schemas(postgres)))


def empty_schemas(postgres: Server) -> list[str]:
    """The URL of a store with lanes, and of one without."""
    for schema in ("lanes", "rules"):
        postgres.empty(schema)
    return [f"{postgres.url}?schema={schema}" for schema in ("lanes", "rules")]


def compare_with_rules(lane: str, twins: LaneTwins) -> None:
    furnish(twins)
    twins.compare_lane(LANES[lane])
    for broker in twins.brokers:
        broker.close()
    by_lane, by_rules = twins.followed
    assert not by_lane, "the lane was not taken"
    assert by_rules, "the rules were not followed"


BANG, LATE = failure_from_fields("pkg.Bang", "bang\nsecond line", worker="w"), failure_from_fields("Late", "")
EXHAUSTED = Dead(DeadReason.RETRIES_EXHAUSTED)


def alike(queue: str, *verdicts: Any, before: int = 0, in_a_row: int = 1) -> MakeCalls:
    """Failures of three kinds, `in_a_row` of each, with these verdicts in turn, some with a note, of items that failed
    `before`, and were lost once."""

    def make(broker: Broker) -> list[Call]:
        now = version(broker, queue)
        held = leases(broker, queue)
        for _ in range(before):
            for lease in held:
                broker.fail(lease, "before", verdict=RetryVerdict(0))
            held = broker.lease(queue, MANY, worker="w")
        if before:
            lost = [Settle(lease.token, OutcomeKind.LOST, TAIL, now, worker_is_gone=True) for lease in held]
            broker.core.store.commit(lost, broker.core.clock.now())
            held = broker.lease(queue, MANY, worker="w")
        return [
            Settle(
                lease.token,
                OutcomeKind.FAILED,
                verdicts[place % len(verdicts)],
                now,
                (BOOM, BANG, LATE)[place // in_a_row % 3],
                f"note {place}" if place % 4 == 3 else None,
            )
            for place, lease in enumerate(held)
        ]

    return make


ALIKE: dict[str, MakeCalls] = {
    **{f"retries in {queue}": alike(queue, LATER, TAIL) for queue in ("plain", "kept", "silent")},
    **{f"deaths in {queue}": alike(queue, DEAD, EXHAUSTED) for queue in ("plain", "kept", "silent")},
    "deaths in a row": alike("kept", DEAD, in_a_row=3),
    "immediate retries as failed": alike("plain", RetryVerdict(0, Status.FAILED)),
    "retries that are not immediate, as pending": alike("plain", RetryVerdict(MINUTE)),
    "deaths of items that failed before": alike("kept", DEAD, before=2),
    "deaths between retries": alike("kept", LATER, DEAD, TAIL),
}


@pytest.mark.parametrize("name", ALIKE)
def test_failures_that_are_alike_go_together(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_failures(name, LaneTwins(0, tmp_path, monkeypatch))


@pytest.mark.parametrize("name", ["retries in kept", "deaths in a row", "deaths between retries"])
def test_failures_that_are_alike_go_together_on_postgres(
    name: str, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_failures(name, LaneTwins(0, tmp_path, monkeypatch, empty_schemas(postgres)))


def compare_failures(name: str, twins: LaneTwins) -> None:
    furnish(twins)
    twins.compare_lane(ALIKE[name])
    twins.compare_lane(ALIKE[name])  # and once more, with groups and counts that are there
    twins.ask("words", lambda _, broker: broker.find(words="bang"))
    for broker in twins.brokers:
        broker.close()
    assert twins.failed_together == 2 * MANY, "the lane was not taken"


def odd_among_alike(broker: Broker) -> list[Call]:
    """One call of each kind that the lane of failures declines, between failures that it takes."""
    queues = ("plain", "kept", "limited", "to", "dropped", "asked", "full")
    now = {queue: version(broker, queue) for queue in queues}
    broker.put("full", 0)
    for _ in range(HISTORY_FIRST + HISTORY_LAST):
        broker.fail(broker.lease("full", worker="w")[0], "again", verdict=RetryVerdict(0))
    dead = letters(broker, "plain", Verb.RETRY)[:2]
    full = broker.lease("full", worker="w")
    leased_dead = [broker.lease_by_id(id, include_dead=True, worker="w") for id in dead]
    asking = Put("asked", (NewItem(b"0", JSON, headers={REPLY_TO: "plain", REQUEST_ID: "r"}),))
    broker.core.store.commit([asking], broker.core.clock.now())
    held = {queue: leases(broker, queue) for queue in queues[:6]}
    lost = held["kept"].pop()
    broker.complete(lost)

    def failed(lease: Any, verdict: Any, **more: Any) -> Call:
        return Settle(
            lease.token, OutcomeKind.FAILED, verdict, **{"version": now[lease.queue], "failure": BOOM, **more}
        )

    take = {queue: iter(found) for queue, found in held.items()}
    odd = [
        failed(leased_dead[0], DEAD),
        failed(full[0], LATER),
        failed(lost, DEAD),
        failed(next(take["limited"]), LATER),  # it expires
        failed(next(take["to"]), MOVED),
        failed(next(take["asked"]), DEAD),
        failed(next(take["dropped"]), Dead(DeadReason.FINAL_ERROR, drop=True)),
        failed(next(take["plain"]), RetryVerdict(0, Status.FAILED, ("breaker",))),
        failed(next(take["plain"]), DEAD, version=99),
        failed(next(take["plain"]), LATER, failure=None, note="none is known"),
        failed(next(take["kept"]), LATER, close_until=broker.core.clock.now() + MINUTE),
        Settle(next(take["plain"]).token, OutcomeKind.LOST, TAIL, now["plain"], BOOM, worker_is_gone=True),
        Settle(next(take["kept"]).token, OutcomeKind.RELEASED, TAIL, now["kept"]),
        Complete(next(take["kept"]).token, RESULT),
        ReturnLease(next(take["plain"]).token, "not now"),
    ]
    plain = [failed(next(take[queue]), verdict) for queue in ("plain", "kept") for verdict in (DEAD, LATER, TAIL)]
    return [each for place, call in enumerate(odd) for each in (call, *plain[place : place + 1])]


def test_failures_that_are_odd_go_their_own_way_in_the_order_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = LaneTwins(0, tmp_path, monkeypatch)
    furnish(twins)
    twins.compare_lane(odd_among_alike)
    for broker in twins.brokers:
        broker.close()
    assert twins.failed_together == 6


def test_callers_that_await_a_moved_item_by_an_earlier_id_learn_of_its_death(tmp_path: Path) -> None:
    with opens(f"sqlite:///{tmp_path / 'jobs.db'}")(FakeClock()) as broker:
        broker.create_queue("morgue")
        broker.create_queue("to", dead_queue="morgue")
        for lease in leases(broker, "to"):
            broker.fail(lease, "boom", final=True)
        earlier = [item.id for item in broker.find(queue="morgue").items]
        broker.redrive(earlier)
        now, held = version(broker, "to"), broker.lease("to", MANY)
        calls = [Settle(lease.token, OutcomeKind.FAILED, DEAD, now, BOOM) for lease in held]
        commit = broker.core.store.commit(calls, broker.core.clock.now())
    woken = {result_topic(id) for id in (*earlier, *(lease.id for lease in held))}
    assert len(woken) == 2 * MANY
    assert woken <= commit.arrivals.keys()


LETTER_ENDS: dict[str, Callable[[Any, int], Call]] = {
    "completed": lambda lease, _: Complete(lease.token),
    "completed with a result": lambda lease, _: Complete(lease.token, RESULT),
    "returned": lambda lease, _: ReturnLease(lease.token),
    "returned by a verdict": lambda lease, now: Settle(lease.token, OutcomeKind.RETURNED, TAIL, now),
    "died": lambda lease, now: Settle(lease.token, OutcomeKind.FAILED, DEAD, now, BOOM),
}


@pytest.mark.parametrize("end", LETTER_ENDS)
def test_lane_declines_leased_dead_letters(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = LaneTwins(0, tmp_path, monkeypatch)
    furnish(twins)
    twins.compare_lane(
        lambda broker: [LETTER_ENDS[end](lease, version(broker, "plain")) for lease in leased_letters(broker)]
    )
    for broker in twins.brokers:
        broker.close()
    by_lane, by_rules = twins.followed
    assert by_lane == by_rules


@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories_are_the_same_with_and_without_lanes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With odd items between plain ones: a lane declines what it was not made for."""
    twins, steps = LaneTwins(seed, tmp_path, monkeypatch), 0

    def compare_rows() -> None:
        nonlocal steps
        steps += 1
        if steps % EVERY == 0:
            twins.compare_rows()

    random_history(twins, compare_rows)
    by_lane, by_rules = (sum(counts.values()) for counts in twins.followed)
    assert by_lane < by_rules
