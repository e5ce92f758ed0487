"""`redrive doctor`: checks of the store and its files, with advice. Nothing is changed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from redrive import __version__
from redrive.broker.flow import run_query
from redrive.broker.flows.health import BREAKER_WARNING
from redrive.broker.signal_shield import shielded
from redrive.cli import error_output
from redrive.cli.common_options import as_json, command, command_line
from redrive.cli.output import ago, coloured, escape_line, now, print_json, print_line, short
from redrive.cli.store_target import StoreTarget, find_target, open_place
from redrive.contract.queries import ListWorkerLeases
from redrive.errors import AccessError, RedriveError
from redrive.model.duration import MILLISECOND, MINUTE, SECOND
from redrive.model.item import Item, Status
from redrive.model.limits import MAX_BATCH
from redrive.model.operation import OperationStatus
from redrive.model.sqlite_url import lock_mode, parse_sqlite_url
from redrive.model.text import format_counts, format_elapsed, pluralize

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

LARGEST_SKEW = SECOND
"""The clock skew above which times of leases and delays are confusing to operators."""
LATE_LEASE = MINUTE
"""The time within which an expired lease should be reclaimed."""
LATE_STEP = MINUTE
"""The time after which an operation whose next step is due is not driven by any process."""
MOST_ITEMS = 10_000
"""The largest number of items that are checked for damage, the newest ones."""
MOST_WORKERS = 20
"""The largest number of workers whose leases are read."""
MOST_LEASES = 1_000
"""The largest number of active items that are checked."""
_DRIVERS = {"sqlite": "apsw", "postgresql": "psycopg", "postgres": "psycopg", "redis": "redis", "rediss": "redis",
            "valkey": "redis", "valkeys": "redis", "unix": "redis"}  # fmt: skip


class Check(msgspec.Struct, frozen=True):
    """The result of one check."""

    name: str
    state: Literal["ok", "warn", "fail"]
    finding: str
    advice: str = ""
    """The remedy if it is not ok."""


def checks(place: StoreTarget) -> tuple[Callable[[Broker], Iterator[Check]], ...]:
    """Return the checks of a store, in order."""

    def versions(broker: Broker) -> Iterator[Check]:
        return _versions(place, broker)

    def clock(broker: Broker) -> Iterator[Check]:
        return _clock(place, broker)

    def files(broker: Broker) -> Iterator[Check]:
        return check_files(place.url)

    stored = [] if place.is_server else [files, structure] if place.is_sqlite else [structure]
    return versions, durability, *stored, store, clock, leases, workers, queues, operations, damage


def _versions(place: StoreTarget, broker: Broker) -> Iterator[Check]:
    told = f"redrive {__version__}, Python {platform.python_version()}"
    driver = _DRIVERS.get(place.url.partition(":")[0].removesuffix("+cluster"))
    if driver is not None:
        told += f", {driver} {importlib.metadata.version(driver)}"
    if driver == "apsw":
        # The version of apsw is that of its SQLite and one number more. A store does not open on one with known flaws.
        told += f" with SQLite {'.'.join(importlib.metadata.version(driver).split('.')[:3])}, which has no known flaw"
    others = {worker.versions.get("redrive", "") for worker in broker.workers()} - {__version__, ""}
    if others:
        yield Check(
            "versions", "warn", f"{told}; workers run {', '.join(sorted(others))}", "deploy the same version everywhere"
        )
    else:
        yield Check("versions", "ok", told)


def durability(broker: Broker) -> Iterator[Check]:
    """Report which failures an acknowledged call survives."""
    found = broker.durability()
    if found.level == "full":
        yield Check("durability", "ok", f"full: an acknowledged call survives {found.survives}")
    else:
        told = f"{found.level}: survives {found.survives}; can lose {found.can_lose}"
        yield Check("durability", "warn", told, "docs/concepts/durability.md says what to set")


def store(broker: Broker) -> Iterator[Check]:
    """Report the warnings of the store: long readers, memory, items that do not arrive, open breakers."""
    warnings = broker.health().warnings
    of_breakers = [warning for warning in warnings if warning.startswith(BREAKER_WARNING)]
    for warning in warnings:
        if warning not in of_breakers:
            yield Check("store", "warn", warning)
    for warning in of_breakers:
        yield Check("breaker", "warn", warning, f"see {command_line('breaker list')}; it closes when a probe succeeds")
    if warnings == tuple(of_breakers):
        yield Check("store", "ok", "no long readers, enough room, no item stuck between two stores")


def structure(broker: Broker) -> Iterator[Check]:
    """Read the whole store, and report damaged tables and indexes."""
    problems = shielded(broker.core.store.examine)
    for problem in problems:
        yield Check("structure", "fail", problem, "stop what uses the store, and restore a backup")
    if not problems:
        yield Check("structure", "ok", "all tables and indexes are whole")


def _clock(place: StoreTarget, broker: Broker) -> Iterator[Check]:
    if place.is_sqlite or place.is_memory:
        yield Check("clock", "ok", "the clock of this machine; there is no other")
        return
    names = [queue.name for queue in broker.list_queues()]
    if not names:
        yield Check("clock", "ok", "not compared: there is no queue yet")
        return
    # A commit returns the time of the store. This one releases holds that do not exist, so it changes nothing.
    broker.unhold("redrive-doctor")
    before = now()
    there = broker.stats(names[0]).at
    skew = there - (before + now()) // 2
    told = f"the store is {format_elapsed(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine"
    if abs(skew) > LARGEST_SKEW:
        yield Check("clock", "warn", told, "synchronize both with a time server (NTP)")
    else:
        yield Check("clock", "ok", told if abs(skew) >= 10 * MILLISECOND else "the same as the store's, to 10 ms")


def leases(broker: Broker) -> Iterator[Check]:
    """Report expired leases that no process has reclaimed, and leases that were given at a later time than now."""
    active = broker.find(status=Status.ACTIVE.value, order="oldest", limit=MOST_LEASES).items
    late_at = now() - LATE_LEASE
    late = [item for item in active if item.lease_deadline is not None and item.lease_deadline < late_at]
    early = _leased_later(broker, active)
    if early:
        last = max(early, key=lambda item: item.lease_deadline or 0)
        yield Check(
            "leases",
            "warn",
            f"{pluralize(len(early), 'item')} leased at a later time than now (item {short(last.id)}): the clock was "
            f"set back, so these leases end up to {format_elapsed((last.lease_deadline or 0) - now())} from now",
            f"check the clocks; if its worker is gone, {command_line(f'queue retry {short(last.id)} --force')}",
        )
    if late:
        oldest = min(late, key=lambda item: item.lease_deadline or 0)
        yield Check(
            "leases",
            "warn",
            f"{pluralize(len(late), 'lease')} expired, the first {ago(oldest.lease_deadline)} "
            f"(item {short(oldest.id)}), "
            f"and no process has reclaimed them",
            "a worker, a server, or any program that has the store open does so: start one",
        )
    if not late and not early:
        yield Check("leases", "ok", f"{pluralize(len(active), 'item')} leased, none of them overdue")


def _leased_later(broker: Broker, active: Sequence[Item]) -> list[Item]:
    """Return the items that are leased at a later time than now. The time of a later delivery is read with the leases
    of its worker, for some workers."""
    timeouts = {queue.name: queue.settings.lease_timeout for queue in broker.list_queues()}
    latest = now() + LATE_LEASE
    suspects = [item for item in active if (item.lease_deadline or 0) > latest + timeouts.get(item.queue, 0)]
    leased_at = {item.id: item.first_leased_at or 0 for item in suspects}
    again = {item.worker for item in suspects if item.worker is not None and leased_at[item.id] <= latest}
    with suppress(AccessError):
        for worker in sorted(again)[:MOST_WORKERS]:
            found = broker.run_flow(run_query(ListWorkerLeases(worker)))
            leased_at |= {lease.id: lease.leased_at for lease in found}
    return [item for item in suspects if leased_at[item.id] > latest]


def workers(broker: Broker) -> Iterator[Check]:
    """Report queues with eligible items but without a worker."""
    alive = broker.workers()
    served = {queue for worker in alive for queue in worker.queues}
    dead_queues = {queue.name for queue in broker.list_queues() if queue.is_dead_queue}
    waiting = {
        stats.queue: stats.pending
        for stats in broker.list_stats()
        if stats.oldest_ready_at is not None and stats.queue not in served | dead_queues
    }
    if waiting:
        todo = "start one: redrive work module:app. Programs that lease without a worker are not shown here"
        yield Check("workers", "warn", f"no worker for the items that wait in {format_counts(waiting)}", todo)
    else:
        names = ", ".join(worker.name for worker in alive[:5])
        told = f"{pluralize(len(alive), 'worker')} alive: {names}" if alive else "none alive, and nothing waits for one"
        yield Check("workers", "ok", told)


def queues(broker: Broker) -> Iterator[Check]:
    """Report queues that are paused or full, and the number of dead letters."""
    found = {queue.name: queue for queue in broker.list_queues()}
    stats = [each for each in broker.list_stats() if each.queue in found]
    paused = [queue.name for queue in found.values() if queue.paused]
    full = [
        each.queue
        for each in stats
        if (most := found[each.queue].settings.max_size) is not None
        and each.pending + each.failed + each.active >= most
    ]
    if paused:
        yield Check("paused", "warn", f"paused: {', '.join(paused)}", command_line(f"queue resume {paused[0]}"))
    if full:
        yield Check(
            "full",
            "warn",
            f"full: {', '.join(full)}",
            f"add workers, or {command_line(f'queue update {full[0]} --max-size N')}",
        )
    dead = {each.queue: each.dead_letters for each in stats if each.dead_letters}
    if not paused and not full:
        yield Check("queues", "ok", f"{pluralize(len(found), 'queue')}, none paused or full")
    told = (
        f"{pluralize(sum(dead.values()), 'dead letter')}: {format_counts(dead)}; see {command_line('dead groups')}"
        if dead
        else "no dead letters"
    )
    yield Check("dead", "ok", told)


def damage(broker: Broker) -> Iterator[Check]:
    """Report items of which a stored value cannot be read."""
    examined, damaged = 0, list[Item]()
    cursor: str | None = None
    while examined < MOST_ITEMS:
        page = broker.find(status="any", limit=MAX_BATCH, cursor=cursor)
        cursor, examined = page.cursor, examined + len(page.items)
        damaged += [item for item in page.items if item.damage is not None]
        if cursor is None:
            break
    for item in damaged[:10]:
        told = f"{item.damage} of item {short(item.id)} is damaged"
        drop = command_line(f"queue drop {short(item.id)}")
        yield Check("damage", "fail", told, f"restore a backup of it, or {drop}")
    if not damaged:
        yield Check("damage", "ok", f"none in {pluralize(examined, 'item')}")


def operations(broker: Broker) -> Iterator[Check]:
    """Report operations that wait for an operator, and those that no process drives."""
    unfinished = broker.list_operations(unfinished=True)
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
            f"{pluralize(len(still), 'operation')} {run} but no process drives {them}: {each.verb} {short(each.id)} "
            f"has made no progress for {format_elapsed(at - since[each.id])}",
            f"{command_line(f'operation resume {short(each.id)}')} continues it here; "
            f"a worker or server on this store does so automatically: start one",
        )
    if waiting:
        each = waiting[0]
        told = f"{pluralize(len(waiting), 'operation')} waiting: {each.verb} {short(each.id)} is {each.status.value}"
        yield Check("operations", "warn", told, command_line(f"operation show {short(each.id)}"))
    if not still and not waiting:
        yield Check("operations", "ok", f"{len(unfinished):,} running" if unfinished else "none unfinished")


@command("doctor", short_help="Check the store and its workers, and suggest remedies.")
@click.pass_context
def doctor(context: click.Context) -> None:
    """Check the store, its queues and its workers, and suggest remedies. Nothing is changed.

    Each line is ok, warn or fail, with advice if needed. The exit code is 1 if any line is warn or fail, else 0.
    """
    found = list(examine(find_target()))
    well = all(check.state == "ok" for check in found)
    if as_json():
        print_json({"is_well": well, "checks": found})
    else:
        width = max(len(check.name) for check in found)
        for check in found:
            print_line(f"{coloured(f'{check.state:4}'.strip()) + ' ' * (4 - len(check.state))}  "
                f"{check.name:{width}}  {escape_line(check.finding)}")  # fmt: skip
            if check.advice:
                print_line(f"{'':{width + 8}}{escape_line(check.advice)}")
    if not well:
        context.exit(error_output.FAILED)


def examine(place: StoreTarget) -> Iterator[Check]:
    """Run all checks of a store."""
    yield Check("place", "ok", f"{place.shown}, namespace {place.namespace} (from {place.source})")
    began = time.perf_counter()
    try:
        broker = open_place(place)
    except RedriveError as error:
        text, _, todo = error_output.error_text(error).partition("\n")
        yield Check("reachable", "fail", text, todo.strip())
        return
    with broker:
        yield Check("reachable", "ok", f"opened in {(time.perf_counter() - began) * 1000:,.0f} ms")
        for check in checks(place):
            yield from _looked(check, broker)


def _looked(check: Callable[[Broker], Iterator[Check]], broker: Broker) -> Iterator[Check]:
    """Run one check. Its failure is reported, and does not prevent the others."""
    name = check.__name__
    try:
        yield from check(broker)
    except AccessError:
        yield Check(name, "ok", "not checked: this token does not have the right")
    except RedriveError as error:
        yield Check(name, "warn", f"could not be checked: {error_output.one_of_several(error)}")


_GONE = " (deleted)"
"""The suffix that Linux appends to the name of an open file that was deleted."""


def check_files(url: str) -> Iterator[Check]:
    """Check the files of the store that a URL names."""
    file = parse_sqlite_url(url)
    path = os.path.realpath(file.path)
    modes = {path: file.mode, f"{path}-wal": file.mode, f"{path}-shm": file.mode, f"{path}-lock": lock_mode(file.mode)}
    loose = {name: found for name, mode in modes.items() if (found := _mode(name)) & ~mode}
    left_behind = _users_of_removed(path)
    if loose:
        shown = ", ".join(f"{os.path.basename(name)} ({found:04o})" for name, found in loose.items())
        mending = [
            _chmod(mode, [name for name in loose if modes[name] == mode]) for mode in dict.fromkeys(modes.values())
        ]
        yield Check(
            "files",
            "warn",
            f"more users than the URL allows can open {shown}: reading the lock file is enough to stop all writers",
            " && ".join(filter(None, mending)),
        )
    if left_behind:
        pids = ", ".join(map(str, left_behind))
        told = f"a file of that name which was removed or replaced is still in use, by process {pids}"
        yield Check("files", "warn", told, "restart that process: it reads and writes another file than this store")
    if not loose and not left_behind:
        yield Check("files", "ok", "present, and open only to the users that the URL allows")


def _mode(name: str) -> int:
    """Return the mode of a file; 0 if it does not exist."""
    try:
        return stat.S_IMODE(os.stat(name).st_mode)
    except OSError:
        return 0


def _chmod(mode: int, names: list[str]) -> str:
    return f"chmod {mode:o} {shlex.join(names)}" if names else ""


def _users_of_removed(path: str) -> list[int]:
    """Return the user's processes that have a removed database or log of this name open. Only on Linux."""
    gone = {f"{path}{_GONE}", f"{path}-wal{_GONE}"}
    return [int(pid) for pid in _entries("/proc") if pid.isdecimal() and not gone.isdisjoint(_open_files(pid))]


def _open_files(pid: str) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for number in _entries(folder):
        try:
            yield os.readlink(f"{folder}/{number}")
        except OSError:  # it was just closed
            continue


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
