"""Processes that move items between two stores are killed anywhere: each item is there once, in one store or the other.

Read past the stores where it can be: `places` looks at every row of both.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.children import BEAT, Ended, Say, fork, join, run
from tests.acceptance.crashing import ACK, chosen_points, count_points
from tests.acceptance.faults import Fault, Faults, die
from tests.acceptance.histories import Entry, Journal, read_journal
from tests.acceptance.places import Broken, Where, places
from tests.sizes import THOROUGH

from redrive import Broker, Lease, connect
from redrive.broker import flow
from redrive.broker.flow import CommitCalls, OnStore
from redrive.contract.maintenance_calls import FinishMove, Receive
from redrive.contract.queries import ListMoves, ListOpenMoves
from redrive.errors import LeaseLost, RedriveError
from redrive.stores.relational import tables
from redrive.testing.fake_clock import FakeClock

ITEMS = int(os.environ.get("REDRIVE_ITEMS", 70_000 if THOROUGH else 280))
"""Each moves once, and every second one back: three moves for two items."""
KILLS = 1_000 if THOROUGH else 14
AT_ONCE = 10
FEWEST_POINTS = 10
FEWEST_BOUNDARIES = 6
VALUES = range(2)
Report = Callable[[str, object], None]


# Kill at every write, and at every boundary between two transactions


def open_here(here: str, there: str, **options: Any) -> Broker:
    """A broker that does nothing by itself, on a clock that stands still."""
    fixed = {"clock": FakeClock(), "maintenance": False, **options}
    return connect(here, store_name="here", stores={"there": there}, **fixed)


def prepare(here: str, there: str) -> list[Lease]:
    """Items that a worker holds, of a queue whose dead go to the other store."""
    with open_here(here, there, durability="relaxed") as broker:
        broker.on_store("there").create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue@there")
        broker.put_many("jobs", VALUES)
        return broker.lease("jobs", len(VALUES))


def move(broker: Broker, leases: list[Lease], consumed: bool, say: Say) -> None:
    """Let items die, and take them to the other store; with `consumed`, they are used up there before they are gone
    here. Each step that is acknowledged is told."""
    for lease in leases:
        broker.fail(lease, "boom")
        say(b"f")
    if consumed:
        there = broker.on_store("there")
        leaving = broker.core.store.read(ListMoves())
        there.core.committer.commit([Receive("morgue", each, "here") for each in leaving])
        for lease in there.lease("morgue", len(VALUES)):
            say(b"c")
            there.complete(lease)
            say(b"C")
    broker.run_maintenance()
    say(b"m")


def check(here: str, there: str, locations: tuple[Where, Where], said: bytes) -> None:
    """Look at what was left, go on, and look again: every item is there once, or was used up."""
    tried, used_up = said.count(b"c"), said.count(b"C")
    found = _found(locations, removed=tried)
    with open_here(here, there, durability="relaxed") as broker:
        for _ in VALUES:
            broker.run_maintenance()
            broker.on_store("there").run_maintenance()
        assert broker.moves() == ()
        assert broker.on_store("there").core.store.read(ListOpenMoves("here")) == ()
    after = _found(locations, removed=tried)
    if after.total() > len(VALUES) - used_up or set(after) > set(found):
        raise Broken(f"{found} became {after}, and {used_up} were used up")
    if any(count > 1 for count in after.values()):
        raise Broken(f"{after}: something is there twice")


def _found(locations: tuple[Where, Where], removed: int) -> Counter[int]:
    """The values in both stores. What is moving may be in the other one already, and then counts once."""
    here, there = (places(where) for where in locations)
    arrived = {int(each.payload) for each in there}
    values = Counter(int(each.payload) for each in (*here, *there))
    for standing in here:
        if standing.status == "moving" and int(standing.payload) in arrived:
            values[int(standing.payload)] -= 1
    if len(values) < len(VALUES) - removed:
        raise Broken(f"of {len(VALUES)} items {len(values)} are left, and {removed} may have been used up")
    return values


@pytest.mark.parametrize("consumed", [False, True], ids=["kept", "consumed"])
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.POWER_CUT])
@pytest.mark.timeout(600)
def test_killed_at_every_write_of_two_files(
    fault: Fault, consumed: bool, tmp_path: Path, record_property: Report
) -> None:
    points = kill_everywhere(tmp_path, fault, consumed)
    record_property("points", points)
    print(f"{points} points ({fault}, {'consumed' if consumed else 'kept'})")
    assert points >= FEWEST_POINTS


def kill_everywhere(
    tmp_path: Path, fault: Fault = Fault.KILL, consumed: bool = False, plant: Callable[[], None] | None = None
) -> int:
    """Kill at every kind of write that the moves have, as `crashing` chooses them. Gives how many points there are."""
    template = tmp_path / "template"
    template.mkdir()
    leases = prepare(*_files(template))

    def die_at(point: int, urls: tuple[str, str], say: Say) -> None:
        faults = Faults(fault, seed=point)
        with open_here(*urls) as broker:
            broker.on_store("there")
            if plant is not None:
                plant()
            faults.arm(point)
            move(broker, leases, consumed, say)
            faults.arm(0)

    def rehearse(urls: tuple[str, str], say: Say) -> None:
        faults = Faults(fault)
        with open_here(*urls) as broker:
            broker.on_store("there")
            faults.arm(0, note=say)
            move(broker, leases, consumed, lambda _: say(ACK))
            faults.arm(0)

    def attempt(name: str, work: Callable[[tuple[str, str], Say], None]) -> tuple[Path, Ended]:
        folder = tmp_path / name
        shutil.copytree(template, folder)
        return folder, run(partial(work, _files(folder)))

    _, ended = attempt("rehearsal", rehearse)
    for point in chosen_points(ended.said, fault):
        folder, died = attempt(str(point), partial(die_at, point))
        check(*_files(folder), (folder / "here.db", folder / "there.db"), died.said)
        shutil.rmtree(folder)
    return count_points(ended.said)


def _forget_what_came() -> None:
    tables._LEDGER += " AND false"


def _remove_first() -> None:
    """Before the other store has it."""
    take = flow.perform_effect

    def hurried(core: Any, effect: Any) -> Any:
        if isinstance(effect, OnStore) and isinstance(effect.effect, CommitCalls):
            ids = tuple(call.move.item.id for call in effect.effect.calls if isinstance(call, Receive))
            core.committer.commit([FinishMove(ids)] if ids else [])
        return take(core, effect)

    flow.perform_effect = hurried


@pytest.mark.parametrize(("plant", "consumed"), [(_forget_what_came, True), (_remove_first, False)])
def test_planted_bug_is_found(plant: Callable[[], None], consumed: bool, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        kill_everywhere(tmp_path, consumed=consumed, plant=plant)


@pytest.mark.parametrize("consumed", [False, True], ids=["kept", "consumed"])
@pytest.mark.parametrize("direction", ["sqlite to postgres", "postgres to sqlite"])
@pytest.mark.timeout(600)
def test_killed_before_and_after_every_transaction(
    direction: str, consumed: bool, tmp_path: Path, postgres_url: str, record_property: Report
) -> None:
    boundary = 0
    killed = True
    while killed:
        boundary += 1
        file = tmp_path / f"{boundary}.db"
        server = f"{postgres_url}_{boundary}"
        urls = (f"sqlite:///{file}", server)
        locations: tuple[Where, Where] = (file, server)
        if direction == "postgres to sqlite":
            urls, locations = urls[::-1], locations[::-1]
        leases = prepare(*urls)

        def die_there(urls: tuple[str, str], boundary: int, leases: list[Lease], say: Say) -> None:
            with open_here(*urls) as broker:
                count_transactions([broker, broker.on_store("there")], boundary)
                move(broker, leases, consumed, say)

        ended = run(partial(die_there, urls, boundary, leases))
        check(*urls, locations, ended.said)
        killed = ended.killed
    record_property("boundaries", boundary)
    print(f"{boundary} boundaries ({direction}, {'consumed' if consumed else 'kept'})")
    assert boundary >= FEWEST_BOUNDARIES


def count_transactions(brokers: Iterable[Broker], at: int) -> None:
    """Die before the transaction, or after the transaction, that is the one at which this many boundaries were met."""
    met = 0

    def boundary() -> None:
        nonlocal met
        met += 1
        if met == at:
            die()

    def counting(commit: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            boundary()
            result = commit(*args)
            boundary()
            return result

        return counted

    for broker in brokers:
        store: Any = broker.core.store
        store.commit = counting(store.commit)


def _files(folder: Path) -> tuple[str, str]:
    return f"sqlite:///{folder}/here.db", f"sqlite:///{folder}/there.db"


# Kill at random, while items go there and back


@pytest.mark.timeout(3 * 3600 if THOROUGH else 600)
def test_random_kills_between_two_files(tmp_path: Path, record_property: Report) -> None:
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    _check_run(*_files(tmp_path), (here, there), tmp_path, record_property)


@pytest.mark.timeout(6 * 3600 if THOROUGH else 600)
def test_random_kills_between_a_file_and_postgres(tmp_path: Path, postgres_url: str, record_property: Report) -> None:
    here = tmp_path / "here.db"
    _check_run(f"sqlite:///{here}", postgres_url, (here, postgres_url), tmp_path, record_property)


@pytest.mark.timeout(6 * 3600 if THOROUGH else 600)
def test_random_kills_between_redis_and_postgres(
    tmp_path: Path, redis_url: str, postgres_url: str, record_property: Report
) -> None:
    _check_run(redis_url, postgres_url, (redis_url, postgres_url), tmp_path, record_property)


def _check_run(here: str, there: str, locations: tuple[Where, Where], folder: Path, record_property: Report) -> None:
    with connect(here, store_name="here", stores={"there": there}, maintenance=False) as broker:
        broker.on_store("there").create_queue("morgue", lease_timeout="2s")
        broker.create_queue("jobs", dead_queue="morgue@there", lease_timeout="2s", max_losses=0, max_attempts=0)
        for start in range(0, ITEMS, 1000):
            broker.put_many("jobs", range(start, min(start + 1000, ITEMS)))
    kills = _work_and_kill(here, there, folder)
    entries = [entry for journal in folder.glob("*.journal") for entry in read_journal(journal)]
    moves = _check(entries, locations)
    record_property("moves", f"{ITEMS} items, {moves} moves, {kills} kills")
    print(f"{ITEMS} items, at least {moves} moves, {kills} kills")
    assert kills >= KILLS * 0.8, "a run that was hardly disturbed proves nothing"
    assert moves >= ITEMS


def _work_and_kill(here: str, there: str, folder: Path) -> int:
    """A worker and a keeper of the dead, who are killed and begin again, until everything is done."""
    draw, kills = random.Random(0), 0
    roles = {"worker": _work, "keeper": _keep}

    def begin(role: str) -> tuple[int, int]:
        work = partial(roles[role], here, there, folder / f"{role}.journal")
        return fork(work, pipe_bytes=len(BEAT))

    children = {role: begin(role) for role in roles}
    beats = max(1, ITEMS // (KILLS * AT_ONCE))
    while True:
        role = draw.choice(list(roles))
        pid, reader = children[role]
        ended = False
        for _ in range(draw.randint(1, 2 * beats)):
            if not os.read(reader, len(BEAT)):
                ended = True
                break
        if not ended and kills < KILLS:
            os.kill(pid, signal.SIGKILL)
            kills += 1
        elif not ended:
            continue
        child = join(*children[role])
        assert child.killed or child.code == 0, "a child failed; see its traceback"
        if not child.killed:  # it saw that everything is done, and so will the other one
            del children[role]
            break
        children[role] = begin(role)
    for pid, reader in children.values():
        assert join(pid, reader).code == 0
    return kills


def _work(here: str, there: str, journal: Path, say: Say) -> None:
    """Whoever is new here fails; who comes back is done."""
    written = Journal(journal)
    with connect(here, store_name="here", stores={"there": there}) as broker:
        while not _is_done(broker):
            for lease in broker.lease("jobs", AT_ONCE, wait="100ms"):
                if lease.redrives == 0:
                    try:
                        broker.fail(lease, "boom")
                    except LeaseLost:
                        continue  # it ran out on a busy machine, and the item comes again
                    written.write("fail", "ok", values=[lease.value], ids=[lease.id])
                else:
                    _complete(broker, lease, written)
            say(BEAT)


def _keep(here: str, there: str, journal: Path, say: Say) -> None:
    """Every second one is used up, the others go back."""
    written = Journal(journal)
    with connect(here, store_name="here", stores={"there": there}) as broker:
        keeper = broker.on_store("there")
        while not _is_done(broker):
            for lease in keeper.lease("morgue", AT_ONCE, wait="100ms"):
                if lease.value % 2:
                    _complete(keeper, lease, written)
                else:
                    try:
                        keeper.redrive(lease.id, force=True)
                    except RedriveError:
                        continue  # its lease ran out, and somebody else has sent it back
                    written.write("redrive", "ok", values=[lease.value], ids=[lease.id])
            say(BEAT)


def _complete(broker: Broker, lease: Lease, written: Journal) -> None:
    written.write("complete", "invoke", values=[lease.value], ids=[lease.id])
    try:
        broker.complete(lease)
    except LeaseLost:
        written.write("complete", "lost", values=[lease.value], ids=[lease.id])
        return
    written.write("complete", "ok", values=[lease.value], ids=[lease.id])


def _is_done(broker: Broker) -> bool:
    """Nothing is left in either store. Looked at twice: what moves between two looks is in the one or the other."""
    looks = [(broker, "jobs"), (broker.on_store("there"), "morgue")] * 2
    return not any(_size(each, queue) for each, queue in looks)


def _size(broker: Broker, queue: str) -> int:
    stats = broker.stats(queue)
    return stats.pending + stats.failed + stats.active + stats.dead + stats.moving


def _check(entries: list[Entry], locations: tuple[Where, Where]) -> int:
    """Everything was done once. A completion that was cut off may have been done, or another one took its place."""
    assert [standing for where in locations for standing in places(where)] == []
    done = Counter(entry.values[0] for entry in entries if (entry.call, entry.phase) == ("complete", "ok"))
    tried = {entry.values[0] for entry in entries if (entry.call, entry.phase) == ("complete", "invoke")}
    twice = [value for value, count in done.items() if count > 1]
    assert not twice, f"{len(twice)} items were done twice: {twice[:5]}"
    lost = set(range(ITEMS)) - tried
    assert not lost, f"{len(lost)} items are lost: {sorted(lost)[:5]}"
    return sum(1 for entry in entries if entry.call in ("fail", "redrive"))
