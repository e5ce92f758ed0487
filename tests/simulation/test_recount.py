"""Random histories, after which everything that can be asked agrees with a recount.

The recount reads every item, one by one, and counts anew what stores keep in indexes: dead letters, groups, words, the
items of an operation. What an item is, it tells from the item's own history and from nothing else.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.sizes import THOROUGH

from redrive import Broker, HistoryEntry, HistoryEvent, Item, Lease, RedriveError, Status, connect
from redrive.errors import ItemNotFound
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.group import hour_of
from redrive.model.operation import Operation
from redrive.testing import FakeClock

QUEUES = ("jobs", "mails", "morgue")
RUNS, STEPS = (1500, 60) if THOROUGH else (30, 50)
EVERY = 10
"""A recount reads everything: it is done after so many steps, and at the end."""
# A run that did too little proves nothing: for each history, at least so many of these on average. The rare ones are
# asked for only where there are many histories.
FLOORS = {"put": 4.0, "leased": 3.0, "dead": 2.0, "recounted": 2.0, "letters": 1.0, "operations": 0.1} | dict.fromkeys(
    (
        "completed",
        "failed",
        "released",
        "lost",
        "redriven",
        "archived",
        "restored",
        "moved",
        "undone",
        "dropped",
        "removed",
    ),
    0.02 if THOROUGH else 0.0,
)
ERRORS = ("alpha trouble", "beta mishap", "gamma 7 trouble")
COLOURS = ("red", "blue")
BULK = ("redrive", "redrive", "retry", "archive", "restore", "undo", "move", "bury", "purge")
BY_HAND = (
    "redrive",
    "redrive",
    "retry",
    "archive",
    "archive",
    "restore",
    "drop",
    "drop",
    "undo a drop",
    "done",
    "move",
    "undo",
    "bury",
    "fail",
)
STATUS = {"redrive": "dead", "retry": "dead", "archive": "dead", "restore": "archived", "purge": "archived"}
ENDINGS = ("fail", "fail", "fail", "final", "complete", "release", "return", "bury")
ENDS = frozenset(
    {HistoryEvent.FAILED, HistoryEvent.LOST, HistoryEvent.RELEASED, HistoryEvent.EXPIRED, HistoryEvent.BURIED}
)

picks = st.integers(0, 10**6)


def deadly_entry(item: Item) -> int:
    """Where in its history the item died last: the last end of a delivery that fits the death record."""
    death = item.deaths[-1]
    fitting = [
        position
        for position, entry in enumerate(item.history)
        if entry.event in ENDS
        and (entry.at, entry.queue, entry.delivery) == (death.at, death.queue, death.counters.deliveries)
    ]
    return fitting[-1]


def is_letter(item: Item) -> bool:
    """Whether an item is a dead letter, told from its history."""
    if item.status in (Status.ARCHIVED, Status.COMPLETED) or not item.deaths:
        return False
    if item.status is Status.DEAD:
        return True
    since = item.history[deadly_entry(item) + 1 :]
    brought_back = False
    for position, entry in enumerate(since):
        if entry.event is HistoryEvent.REDRIVEN:
            brought_back = brought_back or not stays(entry, queue_after(since[position + 1 :], item))
        elif entry.event is HistoryEvent.MOVED and entry.from_status is not Status.DEAD:
            brought_back = brought_back or queue_after(since[position + 1 :], item) != "morgue"
        elif entry.event is HistoryEvent.UNDONE:
            brought_back = False
    return not brought_back


def queue_after(entries: Iterable[HistoryEntry], item: Item) -> str:
    return next((entry.queue for entry in entries), item.queue)


def stays(entry: HistoryEntry, queue: str) -> bool:
    """A failed dead letter that is retried in its dead queue is one still."""
    return entry.from_status is not Status.DEAD and entry.queue == queue


class RecountMachine(RuleBasedStateMachine):
    """Drives one broker by every verb there is, and recounts."""

    place: Callable[[str], str]
    tally: ClassVar[Counter[str]]
    """What the histories did."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="redrive-")
        self.clock = FakeClock()
        self.broker: Broker = connect(
            type(self).place(self.folder), clock=self.clock, maintenance=False, durability="relaxed"
        )
        self.ids: list[str] = []
        self.leases: list[Lease] = []
        self.operations: list[Operation] = []
        self.captured: Counter[str] = Counter()
        self.steps = 0
        retry = {"attempts": 2, "cooldown": "5s"}
        keep = {
            "keep_completed": "20s",
            "keep_archived": "100s",
            "keep_dropped": "50s",
            "lease_timeout": "10s",
            "feed": "all",
        }
        self.broker.create_queue("morgue", **keep, retry=retry, archive_after="60s")
        self.broker.create_queue("jobs", **keep, dead_queue="morgue", expire_timeout="90s")
        self.broker.create_queue("mails", **keep, retry=retry, keep_dead="80s", max_size=12, max_losses=2)

    def teardown(self) -> None:
        try:
            self.finish_operations()
            self.recount()
            self.tally.update(entry.kind.value for entry in self.feed())
            self.tally["operations"] += sum(self.broker.get_operation(one.id).changed > 0 for one in self.operations)
        finally:
            self.broker.close()
            shutil.rmtree(self.folder)

    # What happens

    @rule(queue=st.sampled_from(("jobs", "jobs", "mails", "morgue")), count=st.integers(1, 4), pick=picks)
    def put(self, queue: str, count: int, pick: int) -> None:
        for n in range(count):
            self.attempt(lambda n=n: self.note(self.broker.put(queue, {"colour": COLOURS[(pick + n) % 2]}).id))  # type: ignore[misc]

    @rule(queue=st.sampled_from(("jobs", "mails")), pick=picks)
    def put_failed(self, queue: str, pick: int) -> None:
        self.tick()
        key = (None, "k", "l")[pick // 3 % 3]

        def put() -> None:
            self.note(self.broker.put_failed(queue, {"colour": "red"}, ERRORS[pick % 3], idempotency_key=key).id)
            self.captured[queue] += 1

        self.attempt(put)

    @rule(queue=st.sampled_from((*QUEUES, "jobs", "mails")), limit=st.integers(1, 4))
    def lease(self, queue: str, limit: int) -> None:
        self.leases += self.broker.lease(queue, limit)

    @precondition(lambda self: self.leases)
    @rule(pick=picks, how=st.sampled_from(ENDINGS))
    def settle(self, pick: int, how: str) -> None:
        self.end(self.leases.pop(pick % len(self.leases)), how, pick)

    @rule(queue=st.sampled_from(QUEUES), endings=st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=4), pick=picks)
    def work(self, queue: str, endings: list[str], pick: int) -> None:
        for lease, how in zip(self.broker.lease(queue, len(endings)), endings, strict=False):
            self.end(lease, how, pick)

    @precondition(lambda self: self.ids)
    @rule(pick=picks, count=st.integers(1, 3), verb=st.sampled_from(BY_HAND))
    def change_by_hand(self, pick: int, count: int, verb: str) -> None:
        pool = self.suited(verb) if pick % 5 else self.ids
        ids = list(dict.fromkeys(pool[(pick + 7 * n) % len(pool)] for n in range(count)))
        self.tick()
        match verb:
            case "move":
                self.broker.move(ids, QUEUES[pick % 3])
            case "bury":
                self.broker.bury_items(ids, note="alpha note")
            case "fail":
                self.broker.fail_items(ids, ERRORS[pick % 3])
            case "done":
                self.broker.complete_items(ids)
            case "undo a drop":
                self.broker.undo(ids)
            case _:
                getattr(self.broker, verb)(ids)

    @rule(
        verb=st.sampled_from(BULK),
        conditions=st.sampled_from(
            [
                {},
                {"queue": "morgue"},
                {"queue": "mails"},
                {"words": "trouble"},
                {"min_attempts": 1},
                {"max_redrives": 0},
            ]
        ),
        rate=st.sampled_from([None, None, 1, 3]),
    )
    def operate(self, verb: str, conditions: dict[str, Any], rate: float | None) -> None:
        options: dict[str, Any] = {"to": "mails"} if verb == "move" else {}
        conditions = {"status": STATUS.get(verb, "pending"), **conditions}
        if verb == "purge":
            options["confirm"] = self.broker.count(**conditions)
        self.tick()
        self.operations.append(self.broker.start_operation(verb, rate=rate, **options, **conditions))
        if rate is None:
            self.broker.run_maintenance()

    @rule(queue=st.sampled_from(("jobs", "mails")), pick=picks, verb=st.sampled_from(("redrive", "retry", "archive")))
    def operate_on_a_death(self, queue: str, pick: int, verb: str) -> None:
        """There is something to change, whatever came before."""
        self.put_failed(queue, pick)
        self.operate(verb, {}, None)

    @precondition(lambda self: self.operations)
    @rule(pick=picks, how=st.sampled_from(["undo", "undo", "pause", "resume", "cancel"]))
    def change_operation(self, pick: int, how: str) -> None:
        id = self.operations[pick % len(self.operations)].id
        if how == "undo":
            self.attempt(lambda: self.operations.append(self.broker.undo_operation(id)))
        else:
            self.attempt(lambda: getattr(self.broker, f"{how}_operation")(id))

    @rule(seconds=st.sampled_from([1, 1, 3, 6, 11, 40]), step=st.booleans())
    def let_time_pass(self, seconds: int, step: bool) -> None:
        self.clock.advance(seconds)
        if step:
            self.broker.run_maintenance()

    @invariant()
    def agrees_with_a_recount(self) -> None:
        self.steps += 1
        if self.steps % EVERY == 0:
            self.recount()

    def tick(self) -> None:
        """What a recount tells from a history, it tells by instants: two changes of one item are never at the same."""
        self.clock.advance(0.001)

    def end(self, lease: Lease, how: str, pick: int) -> None:
        self.tick()
        calls: dict[str, Callable[[], Any]] = {
            "fail": lambda: self.broker.fail(lease, ERRORS[pick % 3]),
            "final": lambda: self.broker.fail(lease, ERRORS[pick % 3], final=True),
            "complete": lambda: self.broker.complete(lease),
            "release": lambda: self.broker.release(lease),
            "return": lambda: self.broker.release(lease, counted=False, error="later" if pick % 2 else None),
            "bury": lambda: self.broker.bury(lease, note="alpha note"),
        }
        self.attempt(calls[how])

    def suited(self, verb: str) -> list[str]:
        """Items that a verb probably applies to; any where there are none."""
        conditions: dict[str, Any] = {"status": STATUS.get(verb, "pending")}
        if verb == "undo":
            conditions["min_redrives"] = 1
        if verb == "undo a drop":
            conditions = {"status": "archived", "dropped": True}
        if verb in ("archive", "drop"):
            conditions = {"status": None}
        return [item.id for item in self.broker.find(limit=20, **conditions).items] or self.ids

    # The recount

    def recount(self) -> None:
        items = self.pages(status=None, archived=True)
        by_id = {item.id: item for item in items}
        assert len(by_id) == len(items)
        for item in items:
            assert self.broker.get(item.id) == item
        for id in self.ids:
            try:
                assert self.broker.get(id).id in by_id
            except ItemNotFound:
                assert all(id not in (item.id, *item.earlier_ids) for item in items)
        letters = [item for item in items if is_letter(item)]
        self.recount_statuses(items, letters)
        self.recount_groups(letters)
        self.recount_words(letters)
        self.recount_feed(items)
        self.recount_totals(items)
        self.recount_operations(items)
        self.tally["recounted"] += 1
        self.tally["letters"] += len(letters)

    def recount_statuses(self, items: list[Item], letters: list[Item]) -> None:
        for queue in (None, *QUEUES):
            here = [item for item in items if queue in (None, item.queue)]
            dead = [item for item in letters if queue in (None, item.queue)]
            named = {} if queue is None else {"queue": queue}
            self.same(dead, **named)
            for status in Status:
                if status is not Status.DEAD:
                    self.same([item for item in here if item.status is status], status=status, **named)
            self.same([item for item in here if item.status is not Status.ARCHIVED], status=None, **named)
            self.same([item for item in here if item.dropped], status="archived", dropped=True, **named)
            if queue is not None:
                stats, found = self.broker.stats(queue), Counter(item.status.value for item in here)
                for name in ("pending", "failed", "active", "completed", "dead", "archived"):
                    assert getattr(stats, name) == found[name], (queue, name)
                assert stats.dead_letters == len(dead), queue

    def recount_groups(self, letters: list[Item]) -> None:
        for queue in (None, *QUEUES):
            here = [item for item in letters if queue in (None, item.queue)]
            found = {group.fingerprint: group for group in self.broker.groups(queue)}
            assert found.keys() == {item.deaths[-1].cause.fingerprint for item in here}
            for fingerprint, group in found.items():
                members = [item for item in here if item.deaths[-1].cause.fingerprint == fingerprint]
                times = [item.deaths[-1].at for item in members]
                assert group.count == len(members)
                assert dict(group.queues) == Counter(item.queue for item in members)
                assert dict(group.hours) == Counter(map(hour_of, times))
                assert group.sample in {item.id for item in members}
                assert group.title == self.broker.get(group.sample).deaths[-1].cause.group_title
                assert group.first_at <= min(times)
                assert group.last_at >= max(times)
                self.same(members, fingerprint=fingerprint, **({} if queue is None else {"queue": queue}))

    def recount_words(self, letters: list[Item]) -> None:
        for word in ("alpha", "trouble", "gamma", "note"):
            self.same([item for item in letters if word in item.deaths[-1].cause.title.split()], words=word)
        for colour in COLOURS:
            self.same([item for item in letters if item.value["colour"] == colour], words=f"{colour[:3]}*")

    def recount_feed(self, items: list[Item]) -> None:
        whole = self.feed()
        numbers = [entry.number for entry in whole]
        assert numbers == sorted(set(numbers))
        assert sum(len(self.feed(queue=queue)) for queue in QUEUES) == len(whole)
        for item in items:
            kinds = Counter(entry.kind.value for entry in self.feed(id=item.id))
            events = Counter(entry.event.value for entry in item.history)
            assert item.history_omitted == 0
            assert kinds["dead"] == len(item.deaths)
            assert kinds["dead"] + kinds["failed"] + kinds["lost"] + kinds["released"] == sum(
                entry.event in ENDS for entry in item.history
            )
            for name in ("redriven", "undone", "moved", "returned", "dropped"):
                assert kinds[name] == events[name], name
            assert kinds["leased"] == item.counters.deliveries
            assert kinds["put"] == 1

    def recount_totals(self, items: list[Item]) -> None:
        """Told from the feed, which has everything here. An id belongs to one queue: that of all that it did there."""
        whole = self.feed()
        homes = {item.id: item.queue for item in items}
        # A failure that is put under a known key is told of the queue of the put, wherever the item is.
        homes |= {entry.source_id or entry.id: entry.queue for entry in whole if entry.kind is not FeedKind.FAILED}
        found: Counter[tuple[str, str]] = Counter()
        for entry in whole:
            name = "completed" if entry.kind is FeedKind.DONE else entry.kind.value
            found[homes[entry.id] if name == "redriven" else entry.queue, name] += 1
            found[entry.queue, "exhausted"] += entry.reason in ("retries_exhausted", "max_attempts")
            found[entry.queue, "failures"] += entry.error_class is not None
        for stats in self.broker.list_stats(QUEUES):
            for name in ("put", "completed", "dead", "redriven", "archived", "exhausted"):
                assert getattr(stats, f"{name}_total") == found[stats.queue, name], (stats.queue, name)
            assert stats.captured_total == self.captured[stats.queue]
            assert stats.failed_total == found[stats.queue, "failures"]

    def recount_operations(self, items: list[Item]) -> None:
        for started in self.operations:
            operation = self.broker.get_operation(started.id)
            if operation.verb in ("redrive", "retry", "bury", "move"):
                changed = [item for item in items if any(entry.operation == operation.id for entry in item.history)]
                self.same(changed, status=None, operation=operation.id)
            assert len(self.feed(operation=operation.id)) == operation.changed
            for code, ids in operation.samples.items():
                assert 0 < len(ids) <= operation.skipped[code]

    def same(self, expected: list[Item], **conditions: Any) -> None:
        """What is found, and how much is counted, is what was expected."""
        found = {item.id: item for item in self.pages(**conditions)}
        wanted = {item.id: item for item in expected}
        assert found.keys() == wanted.keys(), (
            conditions,
            [found.get(id) or wanted[id] for id in found.keys() ^ wanted],
        )
        assert self.broker.count(**conditions) == len(expected), conditions

    def pages(self, **conditions: Any) -> list[Item]:
        items: list[Item] = []
        cursor = None
        while True:
            page = self.broker.find(limit=13, cursor=cursor, **conditions)
            items += page.items
            if (cursor := page.cursor) is None:
                assert len({item.id for item in items}) == len(items)
                return items

    def feed(self, **conditions: Any) -> list[FeedEntry]:
        entries: list[FeedEntry] = []
        after = 0
        while True:
            page = self.broker.feed(after=after, limit=50, **conditions)
            entries += page.entries
            after = page.last
            if not page.more:
                return entries

    def finish_operations(self) -> None:
        for operation in self.broker.list_operations(unfinished=True):
            self.attempt(lambda id=operation.id: self.broker.resume_operation(id))  # type: ignore[misc]
        for _ in range(500):
            if not self.broker.list_operations(unfinished=True):
                return
            self.clock.advance("1s")
            self.broker.run_maintenance()
        raise AssertionError(f"operations that do not end: {self.broker.list_operations(unfinished=True)}")

    def note(self, id: str) -> None:
        self.ids.append(id)

    def attempt(self, call: Callable[[], Any]) -> None:
        """Call; a refusal is an answer too."""
        try:
            call()
        except RedriveError:
            self.tally["refused"] += 1


@pytest.mark.timeout(0)
def test_everything_agrees_with_a_recount(
    place: Callable[[str], str], slower: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    tally: Counter[str] = Counter()
    machine = type("Machine", (RecountMachine,), {"place": staticmethod(place), "tally": tally})
    runs = RUNS if THOROUGH else RUNS // slower
    run_state_machine_as_test(
        machine, settings=hypothesis_settings(max_examples=runs, stateful_step_count=STEPS, deadline=None)
    )
    assert {name: tally[name] for name in FLOORS if tally[name] < FLOORS[name] * runs} == {}
