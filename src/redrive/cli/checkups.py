"""What `redrive doctor` looks at, one after the other. Nothing here changes anything."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from redrive import __version__
from redrive.cli.connection import Place
from redrive.cli.options import to_type
from redrive.cli.printing import ago, now, short
from redrive.model.duration import MILLISECOND, MINUTE, SECOND
from redrive.model.item import Status
from redrive.model.operation import OperationStatus
from redrive.model.shown import lasting, several, tally

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

LARGEST_SKEW = SECOND
"""Clocks that differ by more make leases and delays hard to understand, where people compare times."""
LATE_LEASE = MINUTE
"""A lease that ran out so long ago should have been taken back by somebody."""
LATE_STEP = MINUTE
"""An operation whose next step could have been made so long ago has nobody who makes it."""
MOST_LEASES = 1_000
"""So many active items are looked at."""
_DRIVERS = {"sqlite": "apsw", "postgresql": "psycopg", "postgres": "psycopg", "redis": "redis", "rediss": "redis",
            "valkey": "redis", "valkeys": "redis", "unix": "redis"}  # fmt: skip


class Check(msgspec.Struct, frozen=True):
    """Something that was looked at."""

    name: str
    state: Literal["ok", "warn", "fail"]
    told: str
    todo: str = ""
    """What to do, where it is not ok."""


def checks(place: Place) -> tuple[Callable[[Broker], Iterator[Check]], ...]:
    """What to look at in a place, in order."""

    def versions(broker: Broker) -> Iterator[Check]:
        return _versions(place, broker)

    def clock(broker: Broker) -> Iterator[Check]:
        return _clock(place, broker)

    def files(broker: Broker) -> Iterator[Check]:
        from redrive.cli.store_files import check_files

        return check_files(place.url)

    there = (versions, durability, *([files] if place.is_sqlite else []), store)
    return *there, clock, leases, workers, queues, operations


def _versions(place: Place, broker: Broker) -> Iterator[Check]:
    told = f"redrive {__version__}, Python {platform.python_version()}"
    driver = _DRIVERS.get(place.url.partition(":")[0].removesuffix("+cluster"))
    if driver is not None:
        told += f", {driver} {importlib.metadata.version(driver)}"
    if driver == "apsw":
        # apsw has the version of the SQLite it brings, and one number more. A store does not open on one with flaws.
        told += f" with SQLite {'.'.join(importlib.metadata.version(driver).split('.')[:3])}, which has no known flaw"
    others = {worker.versions.get("redrive", "") for worker in broker.workers()} - {__version__, ""}
    if others:
        yield Check(
            "versions", "warn", f"{told}; workers run {', '.join(sorted(others))}", "deploy the same everywhere"
        )
    else:
        yield Check("versions", "ok", told)


def durability(broker: Broker) -> Iterator[Check]:
    """What an acknowledged call survives."""
    found = broker.durability()
    if found.level == "full":
        yield Check("durability", "ok", f"full: an acknowledged call survives {found.survives}")
    else:
        told = f"{found.level}: survives {found.survives}; can lose {found.can_lose}"
        yield Check("durability", "warn", told, "docs/concepts/durability.md says what to set")


def store(broker: Broker) -> Iterator[Check]:
    """What the store itself warns of: long readers, memory, items that do not arrive."""
    warnings = broker.health().warnings
    for warning in warnings:
        yield Check("store", "warn", warning)
    if not warnings:
        yield Check("store", "ok", "no long readers, room enough, nothing stuck on its way to another store")


def _clock(place: Place, broker: Broker) -> Iterator[Check]:
    if place.is_sqlite or place.is_memory:
        yield Check("clock", "ok", "this machine's own; there is no other")
        return
    names = [queue.name for queue in broker.list_queues()]
    if not names:
        yield Check("clock", "ok", "not compared: there is no queue to ask about yet")
        return
    # A commit tells what time it is there. This one lets go of what nobody holds, and so changes nothing.
    broker.unhold("redrive-doctor")
    before = now()
    there = broker.stats(names[0]).at
    skew = there - (before + now()) // 2
    told = f"the store is {lasting(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine"
    if abs(skew) > LARGEST_SKEW:
        yield Check("clock", "warn", told, "let both follow a time server (NTP)")
    else:
        yield Check("clock", "ok", told if abs(skew) >= 10 * MILLISECOND else "the same as the store's, to 10 ms")


def leases(broker: Broker) -> Iterator[Check]:
    """Leases that ran out, and that nobody took back."""
    active = broker.find(status=Status.ACTIVE.value, order="oldest", limit=MOST_LEASES).items
    late_at = now() - LATE_LEASE
    late = [item for item in active if item.lease_deadline is not None and item.lease_deadline < late_at]
    if late:
        oldest = min(late, key=lambda item: item.lease_deadline or 0)
        yield Check(
            "leases",
            "warn",
            f"{several(len(late), 'lease')} ran out, the first {ago(oldest.lease_deadline)} (item {short(oldest.id)}), "
            f"and nobody has taken them back",
            "a worker, a server, or any program that has the store open does it: start one",
        )
    else:
        yield Check("leases", "ok", f"{several(len(active), 'item')} at work, none of them overdue")


def workers(broker: Broker) -> Iterator[Check]:
    """Whether somebody works on what waits."""
    alive = broker.workers()
    served = {queue for worker in alive for queue in worker.queues}
    waiting = {}
    for queue in broker.list_queues():
        stats = broker.stats(queue.name)
        if stats.oldest_ready_at is not None and queue.name not in served and not queue.is_dead_queue:
            waiting[queue.name] = stats.pending
    if waiting:
        todo = "start one: redrive work module:app. A program that leases by itself is not known here"
        yield Check("workers", "warn", f"no worker for what waits in {tally(waiting)}", todo)
    else:
        names = ", ".join(worker.name for worker in alive[:5])
        told = f"{several(len(alive), 'worker')} alive: {names}" if alive else "none alive, and nothing waits for one"
        yield Check("workers", "ok", told)


def queues(broker: Broker) -> Iterator[Check]:
    """Queues that are paused or full, and what died."""
    found = broker.list_queues()
    stats = {queue.name: broker.stats(queue.name) for queue in found}
    paused = [queue.name for queue in found if queue.paused]
    full = [
        queue.name
        for queue in found
        if (most := queue.settings.max_size) is not None
        and stats[queue.name].pending + stats[queue.name].failed + stats[queue.name].active >= most
    ]
    if paused:
        yield Check("paused", "warn", f"paused: {', '.join(paused)}", to_type(f"queue resume {paused[0]}"))
    if full:
        yield Check(
            "full",
            "warn",
            f"full: {', '.join(full)}",
            f"add workers, or {to_type(f'queue update {full[0]} --max-size N')}",
        )
    dead = {name: each.dead_letters for name, each in stats.items() if each.dead_letters}
    if not paused and not full:
        yield Check("queues", "ok", f"{several(len(found), 'queue')}, none paused or full")
    told = (
        f"{several(sum(dead.values()), 'dead letter')}: {tally(dead)}; see {to_type('dead groups')}"
        if dead
        else "nothing is dead"
    )
    yield Check("dead", "ok", told)


def operations(broker: Broker) -> Iterator[Check]:
    """Operations that wait for somebody, and such as nobody drives."""
    unfinished = broker.operations(unfinished=True)
    at = now()
    since = {each.id: max(each.next_at, each.updated_at) for each in unfinished}
    still = [each for each in unfinished if each.is_running and since[each.id] < at - LATE_STEP]
    waiting = [each for each in unfinished if each.status is not OperationStatus.RUNNING]
    if still:
        each = still[-1]
        run, them = ("runs", "it") if len(still) == 1 else ("run", "them")
        yield Check(
            "operations",
            "warn",
            f"{several(len(still), 'operation')} {run} and nobody drives {them}: {each.verb} {short(each.id)} has "
            f"stood still for {lasting(at - since[each.id])}",
            f"{to_type(f'operation resume {short(each.id)}')} goes on with it here and now; a worker or server on this "
            f"store does so by itself: start one",
        )
    if waiting:
        each = waiting[0]
        told = f"{several(len(waiting), 'operation')} waiting: {each.verb} {short(each.id)} is {each.status.value}"
        yield Check("operations", "warn", told, to_type(f"operation show {short(each.id)}"))
    if not still and not waiting:
        yield Check("operations", "ok", f"{len(unfinished):,} running" if unfinished else "none unfinished")
