"""Retry processors are killed anywhere: every captured task ends, and every run of the callback is accounted for.

The callback writes down each run before it begins and when it ends, past the store. What the store says at the end is
compared with that.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.acceptance.children import Say, fork, join
from tests.acceptance.crashing import crash_everywhere
from tests.acceptance.faults import Fault
from tests.acceptance.operations import Operation, Step, furnish
from tests.acceptance.places import Broken, places
from tests.acceptance.test_planted_bugs import forget_the_transaction
from tests.sizes import THOROUGH

from redrive import Broker, Lease, connect
from redrive.broker.flow import Flow
from redrive.capture import DeadLetterQueue, DeadLetterStatus, FailedTask
from redrive.capture.capture_queue import QUEUE_SETTINGS
from redrive.capture.manual_retry import Answer, ManualRetry, start_retry

FEWEST_POINTS = 5
KILLS = 50 if THOROUGH else 6
TASKS = 4_500 if THOROUGH else 120
PROCESSORS = 3
MAX_RETRIES = 3
FAILURES = (0, 1, 2, 99)
"""How often the callback fails a task before it succeeds; the last ones are exhausted."""
RETRIES = sum(min(failures + 1, MAX_RETRIES) for failures in FAILURES) * TASKS // len(FAILURES)
RUN_SECONDS = 0.005
PID_DIGITS = 10
LEASE_SECONDS = 10
"""Longer than a live process is ever kept from extending a lease, on a busy machine."""
QUEUE = "captured"
Report = Callable[[str, object], None]


# Killed at every write of a file


def capture_some(broker: Broker, max_retries: int = 3) -> dict[str, ManualRetry]:
    """Tasks that wait and one that is exhausted, among items of other queues. Returns where a retry is kept."""
    furnish(broker)
    dlq = DeadLetterQueue(broker)
    dlq.enqueue("waits", 1, "down")
    dlq.enqueue("exhausted", 2, "down", max_retries=0)
    dlq.enqueue("one", 3, TimeoutError("too slow"), "immediate", max_retries, metadata={"team": "a"})
    return {}


def begin_retry(broker: Broker, max_retries: int = 3) -> Lease:
    """As a processor does."""
    capture_some(broker, max_retries)
    (lease,) = broker.lease(QUEUE, limit=1)
    return lease


def capture(broker: Broker, _: object) -> None:
    DeadLetterQueue(broker).enqueue("new", {"type": "sweep"}, ValueError("boom"), repos=["a"], metadata={"n": 1})


def retry_by_hand(id: str, end: Callable[[ManualRetry], Flow[Any]]) -> list[Step]:
    """The transactions of `retry_task`: take it, count it, end it."""

    def start(broker: Broker, running: dict[str, ManualRetry]) -> None:
        dlq = DeadLetterQueue(broker)
        dlq.set_callback(lambda task: "done")
        running[id] = _leased(broker.run_flow(start_retry(dlq._queue, id)))

    return [
        start,
        lambda broker, running: broker.run_flow(running[id].count()),
        lambda broker, running: broker.run_flow(end(running[id])),
    ]


def _leased(retry: ManualRetry | Answer) -> ManualRetry:
    assert isinstance(retry, ManualRetry), retry
    return retry


def _succeeds(retry: ManualRetry) -> Flow[Any]:
    return retry.complete("done")


def _fails(retry: ManualRetry) -> Flow[Any]:
    return retry.fail(ConnectionError("still down"))


OPERATIONS = (
    Operation("capture, and capture again", capture_some, [capture, capture]),
    Operation("retry succeeds", begin_retry, [lambda broker, lease: broker.complete(lease, result="done")]),
    Operation("retry fails", begin_retry, [lambda broker, lease: broker.fail(lease, "still down")]),
    Operation(
        "retries are used up",
        partial(begin_retry, max_retries=1),
        [lambda broker, lease: broker.fail(lease, "still down")],
    ),
    Operation("manual retry succeeds", capture_some, retry_by_hand("one", _succeeds)),
    Operation("manual retry fails", capture_some, retry_by_hand("one", _fails)),
    Operation("manual retry of an exhausted task succeeds", capture_some, retry_by_hand("exhausted", _succeeds)),
    Operation("manual retry of an exhausted task fails", capture_some, retry_by_hand("exhausted", _fails)),
)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.POWER_CUT])
def test_each_step_is_there_or_not_at_every_write(
    operation: Operation, fault: Fault, tmp_path: Path, record_property: Report
) -> None:
    points = crash_everywhere(operation, tmp_path, fault)
    record_property("points", points)
    print(f"{operation.name}: {points} points ({fault})")
    assert points >= FEWEST_POINTS


@pytest.mark.parametrize("name", ["capture, and capture again", "retries are used up"])
def test_step_in_several_transactions_is_found(name: str, tmp_path: Path) -> None:
    (operation,) = (each for each in OPERATIONS if each.name == name)
    with pytest.raises(Broken):
        crash_everywhere(operation, tmp_path, plant=forget_the_transaction)


# Killed at random


class Run(NamedTuple):
    """One run of the callback: by which process, and how it ended; "" if it did not."""

    pid: int
    end: str


class RunLog:
    """A file for each task, with a line for the begin and the end of each run; and one for the begins of all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all = folder / "begun"
        self._all.touch()

    def begin(self, number: int) -> int:
        """Write that a run begins. Return how many have begun by then."""
        self._append(self._all, f"{os.getpid():>{PID_DIGITS}}")
        return self._write(number, "begin")

    def end(self, number: int, how: str) -> None:
        """Write how a run ended."""
        self._write(number, how)

    def count(self) -> int:
        """Return how many runs have begun."""
        return self._all.stat().st_size // PID_DIGITS

    def last_pid(self) -> int:
        """Return the process that has begun a run last."""
        return int(self._all.read_bytes()[: self.count() * PID_DIGITS][-PID_DIGITS:])

    def runs(self, number: int) -> list[Run]:
        """Return the runs of a task. One process makes one run of a task at a time."""
        path = self._folder / str(number)
        runs: list[Run] = []
        for line in path.read_text().splitlines() if path.exists() else ():
            pid, word = line.split()
            if word == "begin":
                runs.append(Run(int(pid), ""))
                continue
            (at,) = [n for n, run in enumerate(runs) if run == Run(int(pid), "")][-1:]
            runs[at] = Run(int(pid), word)
        return runs

    def _write(self, number: int, word: str) -> int:
        path = self._folder / str(number)
        self._append(path, f"{os.getpid()} {word}\n")
        return path.read_text().count("begin")

    @staticmethod
    def _append(path: Path, text: str) -> None:
        """In one write, which is whole or not there."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


class Trap:
    """A file. The process whose run takes it waits in that run until it is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self) -> None:
        """Let the next run take it."""
        (self._folder / "trap").touch()

    def catch(self, wait: Callable[[Callable[[], object]], None]) -> int:
        """Wait until a run has taken it. Return its process."""
        wait(lambda: any(self._folder.glob("taken-*")))
        (taken,) = self._folder.glob("taken-*")
        taken.unlink()
        return int(taken.name.removeprefix("taken-"))

    def enter(self) -> None:
        """Take it if it is there."""
        try:
            (self._folder / "trap").rename(self._folder / f"taken-{os.getpid()}")
        except FileNotFoundError:
            return
        threading.Event().wait()


