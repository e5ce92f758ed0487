"""Random histories through the public broker, compared at each step with rules that know nothing of it."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.simulation.naive import SECOND, Naive, Retry, Settings, Twin
from tests.sizes import THOROUGH

from redrive import Broker, Lease, connect
from redrive.clock import Instant
from redrive.errors import (
    IdempotencyConflict,
    ItemActive,
    ItemHeld,
    ItemNotFound,
    LeaseLost,
    QueueFull,
    QueueGated,
    QueuePaused,
    RedriveError,
    WrongStatus,
)
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.testing import FakeClock
from redrive.testing.conformance.gates import change_of

T = TypeVar("T")
REFUSALS: dict[str, type[RedriveError]] = {
    "gone": ItemNotFound,
    "active": ItemActive,
    "status": WrongStatus,
    "held": ItemHeld,
    "paused": QueuePaused,
    "gated": QueueGated,
    "conflict": IdempotencyConflict,
}
"""How a lease by id is refused."""

# A run that did too little proves nothing: for each history, at least so many of these on average. The rare ones are
# asked for only where there are many histories.
REASONS = ("buried", "final_error", "expired", "worker_lost", "max_attempts", "retries_exhausted")
FLOORS = {"leased": 2.0, "held": 1.0, "lost": 0.3, "dead": 1.0}
RARE_FLOORS = dict.fromkeys(
    (
        "dead and leased",
        "nothing by a gate",
        "leased under an allowance",
        "failed again",
        "failed anew",
        "failed by its own policy",
        "key used again",
        "found by key",
        "redriven",
        "moved back",
        "archived",
        "archived work",
        "dropped",
        "drop undone",
        "key known again",
        "completed",
        "failed",
        *REASONS,
    ),
    0.005,
)
QUEUES = ("jobs", "mails", "morgue")
TOTALS = ("put", "completed", "failed", "dead", "redriven", "archived", "exhausted", "captured")
RUNS, STEPS = (2000, 50) if THOROUGH else (150, 40)

seconds = st.integers(0, 12)
maybe = lambda strategy: st.none() | strategy  # noqa: E731
queues = st.sampled_from(QUEUES)
picks = st.integers(0, 10**6)


def with_limit(settings: Settings, extra: int | None) -> Settings:
    """max_attempts may not be lower than the tries."""
    return replace(settings, max_attempts=extra if not extra else settings.retry.tries + extra)


retries = st.builds(
    Retry,
    tries=st.integers(0, 4),
    delay=st.sampled_from(["fixed", "linear", "exponential", "exponential", "never"]),
    base=st.integers(0, 5),
)
work_settings = st.builds(
    Settings,
    lease_timeout=st.integers(1, 20),
    max_losses=st.sampled_from([1, 0, 2, 3]),
    retry=retries,
    dead_queue=maybe(st.just("morgue")),
    drop=st.booleans(),
    expire_timeout=maybe(st.integers(5, 40)),
    idempotency_timeout=st.sampled_from([20.5, "item"]),
    max_size=maybe(st.integers(3, 8)),
    keep_completed=st.sampled_from([0, 10.5]),
    keep_dead=maybe(st.just(15.5)),
    archive_after=st.sampled_from([None, None, 12.5]),
    keep_archived=st.sampled_from([None, None, 25.5]),
    keep_dropped=st.sampled_from([18.5, 18.5, 0]),
)
work_settings = st.builds(with_limit, work_settings, st.sampled_from([1, None, 2, 0]))
morgue_settings = st.builds(
    lambda settings: replace(settings, dead_queue=None, expire_timeout=None, drop=False), work_settings
)


Limits = tuple[int | None, int | None, Retry | None]
"""max_attempts, max_losses and retry of one item."""
NO_LIMITS: Limits = (None, None, None)
SOME_LIMITS: list[Limits] = [
    (0, None, None),
    (2, 1, None),
    (None, 0, Retry(2, "linear", 3)),
    (6, None, Retry(6)),
    (None, 1, Retry(3, "exponential", 2)),
    (None, None, Retry(9, "never")),
]


VERBS = (
    *("redrive", "redrive", "retry", "bury", "fail", "drop", "drop", "done", "archive", "restore", "undo", "undo"),
    *("hold", "unhold"),
)


def own(limits: Limits) -> dict[str, Any]:
    """As `put` takes them."""
    max_attempts, max_losses, retry = limits
    return {"max_attempts": max_attempts, "max_losses": max_losses, "retry": retry and retry.given()}


def chosen(pick: int, wanted: list[T], all_of_them: list[T]) -> T:
    """One of what is wanted, where there is any; now and then any other."""
    pool = wanted if wanted and pick % 5 else all_of_them
    return pool[-1 - pick // 5 % len(pool)]


class BrokerMachine(RuleBasedStateMachine):
    """Drives one broker. Every rule does the same to the naive model and compares what the broker answered."""

    place: Callable[[str], str]
    tally: ClassVar[Counter[str]]
    """What the histories did."""
    every: ClassVar[int]
    """After how many steps all items are read and compared: also at the end, whatever it is."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.folder = tempfile.mkdtemp(prefix="redrive-")
        self.clock = FakeClock()
        self.broker: Broker = connect(type(self).place(self.folder), clock=self.clock, maintenance=False)
        self.naive = Naive(self.clock.now())
        self.leases: list[tuple[Lease, Twin]] = []

    def teardown(self) -> None:
        try:
            self.compare()
            self.compare_keys()
            self.tally.update(self.naive.deaths)
        finally:
            self.broker.close()
            shutil.rmtree(self.folder)

    @initialize(jobs=work_settings, mails=work_settings, morgue=morgue_settings)
    def create(self, jobs: Settings, mails: Settings, morgue: Settings) -> None:
        kept = replace(mails, dead_queue=None, drop=False)
        given = {"morgue": morgue, "jobs": replace(jobs, dead_queue="morgue"), "mails": kept}
        for name, settings in given.items():
            self.broker.create_queue(name, **settings.given())
            self.naive.settings[name] = settings

    # The rules, few and each with many ways, so that long histories are mostly work

    @rule(
        queue=st.sampled_from(["jobs", "jobs", "mails", "morgue"]),
        value=st.integers(0, 2),
        priority=st.integers(4, 5),
        delay=st.sampled_from([0, 0, 0, 1, 3, 8]),
        key=st.sampled_from([None, None, None, "k", "l"]),
        expiry=st.sampled_from([None, None, None, 2, 8, 20]),
        limits=st.sampled_from([NO_LIMITS] * 4 + SOME_LIMITS),
        held_by=st.sampled_from([None] * 5 + ["breaker"]),
    )
    def put_one(self, **options: Any) -> None:
        self.put(**options)

    @rule(
        queue=st.sampled_from(["jobs", "mails"]),
        value=st.sampled_from(["known", "known", "known", 0]),
        done=st.booleans(),
        key=st.sampled_from(["k", "k", "l", None]),
        limits=st.sampled_from([NO_LIMITS] * 4 + SOME_LIMITS),
    )
    def put_one_failed(self, **options: Any) -> None:
        self.put_failed(**options)

    @rule(queue=st.sampled_from(["jobs", "mails"]), count=st.integers(1, 4))
    def put_plain(self, queue: str, count: int) -> None:
        for value in range(count):
            self.put(queue, value, 5, 0, None, None, NO_LIMITS, None)

    @rule(queue=queues, limit=st.integers(1, 4), timeout=maybe(st.integers(1, 15)))
    def lease_some(self, queue: str, limit: int, timeout: int | None) -> None:
        self.lease(queue, limit, timeout)

    @rule(timeout=maybe(st.integers(1, 5)))
    def lease_where_work_is(self, timeout: int | None) -> None:
        self.lease(max(QUEUES, key=lambda queue: len(self.naive.eligible(queue))), 3, timeout)

    @precondition(lambda self: self.naive.items)
    @rule(pick=picks, include_dead=st.sampled_from([True, True, False]), timeout=maybe(st.integers(1, 15)))
    def lease_one_by_id(self, pick: int, include_dead: bool, timeout: int | None) -> None:
        self.lease_by_id(pick, include_dead, timeout)

    @precondition(lambda self: self.leases)
    @rule(
        pick=picks, how=st.sampled_from(["complete", "give back", "bury", "extend"]), timeout=maybe(st.integers(1, 30))
    )
    def settle(self, pick: int, how: str, timeout: int | None) -> None:
        match how:
            case "complete":
                self.complete(pick)
            case "give back":
                self.give_back(pick)
            case "bury":
                self.bury(pick)
            case "extend":
                self.extend(pick, timeout)

    @precondition(lambda self: self.leases)
    @rule(pick=picks, final=st.booleans())
    def settle_by_failure(self, pick: int, final: bool) -> None:
        self.fail(pick, final)

    @precondition(lambda self: self.leases)
    @rule(pick=picks, delay=st.sampled_from([0, 0, 1, 5]))
    def settle_by_release(self, pick: int, delay: int) -> None:
        self.release(pick, delay)

    @precondition(lambda self: self.naive.items)
    @rule(pick=picks, verb=st.sampled_from(VERBS), force=st.booleans())
    def change_by_hand(self, pick: int, verb: str, force: bool) -> None:
        match verb:
            case "retry":
                self.retry(pick, force)
            case "redrive":
                self.redrive(pick)
            case "bury":
                self.bury_by_hand(pick, force)
            case "fail":
                self.fail_by_hand(pick, force)
            case "drop" | "done":
                self.take_away(pick, force, verb == "drop")
            case "archive":
                self.archive(pick)
            case "restore":
                self.restore(pick)
            case "undo":
                self.undo_drop(pick)
            case "hold":
                self.hold(pick, "breaker" if force else "ann", lasting=force)
            case "unhold":
                self.unhold("breaker" if force else "ann")

    @precondition(lambda self: any(twin.status == "dead" for twin in self.naive.items))
    @rule(pick=picks, redrive=st.booleans())
    def look_after_the_dead(self, pick: int, redrive: bool) -> None:
        if redrive:
            self.redrive(pick)
        else:
            self.archive(pick)

    @precondition(lambda self: any(twin.key for twin in self.naive.items))
    @rule(pick=picks, undo=st.booleans())
    def drop_what_has_a_key(self, pick: int, undo: bool) -> None:
        if undo:
            self.undo_drop(pick)
        else:
            self.take_away(pick, True, True)

    @rule(queue=st.sampled_from(["jobs", "mails"]), times=st.integers(2, 8), lost=st.booleans())
    def wear_out(self, queue: str, times: int, lost: bool) -> None:
        """Take the first in line and give it back or lose it, again and again."""
        for _ in range(times):
            self.lease(queue, 1, 1 if lost else None)
            if lost:
                self.advance(1)
                self.step()
            elif self.leases:
                self.release(1, 0)

    @rule(duration=seconds, step=st.booleans())
    def let_time_pass(self, duration: int, step: bool) -> None:
        self.advance(duration)
        if step:
            self.step()

    @rule(queue=queues, delay=st.sampled_from([0, 0, 2, 8]), allowance=st.sampled_from([None, 0, 1, 2, 5]))
    def set_gate(self, queue: str, delay: int, allowance: int | None) -> None:
        """Without a delay and an allowance the gate is removed."""
        until = self.naive.now + delay * SECOND
        gate = None if allowance is None and not delay else Gate(BREAKER_GATE, Instant(until), allowance)
        self.broker.submit(change_of(self.broker.get_queue(queue), gate=gate))
        self.naive.gates[queue] = (0, None) if gate is None else (until, allowance)

    @rule(queue=queues, settings=work_settings, how=st.sampled_from(["pause", "resume", "resume", "update", "update"]))
    def manage(self, queue: str, settings: Settings, how: str) -> None:
        if how == "update" and queue != "morgue":
            self.update(queue, settings)
        elif how != "update":
            self.pause(queue, how == "pause")

    # What goes in

    def put(
        self,
        queue: str,
        value: int,
        priority: int,
        delay: int,
        key: str | None,
        expiry: int | None,
        limits: Limits,
        held_by: str | None,
    ) -> None:
        known = self.naive.known(queue, key)
        refusal: type[RedriveError] | None = None
        if known is not None and known[1] != value:
            refusal = IdempotencyConflict
        elif known is None and self.naive.is_full(queue):
            refusal = QueueFull
        receipt = self.attempt(
            refusal,
            lambda: self.broker.put(
                queue,
                value,
                priority=priority,
                delay=delay,
                idempotency_key=key,
                expire_timeout=expiry,
                held_by=held_by,
                **own(limits),
            ),
        )
        if refusal is not None:
            return
        assert receipt.duplicate == (known is not None)
        if known is not None:
            assert receipt.id == known[0].id
            return
        ready_at = self.naive.now + delay * SECOND
        twin = Twin(
            receipt.id,
            value,
            queue,
            priority,
            ready_at,
            self.naive.tail(),
            holders={} if held_by is None else {held_by: False},
            own_expiry=expiry,
        )
        twin.own_attempts, twin.own_losses, twin.own_retry = limits
        self.naive.put(twin, key)

    def put_failed(
        self,
        queue: str,
        value: int | str,
        key: str | None,
        limits: Limits,
        done: bool,
    ) -> None:
        if done and (twin := self.naive.gets_failure(queue, key)) is not None:
            self.broker.complete_items(twin.id, force=True)
            twin.dropped = False
            self.naive.complete(twin)
        known, there = self.naive.known(queue, key), self.naive.gets_failure(queue, key)
        if isinstance(value, str):
            value = 1 if known is None else known[1]
        born = Twin("", value, queue, 5, self.naive.now, (0, 0), failures=1)
        born.own_attempts, born.own_losses, born.own_retry = limits
        lives = there is None and self.naive.cause(born, "fail", False) is None
        refusal: type[RedriveError] | None = None
        if known is not None and known[1] != value:
            refusal = IdempotencyConflict
        elif lives and self.naive.is_full(queue):
            refusal = QueueFull
        receipt = self.attempt(
            refusal, lambda: self.broker.put_failed(queue, value, "outside", idempotency_key=key, **own(limits))
        )
        if refusal is not None:
            return
        assert receipt.duplicate == (there is not None)
        self.naive.totals[queue, "captured"] += 1
        if there is not None:
            assert receipt.id == there.id
            self.naive.add_failure(there, queue)
            self.tally["failed again"] += 1
            return
        self.tally["failed anew"] += known is not None
        self.tally["key used again"] += known is None and (queue, key) in self.naive.keys
        born.id = receipt.id
        self.naive.put(born, key)
        self.naive.end(born, "fail")

    # What comes out

    def lease(self, queue: str, limit: int, timeout: int | None) -> None:
        if queue in self.naive.paused or self.naive.is_shut(queue):
            assert self.broker.lease(queue, limit) == []
            self.step()  # how much of the upkeep a lease on a paused queue does is left open
            self.tally["nothing by a gate"] += queue not in self.naive.paused
            return
        leases = self.broker.lease(queue, limit, lease_timeout=timeout)
        self.naive.upkeep(queue)
        expected = self.naive.eligible(queue)
        by_id = {self.broker.get(twin.id).id: twin for twin in expected}
        twins = [by_id[lease.id] for lease in leases]
        assert [twin.order for twin in twins] == [twin.order for twin in expected[:limit]]
        for lease, twin in zip(leases, twins, strict=True):
            self.tally["leased under an allowance"] += self.naive.gates.get(queue, (0, None))[1] is not None
            self.naive.lease(twin, timeout)
            self.tally["leased"] += 1
            assert lease.value == twin.value
            assert (lease.deliveries, lease.attempts, lease.failures, lease.losses, lease.redrives) == twin.counters
            assert lease.deadline == twin.deadline
            self.leases.append((lease, twin))

    def lease_by_id(self, pick: int, include_dead: bool, timeout: int | None) -> None:
        free = [twin for twin in self.naive.items if self.naive.refusal(twin, include_dead) is None]
        twin = chosen(pick, free, self.naive.items)
        refusal = self.naive.refusal(twin, include_dead)
        lease = self.attempt(
            None if refusal is None else REFUSALS[refusal],
            lambda: self.broker.lease_by_id(twin.id, include_dead=include_dead, lease_timeout=timeout),
        )
        if refusal is not None:
            return
        self.tally["dead and leased"] += twin.status == "dead"
        self.naive.lease(twin, timeout)
        assert (lease.dead_reason, lease.deadline) == (twin.reason if twin.was_dead else None, twin.deadline)
        assert (lease.deliveries, lease.attempts, lease.failures, lease.losses, lease.redrives) == twin.counters
        self.leases.append((lease, twin))

    # How deliveries end

    def held(self, pick: int) -> tuple[Lease, Twin, bool]:
        """A lease, mostly one that still holds, and whether it does."""
        newest = {id(twin): lease for lease, twin in self.leases}
        holding = [
            (lease, twin) for lease, twin in self.leases if twin.status == "active" and newest[id(twin)] is lease
        ]
        lease, twin = chosen(pick, holding, self.leases[-6:])
        return lease, twin, (lease, twin) in holding

    def use(self, pick: int, call: Callable[[Lease], Any]) -> Twin | None:
        """Use a lease; None if the broker refused because it is lost, as it must."""
        lease, twin, holds = self.held(pick)
        self.tally["held" if holds else "lost"] += 1
        if holds:
            self.settled = call(lease)
            return twin
        with pytest.raises(LeaseLost) as refusal:
            call(lease)
        moved = twin.status is not None and self.broker.get(twin.id).id != lease.id
        assert moved or refusal.value.status == twin.status
        return None

    def complete(self, pick: int) -> None:
        if twin := self.use(pick, self.broker.complete):
            self.naive.complete(twin)

    def fail(self, pick: int, final: bool) -> None:
        if twin := self.use(pick, lambda lease: self.broker.fail(lease, "boom", final=final)):
            twin.failures += 1
            self.naive.end(twin, "fail", final=final)

    def release(self, pick: int, delay: int) -> None:
        if twin := self.use(pick, lambda lease: self.broker.release(lease, delay=delay)):
            self.naive.end(twin, "release", delay=delay)

    def give_back(self, pick: int) -> None:
        if twin := self.use(pick, lambda lease: self.broker.release(lease, counted=False)):
            self.naive.give_back(twin)

    def bury(self, pick: int) -> None:
        if twin := self.use(pick, self.broker.bury):
            self.naive.end(twin, "bury")

    def extend(self, pick: int, timeout: int | None) -> None:
        if twin := self.use(pick, lambda lease: self.broker.extend(lease, timeout)):
            span = self.naive.settings[twin.queue].lease_timeout if timeout is None else timeout
            twin.deadline = self.naive.now + span * SECOND
            assert self.settled == twin.deadline

    # By hand

    def by_hand(
        self,
        pick: int,
        force: bool,
        allowed: Callable[[Twin], bool],
        call: Callable[[str], Any],
        goes_to: Callable[[Twin], str] | None = None,
        *,
        with_key: bool = False,
    ) -> Twin | None:
        """Change an item without a token, mostly one `with_key`; None if the broker refused, as it must."""
        items = sorted(self.naive.items, key=lambda twin: with_key and twin.key is not None)
        twin = chosen(pick, [twin for twin in items if allowed(twin)], items)
        refusal: type[RedriveError] | None = None
        if twin.status is None:
            refusal = ItemNotFound
        elif twin.status == "active" and not force:
            refusal = ItemActive
        elif not allowed(twin):
            refusal = WrongStatus
        elif goes_to is not None and (obstacle := self.naive.obstacle(twin, goes_to(twin))):
            refusal = QueueFull if obstacle == "full" else IdempotencyConflict
        self.attempt(refusal, lambda: call(twin.id))
        return twin if refusal is None else None

    def retry(self, pick: int, force: bool) -> None:
        call = lambda id: self.broker.retry(id, force=force)  # noqa: E731
        if twin := self.by_hand(
            pick, force, lambda t: t.status in ("dead", "failed", "active"), call, lambda t: t.queue
        ):
            self.naive.again(twin, twin.queue)

    def redrive(self, pick: int) -> None:
        def allowed(twin: Twin) -> bool:
            return twin.status in ("pending", "failed", "dead") and self.naive.is_dead_letter(twin)

        def goes_to(twin: Twin) -> str:
            return twin.queue if twin.status == "dead" else twin.died_in[-1]

        if twin := self.by_hand(pick, False, allowed, lambda id: self.broker.redrive(id, actor="ada"), goes_to):
            self.tally["redriven" if twin.status == "dead" else "moved back"] += 1
            self.naive.again(twin, goes_to(twin), redriven=True)

    def bury_by_hand(self, pick: int, force: bool) -> None:
        call = lambda id: self.broker.bury_items(id, force=force)  # noqa: E731
        if twin := self.by_hand(pick, force, lambda t: t.status in ("pending", "failed", "active"), call):
            self.naive.end(twin, "bury")

    def fail_by_hand(self, pick: int, force: bool) -> None:
        call = lambda id: self.broker.fail_items(id, "by hand", force=force)  # noqa: E731
        if twin := self.by_hand(pick, force, lambda t: t.status in ("pending", "failed", "active"), call):
            twin.failures += 1
            self.naive.end(twin, "fail")

    def take_away(self, pick: int, force: bool, drop: bool) -> None:
        if drop:
            if twin := self.by_hand(
                pick, force, lambda t: not t.dropped, lambda id: self.drop(id, force=force), with_key=True
            ):
                self.was_dropped(twin)
        elif twin := self.by_hand(
            pick, force, lambda t: t.status != "completed", lambda id: self.broker.complete_items(id, force=force)
        ):
            twin.dropped = False
            self.naive.complete(twin)

    def drop(self, id: str, *, force: bool) -> None:
        self.settled = self.broker.drop(id, force=force)

    def was_dropped(self, twin: Twin) -> None:
        self.naive.drop(twin)
        assert self.settled.status == twin.status
        if twin.status is not None:
            keep = self.naive.settings[twin.queue].keep_dropped
            assert self.settled.undo_until == self.naive.now + keep * SECOND
            self.tally["dropped"] += 1

    def archive(self, pick: int) -> None:
        allowed = lambda twin: twin.status in ("pending", "failed", "dead", "completed")  # noqa: E731
        if twin := self.by_hand(pick, False, allowed, self.broker.archive):
            self.tally["archived work"] += twin.status != "dead"
            self.naive.archive(twin)

    def restore(self, pick: int) -> None:
        self.from_archive(pick, lambda twin: twin.status == "archived", self.broker.restore)

    def undo_drop(self, pick: int) -> None:
        self.from_archive(pick, lambda twin: twin.status == "archived" and twin.dropped, self.broker.undo)

    def from_archive(self, pick: int, allowed: Callable[[Twin], bool], call: Callable[[str], Any]) -> None:
        items = sorted(self.naive.items, key=lambda twin: twin.key_aside is not None)
        twin = chosen(pick, [twin for twin in items if allowed(twin)], items)
        if not allowed(twin):  # an undo of a redrive is left to others
            return
        refusal = self.naive.restore_obstacle(twin)
        settled = self.attempt(
            {"full": QueueFull, "conflict": IdempotencyConflict, None: None}[refusal], lambda: call(twin.id)
        )
        if refusal is None:
            self.tally["drop undone"] += twin.dropped
            self.tally["key known again"] += twin.dropped and twin.key_aside is not None
            self.naive.restore(twin)
            assert settled.status == twin.status

    def hold(self, pick: int, name: str, *, lasting: bool) -> None:
        twin = chosen(pick, self.naive.items, self.naive.items)
        changes = name not in twin.holders or lasting > twin.holders[name]
        applies = changes and twin.status in ("pending", "failed")
        assert self.broker.hold([twin.id], name, lasting=lasting) == applies
        if applies:
            twin.holders[name] = lasting
            self.tally["held by two"] += len(twin.holders) > 1

    def unhold(self, name: str) -> None:
        held = [twin for twin in self.naive.items if name in twin.holders and twin.status is not None]
        assert self.broker.unhold(name) == len(held)
        for twin in held:
            del twin.holders[name]
        self.step()  # whether a failed item that is due becomes pending here or at the next step is left open

    # Time, and settings

    def advance(self, duration: int) -> None:
        self.clock.advance(duration)
        self.naive.now += duration * SECOND

    def step(self) -> None:
        self.broker.run_maintenance()
        self.naive.upkeep()
        self.naive.clean()

    def pause(self, queue: str, pause: bool) -> None:
        if pause:
            self.broker.pause_queue(queue)
            self.naive.paused.add(queue)
        else:
            self.broker.resume_queue(queue)
            self.naive.paused.discard(queue)

    def update(self, queue: str, settings: Settings) -> None:
        self.broker.update_queue(queue, **settings.given())
        self.naive.settings[queue] = settings

    # What must be true after each of them

    @invariant()
    def agrees_with_the_rules(self) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            self.compare()

    def compare(self) -> None:
        self.compare_items()
        self.compare_counts()

    def compare_items(self) -> None:
        for twin in self.naive.items:
            if twin.status is None:
                with pytest.raises(ItemNotFound):
                    self.broker.get(twin.id)
                continue
            item = self.broker.get(twin.id)
            counters = item.counters
            found = (counters.deliveries, counters.attempts, counters.failures, counters.losses, counters.redrives)
            assert (item.queue, item.status.value, found) == (twin.queue, twin.status, twin.counters), twin
            assert len(item.history) + item.history_omitted == twin.rows, twin
            assert [death.queue for death in item.deaths] == twin.died_in
            assert (item.dropped is not None) == (twin.dropped and twin.status == "archived"), twin
            if twin.status == "archived":
                assert (item.dead_reason is not None) == self.naive.was_letter(twin), twin
            if twin.status in ("pending", "failed"):
                assert item.ready_at == twin.ready_at, twin
            assert (item.held_by, item.lasting_holders) == twin.held_by, twin
            if twin.status in ("pending", "failed", "active"):
                assert (item.expire_deadline or 10**18) == twin.expires_at, twin
            self.tally["failed by its own policy"] += twin.status == "failed" and twin.own_retry is not None
            self.tally[twin.status] += self.every  # as often as if every step were compared
            if twin.status == "dead":
                assert (item.dead_reason, item.ended_at) == (twin.reason, twin.ended_at), twin
            elif twin.was_dead:
                assert (item.status, item.dead_reason) == ("active", twin.reason), twin
            if twin.status == "active":
                assert item.lease_deadline == twin.deadline, twin

    def compare_counts(self) -> None:
        listed = {stats.queue: stats for stats in self.broker.list_stats()}
        assert listed.keys() == self.naive.settings.keys()
        for queue, stats in listed.items():
            found = Counter(twin.status for twin in self.naive.items if twin.queue == queue)
            for status in ("pending", "failed", "active", "completed", "dead", "archived"):
                assert getattr(stats, status) == found[status], (queue, status)
            letters = [twin for twin in self.naive.items if twin.queue == queue and self.naive.is_dead_letter(twin)]
            at_work = ("pending", "failed", "active", "dead")
            assert stats.dead_letters == sum(twin.status in at_work for twin in letters), queue
            assert sum(group.count for group in self.broker.groups(queue)) == stats.dead_letters, queue
            for name in TOTALS:
                assert getattr(stats, f"{name}_total") == self.naive.totals[queue, name], (queue, name)

    def compare_keys(self) -> None:
        for queue in self.naive.settings:
            keys = ("k", "l", "unknown")
            for key, item in zip(keys, self.broker.find_by_key(queue, keys), strict=True):
                twin, _ = self.naive.known(queue, key) or (None, 0)
                if twin is None or twin.status is None:
                    assert item is None, (queue, key)
                else:
                    assert item == self.broker.get(twin.id), (queue, key)
                    self.tally["found by key"] += 1
            assert self.broker.list_stats([queue]) == (self.broker.stats(queue),)

    def attempt(self, refusal: type[RedriveError] | None, call: Callable[[], Any]) -> Any:
        """Call, and expect to be refused or not."""
        if refusal is None:
            return call()
        with pytest.raises(refusal):
            call()
        return None


@pytest.mark.timeout(0)
def test_broker_does_what_naive_rules_say(
    place: Callable[[str], str], slower: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # thousands of items are dropped here, each with its warning
    tally: Counter[str] = Counter()
    every = 1 if THOROUGH else slower
    machine = type("Machine", (BrokerMachine,), {"place": staticmethod(place), "tally": tally, "every": every})
    runs = RUNS if THOROUGH else RUNS // slower
    run_state_machine_as_test(
        machine, settings=hypothesis_settings(max_examples=runs, stateful_step_count=STEPS, deadline=None)
    )
    floors = FLOORS | (RARE_FLOORS if runs == RUNS else {})
    assert {name: tally[name] for name in floors if tally[name] < floors[name] * runs} == {}
