"""Workers as they are run, by `redrive work`, in bad times: killers, stops and kills in the middle of work."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.acceptance import killable
from tests.sizes import THOROUGH

from redrive import Broker, DeadReason, Item, Status, connect, new_item
from redrive.errors import StoreUnavailable

ITEMS = 20_000 if THOROUGH else 400
KILLERS = 20 if THOROUGH else 8
STOPS = 100 if THOROUGH else 2
KILLS = 100 if THOROUGH else 4
SLOTS = 4
HOWS = ("exit", "segfault", "memory", "loop")
SECONDS = 3600.0 if THOROUGH else 600.0


class Program:
    """`python -m redrive work`, and what it wrote."""

    def __init__(self, url: str, folder: Path, *options: str, lease: str = "30s") -> None:
        self.log = folder / "log"
        environment = {
            **os.environ,
            "REDRIVE_URL": url,
            "KILLABLE_TRACE": str(folder / "trace"),
            "KILLABLE_LEASE": lease,
            "PYTHONPATH": str(Path(killable.__file__).parent),
        }
        command = [sys.executable, "-m", "redrive", "work", "killable:app", *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def worker(self) -> int:
        """The process that has the leases: the one child of the supervisor."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def stop(self) -> None:
        """Ask it to stop, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(240) == 0, self.log.read_text()[-3000:]


@contextlib.contextmanager
def program(url: str, folder: Path, *options: str, lease: str = "30s") -> Iterator[Program]:
    """Runs it, and leaves nothing behind."""
    running = Program(url, folder, *options, lease=lease)
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            if running.process.poll() is None:
                running.process.terminate()
                try:
                    running.process.wait(240)
                except subprocess.TimeoutExpired:
                    running.process.kill()
                    running.process.wait()


def wait_until(condition: Callable[[], bool], what: str, log: Path, seconds: float = SECONDS) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen; the log ends with:\n{log.read_text()[-3000:]}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process still runs: one that was killed does, for a moment."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def traced(folder: Path) -> list[tuple[str, int]]:
    """What the handlers wrote down."""
    path = folder / "trace"
    text = path.read_text() if path.exists() else ""
    whole, _, _ = text.rpartition("\n")
    return [(word, int(n)) for word, n in (line.split() for line in whole.splitlines())]


def everything(broker: Broker) -> dict[int, Item]:
    """All items, by number."""
    found: list[Item] = []
    cursor = None
    while True:
        page = broker.find(queue="jobs", status="any", limit=1000, cursor=cursor)
        found += page.items
        if (cursor := page.cursor) is None:
            return {item.value["n"]: item for item in found}


def fill(broker: Broker, items: int, *, killers: int = 0, seconds: float = 0.005) -> dict[int, str]:
    """Put healthy items, and killers among them, evenly. Gives how each killer kills."""
    hows = {(number + 1) * items // (killers + 1): HOWS[number % len(HOWS)] for number in range(killers)}
    values = [
        new_item({"n": n, "how": hows[n]}, headers={"task": "killer"})
        if n in hows
        else new_item({"n": n, "seconds": seconds}, headers={"task": "healthy"})
        for n in range(items)
    ]
    for start in range(0, items, 5000):
        broker.put_many("jobs", values[start : start + 5000])
    return hows


def is_done(broker: Broker) -> Callable[[], bool]:
    """Whether nothing is to be done any more."""

    def nothing_left() -> bool:
        stats = broker.stats("jobs")
        return stats.pending + stats.failed + stats.active == 0

    return nothing_left


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with connect(url, maintenance=False) as broker:
        killable.app.create_queues(broker)
        yield broker


@pytest.mark.timeout(SECONDS)
def test_killers_die_alone(url: str, broker: Broker, tmp_path: Path) -> None:
    """Each killer is delivered as often as it may be lost, and is dead then; no other item is charged or done twice."""
    hows = fill(broker, ITEMS, killers=KILLERS)
    with program(url, tmp_path, "--processes", str(SLOTS)) as running:
        wait_until(is_done(broker), "the end", running.log)
        running.stop()
    items, told = everything(broker), traced(tmp_path)
    assert sorted(items) == list(range(ITEMS))
    begun, ended = Counter(n for word, n in told if word == "begin"), Counter(n for word, n in told if word == "end")
    for n, how in hows.items():
        item = broker.get(items[n].id)
        if how == "loop":  # beyond its time limit, which is a failure
            assert (item.status, item.dead_reason) == (Status.DEAD, DeadReason.RETRIES_EXHAUSTED), item
            assert (begun[n], item.counters.failures, item.counters.losses) == (1, 1, 0), item
            continue
        assert (item.status, item.dead_reason) == (Status.DEAD, DeadReason.WORKER_LOST), (how, item)
        assert begun[n] == item.counters.deliveries == item.counters.losses == killable.LOSSES, (how, begun[n], item)
        assert item.last_failure is not None
        assert item.last_failure.type.endswith("WorkerLost")
    for n, item in items.items():
        if n not in hows:
            assert item.status is Status.COMPLETED
            assert (item.counters.deliveries, item.counters.attempts, item.counters.losses) == (1, 1, 0)
            assert (begun[n], ended[n]) == (1, 1)


@pytest.mark.timeout(SECONDS)
def test_killers_in_threads_charge_each_neighbour_once(url: str, broker: Broker, tmp_path: Path) -> None:
    """The first delivery of a killer costs those beside it a loss. From then on it meets nothing but other suspects."""
    hows = fill(broker, ITEMS // 2, killers=2)
    with program(url, tmp_path, "--concurrency", str(SLOTS)) as running:
        wait_until(is_done(broker), "the end", running.log)
        running.stop()
    _require_verdicts(broker, hows)
    assert max(item.counters.losses for n, item in everything(broker).items() if n not in hows) <= 1


EMBEDDED = f"from killable import app; from redrive.worker import Worker; Worker(app, concurrency={SLOTS}).run()"


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_killers_in_workers_without_a_supervisor_die_and_no_other_item_does(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nobody knows what ran: all leases of a killed worker expire. Two workers, each started again when it is dead."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if store == "sqlite" else request.getfixturevalue(f"{store}_url")
    log = tmp_path / "log"
    workers: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "REDRIVE_URL": url,
            "KILLABLE_TRACE": str(tmp_path / "trace"),
            "KILLABLE_LEASE": "1s",
            "PYTHONPATH": str(Path(killable.__file__).parent),
        }
        with log.open("ab") as output:
            return subprocess.Popen([sys.executable, "-c", EMBEDDED], env=environment, stdout=output, stderr=output)

    with connect(url) as broker:
        killable.app.create_queues(broker)
        hows = fill(broker, ITEMS // 10, killers=2)

        def nothing_left() -> bool:
            for place, worker in enumerate(workers):
                if worker.poll() is not None:
                    workers[place] = start()
            return is_done(broker)()

        workers += [start(), start()]
        try:
            wait_until(nothing_left, "the end", log)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        _require_verdicts(broker, hows)


def _require_verdicts(broker: Broker, hows: dict[int, str]) -> None:
    for n, item in everything(broker).items():
        if n in hows:
            assert (item.status, item.dead_reason) == (Status.DEAD, DeadReason.WORKER_LOST), (n, item)
        else:
            assert item.status is Status.COMPLETED, (n, item)


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "options", [("--concurrency", str(SLOTS)), ("--processes", str(SLOTS))], ids=["threads", "processes"]
)
def test_stops_in_the_middle_charge_nothing_and_do_nothing_twice(
    url: str, broker: Broker, tmp_path: Path, options: tuple[str, ...]
) -> None:
    items = STOPS * 40
    fill(broker, items)
    for _ in range(STOPS):
        before = len(traced(tmp_path))
        with program(url, tmp_path, *options) as running:
            wait_until(lambda seen=before: len(traced(tmp_path)) > seen + 10, "work", running.log)  # type: ignore[misc]
            running.stop()
        assert broker.stats("jobs").active == 0
    with program(url, tmp_path, *options, "--until-idle") as running:
        assert running.process.wait(SECONDS) == 0
    found, told = everything(broker), traced(tmp_path)
    assert len(found) == items
    assert {item.status for item in found.values()} == {Status.COMPLETED}
    assert {(item.counters.attempts, item.counters.losses) for item in found.values()} == {(1, 0)}
    assert Counter(told) == Counter({(word, n): 1 for word in ("begin", "end") for n in range(items)})


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "options", [("--concurrency", str(SLOTS)), ("--processes", str(SLOTS))], ids=["threads", "processes"]
)
def test_kills_in_the_middle_charge_only_what_was_running(
    url: str, broker: Broker, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Every other kill strikes when all slots are at work, the others anywhere."""
    items = KILLS * 60
    fill(broker, items)
    charged: Counter[int] = Counter()
    hold = tmp_path / "trace.hold"
    with program(url, tmp_path, *options) as running:
        for kill in range(KILLS):
            before = len(traced(tmp_path))
            wait_until(lambda seen=before: len(traced(tmp_path)) > seen + 20, "work", running.log)  # type: ignore[misc]
            if kill % 2:
                holding = _held(tmp_path) + SLOTS
                hold.touch()
                wait_until(lambda many=holding: _held(tmp_path) >= many, "hold", running.log)  # type: ignore[misc]
            worker = running.worker()
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda dead=worker: not is_alive(dead), "death", running.log)  # type: ignore[misc]
            charged.update(_at_work(traced(tmp_path)))
            hold.unlink(missing_ok=True)
            wait_until(lambda dead=worker: running.worker() not in (0, dead), "a new worker", running.log)  # type: ignore[misc]
        wait_until(is_done(broker), "the end", running.log)
        running.stop()
    found = everything(broker)
    assert sorted(found) == list(range(items)), "something was lost"
    assert 0 < sum(item.counters.losses for item in found.values()) <= KILLS * SLOTS
    if "--processes" in options:
        return  # the children end what they run before they notice: the trace does not tell what the worker had running
    # All that were held; of the others some were about to begin, or had just ended, and had not written that down.
    seen_at_work = sum(min(item.counters.losses, charged[n]) for n, item in found.items())
    assert seen_at_work >= KILLS // 2 * SLOTS


