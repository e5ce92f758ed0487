"""Processes that drive an operation are killed again and again: each item is brought back once, and counts add up."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.acceptance.children import BEAT, Say, fork, join
from tests.acceptance.places import places
from tests.sizes import THOROUGH

from redrive import Broker, Item, connect

ITEMS = int(os.environ.get("REDRIVE_ITEMS", 100_000 if THOROUGH else 3_000))
KILLS = 100 if THOROUGH else 12
AT_ONCE = ITEMS // (KILLS * 10)
"""Items of one step: so few that a run has many steps, and a kill meets the middle of one."""
DRIVERS = 2
QUEUE = "jobs"
Report = Callable[[str, object], None]


@pytest.mark.timeout(3600 if THOROUGH else 600)
def test_operation_survives_the_death_of_whoever_drives_it(tmp_path: Path, record_property: Report) -> None:
    path = tmp_path / "redrive.db"
    _make_dead(path)
    with _open(path) as broker:
        operation = broker.start_operation("redrive", queue=QUEUE, actor="on-call")
    kills = _drive_and_kill(path, operation.id)
    with _open(path) as broker:
        ended = broker.get_operation(operation.id)
        stats = broker.stats(QUEUE)
        redriven = Counter(item.counters.redrives for item in _all_items(broker))
        assert (ended.status, ended.changed, dict(ended.skipped)) == ("finished", ITEMS, {})
        assert (stats.dead_letters, stats.dead) == (0, 0)
        assert redriven == {1: ITEMS}, "an item was brought back twice, or not at all"
        audited = [(entry.actor, entry.verb, entry.count) for entry in broker.audit(1000)]
        assert audited == [("on-call", "redrive", ITEMS), ("on-call", "start redrive", ITEMS)]
    assert len(places(path)) == ITEMS
    report = f"{ITEMS} items, {ended.steps} steps, {kills} kills"
    record_property("operation", report)
    print(report)
    assert kills >= KILLS * 0.8, "a run that was hardly disturbed proves nothing"


@pytest.mark.timeout(3600 if THOROUGH else 600)
def test_redrive_ends_by_itself_while_workers_fail_the_same_items_again(tmp_path: Path) -> None:
    """What dies again is newer than the operation, and must not be brought back by it a second time."""
    path = tmp_path / "redrive.db"
    count = ITEMS // 3
    _make_dead(path, count)
    with _open(path) as broker:
        operation = broker.start_operation("redrive", queue=QUEUE)
    failing = fork(lambda say: _fail_everything(path, count))
    driving = fork(lambda say: _drive(path, operation.id, say))
    assert join(*driving).code == 0
    assert join(*failing).code == 0
    with _open(path) as broker:
        ended = broker.get_operation(operation.id)
        assert (ended.status, ended.changed) == ("finished", count)
        assert broker.count(queue=QUEUE, min_redrives=1) == count
        assert broker.count(queue=QUEUE, min_redrives=2) == 0
        assert sum(group.count for group in broker.groups(QUEUE)) == count


def _open(path: Path) -> Broker:
    return connect(f"sqlite:///{path}", maintenance=False)


def _make_dead(path: Path, count: int = ITEMS) -> None:
    with _open(path) as broker:
        broker.create_queue(QUEUE, lease_timeout="1h")
        for start in range(0, count, 1000):
            broker.put_many(QUEUE, range(start, min(start + 1000, count)))
            for lease in broker.lease(QUEUE, 1000):
                broker.fail(lease, f"boom {lease.value % 7}")


def _drive_and_kill(path: Path, id: str) -> int:
    """Let two drivers drive until the operation has ended; kill each after a few of its steps, and start it again."""
    draw = random.Random(0)
    kills = 0
    while True:
        children = [fork(lambda say: _drive(path, id, say), pipe_bytes=len(BEAT)) for _ in range(DRIVERS)]
        for pid, reader in children:
            if kills < KILLS:
                for _ in range(draw.randint(1, 6)):
                    if not os.read(reader, len(BEAT)):
                        break
                os.kill(pid, signal.SIGKILL)
        ended = [join(*child) for child in children]
        kills += sum(child.killed for child in ended)
        assert all(child.killed or child.code == 0 for child in ended), "a driver failed; see its traceback"
        with _open(path) as broker:
            if broker.get_operation(id).ended:
                return kills


def _drive(path: Path, id: str, say: Say) -> None:
    with _open(path) as broker:
        broker.run_operation(id, at_once=AT_ONCE, progress=lambda _: say(BEAT))


def _fail_everything(path: Path, count: int) -> None:
    """Until each item has died a second time."""
    with _open(path) as broker:
        failed = 0
        while failed < count:
            for lease in broker.lease(QUEUE, 50, wait="10s"):
                broker.fail(lease, "boom again")
                failed += 1


def _all_items(broker: Broker) -> Iterator[Item]:
    cursor: str | None = None
    while True:
        page = broker.find(status=None, limit=1000, cursor=cursor)
        yield from page.items
        if (cursor := page.cursor) is None:
            return
