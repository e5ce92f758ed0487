"""Random histories with undo, moves, imports and operations, compared with naive rules.

They are drawn evenly, and not by Hypothesis, which draws some of them again and again. What an item goes through
meanwhile is that of `test_state_machine`.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.naive import Retry, Settings, Twin
from tests.simulation.naive_changes import (
    NaiveOperation,
    Where,
    carry_out,
    imported,
    matching,
    refusal,
    run,
)
from tests.simulation.test_state_machine import NO_LIMITS, QUEUES, BrokerMachine, Limits
from tests.sizes import THOROUGH

from redrive import Item
from redrive.contract.admin_calls import StepOperation
from redrive.contract.maintenance_calls import Import
from redrive.model.operation import Operation
from redrive.wire.error_codec import ERROR_BY_CODE

RUNS, STEPS = (2000, 60) if THOROUGH else (45, 30)
EVERY = 5
# For each history, at least so many of these on average, where there are many histories.
ALREADY_FINAL: Limits = (None, None, Retry(1))
FLOORS = dict.fromkeys(
    (
        *("undo", "undone to dead", "undone to a dead queue", "move", "moved dead", "redrive", "redriven elsewhere"),
        *("purge", "imported", "imported twice", "imported as a dead letter", "operations", "canaries", "cancelled"),
        *("redrive of many", "retry of many", "archive of many", "restore of many", "move of many", "bury of many"),
        *("purge of many", "operation undone", "left out", "limits reached"),
    ),
    0.02,
)
VERBS = (
    *(("redrive", "dead"), ("redrive", "dead"), ("retry", "dead"), ("retry", "failed"), ("archive", "dead")),
    *(("archive", "pending"), ("restore", "archived"), ("purge", "archived"), ("move", "pending"), ("move", "dead")),
    *(("bury", "pending"), ("bury", "failed"), ("undo", "pending")),
)
"""What operations do, and the status of items that they are for."""
MEANWHILE = ("nothing", "a death", "a pause", "a cancellation", "a crash")
BY_HAND = ("undo", "move", "redrive", "purge", "move")
REVERSE = {
    "redrive": ("undo", "pending"),
    "retry": ("undo", "pending"),
    "archive": ("restore", "archived"),
    "bury": ("redrive", "dead"),
}


class OperationMachine(BrokerMachine):
    """Drives one broker by hand, too."""

    def __init__(self) -> None:
        super().__init__()
        self.exported: list[tuple[Item, Twin]] = []
        """Items as they were once, and where each came from."""
        self.sources: dict[tuple[str, str], Twin] = {}
        """By queue and the id that an imported item had: what became of it."""
        self.operations: list[tuple[str, NaiveOperation]] = []

    def some_step(self, pick: random.Random) -> None:
        ways: tuple[Callable[[random.Random], None], ...] = (
            *(self.change_one, self.redrive_to, self.export, self.import_one, self.operate, self.operate),
            *(self.some_puts, self.some_work, self.some_work, self.some_hand, self.some_time),
        )
        pick.choice(ways)(pick)
        self.agrees_with_the_rules()

    # What happens meanwhile

    def some_puts(self, pick: random.Random) -> None:
        for value in range(pick.randrange(1, 4)):
            key, expiry = pick.choice([None, None, "k", "l"]), pick.choice([None, None, 8])
            held_by = pick.choice([None, None, None, "breaker"])
            self.put(pick.choice(QUEUES), value, 5, pick.choice([0, 0, 3]), key, expiry, NO_LIMITS, held_by)

    def some_work(self, pick: random.Random) -> None:
        self.lease(pick.choice(QUEUES), 3, pick.choice([None, 5]))
        for _ in range(3):
            if self.leases:
                ways = (self.complete, self.bury, self.give_back, lambda n: self.fail(n, False))
                pick.choice(ways)(pick.randrange(100))

    def some_hand(self, pick: random.Random) -> None:
        if self.naive.items:
            number, force = pick.randrange(100), pick.random() < 0.5
            ways = (
                lambda: self.retry(number, force),
                lambda: self.archive(number),
                lambda: self.restore(number),
                lambda: self.take_away(number, force, True),
                lambda: self.hold(number, "ann", lasting=force),
                lambda: self.lease_by_id(number, True, None),
            )
            pick.choice(ways)()

    def some_time(self, pick: random.Random) -> None:
        self.advance(pick.randrange(8))
        self.step()

    # One item

    def change_one(self, pick: random.Random) -> None:
        verb, to, force = pick.choice(BY_HAND), pick.choice(QUEUES), pick.random() < 0.3
        goes_to = to if verb in ("move", "redrive") else None
        forced = force and verb in ("move", "redrive")
        suited = [t for t in self.naive.items if refusal(self.naive, t, verb, goes_to, force=forced) is None]
        if not self.naive.items:
            return
        twin = pick.choice(suited if suited and pick.random() < 0.8 else self.naive.items)
        code = refusal(self.naive, twin, verb, goes_to, force=forced)
        options: dict[str, Any] = {"to": goes_to} if goes_to else {}
        if forced:
            options["force"] = True
        change = getattr(self.broker, verb)
        self.attempt(None if code is None else ERROR_BY_CODE[code], lambda: change(twin.id, **options))
        if code is None:
            self.tally[verb] += 1
            self.tally["moved dead"] += verb == "move" and twin.status == "dead"
            self.was_undone(verb, twin)
            carry_out(self.naive, twin, verb, goes_to)

    def was_undone(self, verb: str, twin: Twin) -> None:
        if verb == "undo" and twin.redrive is not None and twin.status == "pending":
            self.tally["undone to dead" if twin.redrive.was_dead else "undone to a dead queue"] += 1

    def redrive_to(self, pick: random.Random) -> None:
        self.let_some_die(pick)
        to = pick.choice([None, *QUEUES])
        letters = [twin for twin in self.naive.items if refusal(self.naive, twin, "redrive", to) is None]
        if letters:
            twin = pick.choice(letters)
            self.broker.redrive(twin.id, to=to)
            self.tally["redriven elsewhere"] += to not in (None, twin.queue)
            carry_out(self.naive, twin, "redrive", to)

    def let_some_die(self, pick: random.Random) -> None:
        """There is something to change, whatever came before."""
        for _ in range(pick.randrange(4)):
            self.put_failed(pick.choice(["jobs", "mails"]), 0, None, ALREADY_FINAL, False)

    # Import

    def export(self, pick: random.Random) -> None:
        there = [twin for twin in self.naive.items if twin.status is not None and not twin.dropped]
        if there:
            twin = pick.choice(there)
            copy = replace(twin, holders=dict(twin.holders), died_in=list(twin.died_in))
            self.exported.append((self.broker.get(twin.id), copy))

    def import_one(self, pick: random.Random) -> None:
        self.export(pick)
        if self.exported:
            self.import_copy(*pick.choice(self.exported[-3:]), pick.choice(QUEUES))

    def import_copy(self, item: Item, copy: Twin, queue: str) -> None:
        present = next((t for t in self.naive.items if t.id == copy.id and t.status is not None), None)
        known = self.sources.get((queue, item.id))
        if known is None and present is not None and queue in (present.queue, item.queue):
            known = present
        twin = imported(self.naive, copy, queue)
        is_full = known is None and twin.status in ("pending", "failed") and self.naive.is_full(queue)
        receipts = self.attempt(
            ERROR_BY_CODE["queue_full"] if is_full else None,
            lambda: self.broker.submit(Import(queue, (item,), "ada")),
        )
        if is_full:
            return
        assert receipts[0].duplicate == (known is not None)
        if known is None:
            twin.id = receipts[0].id
            self.naive.items.append(twin)
            self.sources[queue, item.id] = twin
            self.tally["imported as a dead letter"] += self.naive.is_dead_letter(twin)
        self.tally["imported" if known is None else "imported twice"] += 1

    # Many items

    def operate(self, pick: random.Random) -> None:
        """All steps of one operation. Those that come after its start are none of its."""
        self.let_some_die(pick)
        self.step()
        verb, status = pick.choice(VERBS)
        if status == "archived" and self.naive.items:
            self.archive(pick.randrange(100))
        where = Where(
            status, pick.choice([None, None, *QUEUES]), *pick.choice([(0, None), (0, None), (0, 0), (1, None)])
        )
        twins = self.in_order(where)
        options: dict[str, Any] = {"to": pick.choice(QUEUES)} if verb == "move" else {}
        limit = options["limit"] = pick.choice([None, None, 3, 4])
        expected = len(twins) if limit is None else min(len(twins), limit)
        if verb == "purge":
            options["confirm"] = expected
        if verb in ("redrive", "retry"):
            options["canary"] = pick.choice([0, 0, 1, 2])
        operation = self.broker.start_operation(verb, **options, **where.given())
        assert operation.expected == expected
        meanwhile, at_once = pick.choice(MEANWHILE), pick.choice([1, 2, 250])
        if meanwhile == "a death":
            self.put_failed("mails", 0, None, ALREADY_FINAL, False)
        elif meanwhile == "a pause":
            self.broker.pause_operation(operation.id)
            assert self.broker.run_operation(operation.id, at_once=at_once).changed == 0
            self.broker.resume_operation(operation.id)
        elif meanwhile == "a crash":  # the first step is made, and again by a process that does not know it
            for _ in range(2):
                self.broker.submit(StepOperation(operation.id, 0, at_once))
        self.run_to_its_end(operation, verb, twins, options, at_once, meanwhile == "a cancellation")
        suited = [(id, done) for id, done in self.operations if done.verb in REVERSE]
        if suited and pick.random() < 0.5:
            self.undo_operation(*pick.choice(suited[-2:]))

    def run_to_its_end(
        self, operation: Operation, verb: str, twins: list[Twin], options: dict[str, Any], at_once: int, cancel: bool
    ) -> None:
        naive, limit = NaiveOperation(verb), options["limit"] or len(twins) + 1
        most = options.get("canary") or limit
        left = run(self.naive, naive, twins, most, options.get("to"), operation.id, None)
        done = self.broker.run_operation(operation.id, at_once=at_once)
        self.tally["limits reached"] += len(naive.changed) == limit
        if len(naive.changed) == most != limit:
            assert done.status == "watching"
            self.tally["canaries"] += 1
            if cancel:
                done = self.broker.cancel_operation(operation.id)
                self.tally["cancelled"] += 1
            else:
                self.broker.resume_operation(operation.id, skip_canaries=True)
                run(self.naive, naive, left, limit - most, options.get("to"), operation.id, None)
                self.tally["limits reached"] += len(naive.changed) == limit
                done = self.broker.run_operation(operation.id, at_once=at_once)
        self.has_ended(done, naive)

    def has_ended(self, done: Operation, naive: NaiveOperation) -> None:
        assert done.status in ("finished", "cancelled")
        assert (done.changed, dict(done.skipped)) == (len(naive.changed), dict(naive.skipped)), naive
        self.operations.append((done.id, naive))
        self.tally["operations"] += 1
        self.tally[f"{naive.verb} of many"] += len(naive.changed)
        self.tally["left out"] += sum(naive.skipped.values())

    def in_order(self, where: Where) -> list[Twin]:
        """What the naive rules find, in the order in which the broker does."""
        found = self.broker.find(limit=100, order="oldest", **where.given()).items
        by_id = {self.broker.get(twin.id).id: twin for twin in matching(self.naive, where)}
        assert {item.id for item in found} == by_id.keys()
        return [by_id[item.id] for item in found]

    def undo_operation(self, id: str, done: NaiveOperation) -> None:
        verb, status = REVERSE[done.verb]
        meant = {each.id for each in matching(self.naive, Where(status))} & {each.id for each in done.changed}
        found = self.broker.find(limit=100, order="oldest", status=status, operation=id).items
        by_id = {self.broker.get(each.id).id: each for each in self.naive.items if each.id in meant}
        assert {item.id for item in found} == by_id.keys()
        operation = self.broker.undo_operation(id)
        naive = NaiveOperation(verb)
        run(self.naive, naive, [by_id[item.id] for item in found], 1000, None, operation.id, id)
        self.has_ended(self.broker.run_operation(operation.id), naive)
        self.tally["operation undone"] += len(naive.changed) > 0


def some_settings(pick: random.Random) -> Settings:
    return Settings(
        lease_timeout=pick.randrange(3, 20),
        max_losses=pick.choice([0, 1, 2]),
        retry=Retry(pick.randrange(3), "fixed", pick.randrange(5)),
        expire_timeout=pick.choice([None, None, 30]),
        idempotency_timeout=pick.choice([20.5, "item"]),
        max_size=pick.choice([None, None, 8]),
        keep_completed=pick.choice([0, 10.5]),
        keep_dead=pick.choice([None, 25.5]),
        archive_after=pick.choice([None, None, 12.5]),
        keep_dropped=pick.choice([18.5, 0]),
    )


@pytest.mark.timeout(0)
def test_changes_of_many_items_are_what_naive_rules_say(
    place: Callable[[str], str], slower: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    tally: Counter[str] = Counter()
    every = 1 if THOROUGH else EVERY
    kind = type("Machine", (OperationMachine,), {"place": staticmethod(place), "tally": tally, "every": every})
    runs = RUNS if THOROUGH else RUNS // slower
    for seed in range(runs):
        pick, machine = random.Random(seed), kind()
        try:
            machine.create(*(some_settings(pick) for _ in QUEUES))
            for _ in range(STEPS):
                machine.some_step(pick)
        except Exception as error:
            error.add_note(f"in history {seed}")
            raise
        finally:
            machine.teardown()
    if runs == RUNS:
        assert {name: tally[name] for name in FLOORS if tally[name] < FLOORS[name] * runs} == {}