def _held(folder: Path) -> int:
    """How many were at work while they were held."""
    return sum(word == "held" for word, _ in traced(folder))


def _at_work(told: list[tuple[str, int]]) -> set[int]:
    """What had begun and not ended when a trace was written."""
    counted = Counter(told)
    return {n for word, n in counted if word == "begin" and counted["begin", n] > counted["end", n]}


ROUNDS = 10 if THOROUGH else 1
AT_ONCE = 10


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_worker_that_slept_beyond_its_leases_is_refused(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It is stopped while handlers run, and goes on when others have the items: what it says of them counts nothing."""
    where = f"sqlite:///{tmp_path / 'jobs.db'}" if store == "sqlite" else request.getfixturevalue(f"{store}_url")
    with connect(where, maintenance=False) as broker:
        killable.app.create_queues(broker)
        broker.update_queue("jobs", lease_timeout="3s")
        for number in range(ROUNDS):
            folder = tmp_path / str(number)
            folder.mkdir()
            _sleep_beyond(broker, where, folder)


def _sleep_beyond(broker: Broker, url: str, folder: Path) -> None:
    broker.put_many("jobs", [new_item({"n": n}, headers={"task": "held"}) for n in range(AT_ONCE)])
    options = ("--concurrency", str(AT_ONCE), "--watchdog-timeout", "10m")
    with program(url, folder, *options, lease="3s") as running:
        wait_until(lambda: len(traced(folder)) == AT_ONCE, "the beginning", running.log)
        worker = running.worker()
        os.kill(worker, signal.SIGSTOP)
        leases = []
        end = time.monotonic() + 240
        while len(leases) < AT_ONCE and time.monotonic() < end:
            with contextlib.suppress(StoreUnavailable):  # it may have been stopped in a transaction, which ends soon
                leases += broker.lease("jobs", AT_ONCE, wait="1s", lease_timeout="10m")
        assert [lease.losses for lease in leases] == [1] * AT_ONCE
        (folder / "trace.go").touch()
        os.kill(worker, signal.SIGCONT)
        wait_until(lambda: running.log.read_text().count("outcome_refused") == AT_ONCE, "refusal", running.log)
        for lease in leases:
            item = broker.get(lease.id)
            assert (item.status, item.worker, item.lease_deadline) == (Status.ACTIVE, None, lease.deadline)
            assert broker.complete(lease).counters == lease.counters
        running.stop()
    assert Counter(word for word, _ in traced(folder)) == {"begin": AT_ONCE, "end": AT_ONCE}