class Limit:
    """A file: how many runs may start. On a busy machine, all would have ended before the campaign strikes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "limit"

    def raise_to(self, runs: int) -> None:
        """Let more runs start."""
        new = self._path.with_suffix(".new")
        new.write_text(str(runs))
        new.rename(self._path)

    def allows(self, runs: int) -> bool:
        """Return whether one more may start after this number."""
        return runs < int(self._path.read_text())


def process_retries(url: str, log: RunLog, trap: Trap, limit: Limit, done: Path, say: Say) -> None:
    """Run the processor until all tasks have ended."""

    def callback(task: dict[str, int]) -> dict[str, Any]:
        number = task["number"]
        until_done(lambda: limit.allows(log.count()))
        runs = log.begin(number)
        trap.enter()
        time.sleep(RUN_SECONDS)  # so that kills find it at work
        has_failed = runs <= task["failures"]
        log.end(number, "failed" if has_failed else "ok")
        if has_failed and number % 2:
            raise ConnectionError("down")
        return {"status": "failed" if has_failed else "completed"}

    with connect(url, durability="relaxed") as broker, DeadLetterQueue(broker) as dlq:
        dlq.start_retry_processor(callback)
        until_done(done.exists, look_seconds=0.05)


def until_done(condition: Callable[[], object], look_seconds: float = 0.005, processors: Iterable[int] = ()) -> None:
    """Wait for as long as the test may take, and these processes run."""
    while not condition():
        for pid in processors:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            assert ended is None, f"processor {pid} ended: {ended}"
        time.sleep(look_seconds)


def run_campaign(url: str, folder: Path) -> tuple[RunLog, set[int]]:
    """Capture tasks, let processors retry them, and kill these again and again. Return also who was killed.

    Every other kill strikes in the middle of a run, the others anywhere.
    """
    log, trap, limit, done = RunLog(folder), Trap(folder), Limit(folder), folder / "done"
    draw, killed, strikes = random.Random(0), set[int](), [n * RETRIES // (KILLS + 2) for n in range(1, KILLS + 1)]
    limit.raise_to(strikes[0])
    with connect(url, durability="relaxed") as broker:
        broker.create_queue(QUEUE, **{**QUEUE_SETTINGS, "lease_timeout": LEASE_SECONDS})
        dlq = DeadLetterQueue(broker)
        for number in range(TASKS):
            task = {"number": number, "failures": FAILURES[number % len(FAILURES)]}
            dlq.enqueue(f"task-{number}", task, "down", "immediate", MAX_RETRIES)
    start = partial(fork, partial(process_retries, url, log, trap, limit, done))
    processors = dict(start() for _ in range(PROCESSORS))
    wait = partial(until_done, processors=processors)
    for kill, (runs, next_runs) in enumerate(zip(strikes, [*strikes[1:], 10**9], strict=True)):
        wait(lambda runs=runs: log.count() >= runs)  # type: ignore[misc]
        if kill % 2:
            trap.set()
        limit.raise_to(next_runs)
        if kill % 2:
            pid = trap.catch(wait)
        else:
            wait(lambda: log.last_pid() in processors)
            pid = log.last_pid()
            time.sleep(draw.uniform(0, 2 * RUN_SECONDS))
        os.kill(pid, signal.SIGKILL)
        assert join(pid, processors.pop(pid)).killed, "a processor ended by itself"
        killed.add(pid)
        pid, reader = start()
        processors[pid] = reader
    with connect(url, durability="relaxed") as broker:
        wait(lambda: not any(_unfinished(broker)), look_seconds=0.1)  # leases of the killed run out first
    done.touch()
    assert [join(*processor).code for processor in processors.items()] == [0] * PROCESSORS
    return log, killed


def _unfinished(broker: Broker) -> tuple[int, int, int]:
    stats = broker.stats(QUEUE)
    return stats.pending, stats.failed, stats.active


def check_task(task: FailedTask, attempts: int, losses: int, runs: list[Run], killed: Iterable[int]) -> None:
    """What the store says of a task that has ended is what its runs say. Raises Broken."""
    kills = len({run.pid for run in runs} & set(killed))
    ends = Counter(run.end for run in runs)
    if task.status is DeadLetterStatus.COMPLETED:
        if not ends["ok"]:
            raise Broken(f"{task.task_id} is completed, and no run of it succeeded: {runs}")
    elif task.status is DeadLetterStatus.EXHAUSTED:
        if task.retry_count < task.max_retries and losses < QUEUE_SETTINGS["max_losses"]:
            raise Broken(f"{task.task_id} is exhausted after {task.retry_count} retries and {losses} losses")
    else:
        raise Broken(f"{task.task_id} is {task.status}")
    if any(not run.end and run.pid not in killed for run in runs):
        raise Broken(f"a run of {task.task_id} has no end, and its process was not killed: {runs}")
    if len(runs) > task.max_retries + kills:
        raise Broken(f"{task.task_id} ran {len(runs)} times, with {task.max_retries} retries and {kills} kills")
    if not ends["failed"] - kills <= task.retry_count <= ends["failed"]:
        raise Broken(f"{task.task_id} counts {task.retry_count} failed retries, and {ends['failed']} runs failed")
    if not len(runs) <= attempts <= len(runs) + losses:
        raise Broken(f"{task.task_id} counts {attempts} attempts and {losses} losses, and ran {len(runs)} times")


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
@pytest.mark.timeout(3600 if THOROUGH else 300)
def test_every_task_ends_and_every_run_is_accounted_for(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, record_property: Report
) -> None:
    path = tmp_path / "calls.db"
    url = f"sqlite:///{path}" if store == "sqlite" else request.getfixturevalue(f"{store}_url")
    (tmp_path / "log").mkdir()
    log, killed = run_campaign(url, tmp_path / "log")
    with connect(url, maintenance=False) as broker:
        tasks = check_campaign(broker, log, killed)
    places(path if store == "sqlite" else url)
    interrupted = sum(not run.end for number in range(TASKS) for run in log.runs(number))
    report = f"{log.count()} retries of {len(tasks)} tasks, {len(killed)} kills, {interrupted} runs interrupted"
    record_property("kills", report)
    print(report)
    assert len(killed) == KILLS
    assert interrupted >= KILLS // 2, "a campaign that was hardly disturbed proves nothing"


def check_campaign(broker: Broker, log: RunLog, killed: set[int]) -> list[FailedTask]:
    """Every task is there once, each is what its runs say, and the statistics are a recount. Raises Broken."""
    dlq = DeadLetterQueue(broker)
    tasks = [task for status in DeadLetterStatus for task in all_tasks(dlq, status)]
    if sorted(task.task_id for task in tasks) != sorted(f"task-{number}" for number in range(TASKS)):
        raise Broken(f"{TASKS} tasks were captured, and there are {len(tasks)}")
    for task in tasks:
        counters = broker.get(task.item_id).counters
        check_task(task, counters.attempts, counters.losses, log.runs(int(task.task_id[5:])), killed)
    statistics = dlq.get_statistics()
    statuses = Counter(task.status for task in tasks)
    recount = {
        "enqueued_total": TASKS,
        "retry_success": statuses[DeadLetterStatus.COMPLETED],
        "retry_failed": sum(task.retry_count for task in tasks),
        "exhausted": statuses[DeadLetterStatus.EXHAUSTED],
        "manually_retried": 0,
        "archived": 0,
    }
    breakdown = {str(status): statuses[status] for status in DeadLetterStatus}
    if (statistics["lifetime_stats"], statistics["status_breakdown"]) != (recount, breakdown):
        raise Broken(f"the statistics say {statistics}, and a recount {recount} and {breakdown}")
    return tasks


def all_tasks(dlq: DeadLetterQueue, status: DeadLetterStatus) -> Iterable[FailedTask]:
    cursor = None
    while True:
        page = dlq.list_tasks(status, limit=1000, cursor=cursor)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return
