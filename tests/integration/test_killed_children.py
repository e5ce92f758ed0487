"""A child that has several items in flight and dies, at any point: the item that it had begun and not reported is
charged, every other one runs once, and none is lost."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.test_worker_processes import Ends, failure, is_alive, value
from tests.until import until

from redrive import Failure, connect
from redrive.broker.worker_session import Completed, Failed, Lost, Outcome, Returned
from redrive.model.limits import KIB
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.worker.app_loader import load_app
from redrive.worker.child_slot import MOST_FALSE_STARTS
from redrive.worker.execution import HandlerSettings
from redrive.worker.in_flight import InFlightLog
from redrive.worker.item_lock import ItemLock
from redrive.worker.process_runner import ProcessRunner
from redrive.worker.runner import Job

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no processes to fork here")

PROGRAM = """
import os, signal, socket, sys, time
from redrive.task.app import App
from redrive.worker.ipc import _LENGTH, _encoder

app = App()
jobs = app.queue("jobs")
NOTES, POINT, TIMES = os.environ["NOTES"], os.environ["POINT"], int(os.environ["TIMES"])
current = b""

def note(line):
    descriptor = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\\n".encode())
    os.close(descriptor)

@jobs.task
def run(number: int, size: int = 0) -> str:
    note(number)
    die_at("in the call")
    return "x" * size

@jobs.task
def victim(number: int) -> None:
    run(number)

@jobs.task
def wait(path: str) -> str:
    open(path + ".begun", "w").close()
    while not os.path.exists(path):
        time.sleep(0.005)
    return "done"

@jobs.task
def thief(number: int, count: int, path: str = "") -> None:
    note(number)
    for descriptor in range(3, 64):
        for _ in range(count):
            try:
                with socket.socket(fileno=os.dup(descriptor)) as found:
                    found.recv(65536, socket.MSG_DONTWAIT)
            except OSError:
                break
    if path:
        wait(path)

@jobs.task
def echo(value: str) -> str:
    return value

def die_at(point, how=lambda: os.kill(os.getpid(), signal.SIGKILL)):
    if POINT == point and b"victim" in current:
        for number in range(TIMES):
            try:
                os.close(os.open(f"{NOTES}.{number}", os.O_CREAT | os.O_EXCL))
                return how()
            except FileExistsError:
                pass

def rubbish():
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"rubbish" * 100)
        except OSError:
            pass
    time.sleep(600)

child = sys.modules["__main__"]
if hasattr(child, "run_child"):  # else this is the process of the test
    has_turn, execute_job, send = child._has_turn, child.execute_job, child._send

    def _has_turn(lock, lease, *args):
        global current
        current = lease.headers["task"].encode()
        die_at("before begun")
        return has_turn(lock, lease, *args)

    def _execute_job(*args):
        die_at("before the call")
        die_at("exit", lambda: os._exit(3))
        die_at("rubbish", rubbish)
        return execute_job(*args)

    def _send(channel, answer):
        die_at("before the report")
        data = _encoder.encode(answer)
        if POINT == "half a report" and b"victim" in current:
            channel._socket.send(_LENGTH.pack(len(data)) + data[: len(data) // 2])
            die_at("half a report")
        send(channel, answer)
        die_at("after the report")

    child._has_turn, child.execute_job, child._send = _has_turn, _execute_job, _send
"""
GIVEN = 8


class Children:
    """A runner with one child that is known to end items fast, and so is given many."""

    def __init__(self, folder: Path, name: str, processes: int) -> None:
        self.ends = Ends()
        self.log = InFlightLog.create(folder / "log", "w", processes)
        self._app = load_app(f"{name}:app")
        self._broker = connect("memory://")
        self._app.create_queues(self._broker)
        self._notes = folder / "notes"
        self.runner = ProcessRunner(f"{name}:app", processes, in_flight_log=self.log)
        self.runner.start(self.ends)
        until(lambda: len(self.log.pids()) == processes)
        warm = [self.job("echo", "warm") for _ in range(60)]
        self.runner.submit(warm)
        self.ends.of(*warm)
        self.before = len(self.ends)

    def job(self, name: str, *args: Any) -> Job:
        item = self._app.tasks[name].item(*args)
        self._broker.put_many("jobs", [item.item])
        lease = self._broker.lease("jobs", worker="w")[0]
        return Job(lease, self._app.tasks[name], HandlerSettings(keeps_completed=True))

    def give(self, jobs: Sequence[Job]) -> None:
        """Give all of them to the one child before it takes the first."""
        (pid,) = self.log.pids()
        os.kill(pid, signal.SIGSTOP)
        self.runner.submit(jobs)
        assert len(self.runner._pool.slots[0].jobs) == len(jobs)
        os.kill(pid, signal.SIGCONT)

    def runs(self) -> Counter[int]:
        """How often the handler of each item was called."""
        return Counter(map(int, self._notes.read_text().split()))

    def close(self) -> None:
        self.runner.close(jobs_too=True)
        self._broker.close()


Start = Callable[..., Children]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    name = f"program_{os.getpid()}_{time.monotonic_ns()}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    started: list[Children] = []

    def make(
        point: str = "", *, times: int = 1, processes: int = 1, stall: float = 600, silence: float | None = None
    ) -> Children:
        for where in ("process_runner", "child_pool"):
            monkeypatch.setattr(f"redrive.worker.{where}.STALL_SECONDS", stall)
        # Nothing depends on that, except that silence is noticed.
        monkeypatch.setattr("redrive.worker.process_runner.POLL_SECONDS", 600 if silence is None else 0.02)
        monkeypatch.setattr("redrive.worker.child_slot.SILENCE_SECONDS", silence or 600)
        for key, said in {"NOTES": tmp_path / "notes", "POINT": point, "TIMES": times}.items():
            monkeypatch.setenv(key, str(said))
        started.append(Children(tmp_path, name, processes))
        return started[-1]

    yield make
    for each in started:
        each.close()
    sys.modules.pop(name, None)


def run_with_a_victim(children: Children) -> tuple[Outcome, list[Outcome], Counter[int]]:
    """How the fourth of eight items ended, how the others did, and how often each was run."""
    jobs = [children.job("victim" if number == 3 else "run", number) for number in range(GIVEN)]
    children.give(jobs)
    ended = children.ends.of(*jobs)
    until(lambda: len(children.ends) == children.before + GIVEN)
    return ended[3], [*ended[:3], *ended[4:]], children.runs()


@pytest.mark.parametrize(
    ("point", "is_charged", "runs"),
    [
        ("before begun", False, 1),
        ("before the call", True, 0),
        ("in the call", True, 1),
        ("before the report", True, 1),
        ("half a report", True, 1),
        ("after the report", False, 1),
        ("exit", True, 0),
        ("rubbish", True, 0),
    ],
)
def test_only_what_was_begun_and_not_reported_is_charged(start: Start, point: str, is_charged: bool, runs: int) -> None:
    children = start(point)
    ended, others, ran = run_with_a_victim(children)
    assert isinstance(ended, Lost if is_charged else Completed)
    assert all(isinstance(end, Completed) for end in others)
    assert ran == Counter({number: 1 for number in range(GIVEN)} | {3: runs})
    if point == "exit":
        assert failure(ended).exit_code == 3
    if point == "rubbish":
        assert "wrote into the socket" in failure(ended).text
        assert InFlightLog(children.log.path).worker == "w"  # what it wrote is not in there


def test_item_that_no_child_lives_to_begin_is_charged_in_the_end(start: Start) -> None:
    children = start("before begun", times=600)
    ended, others, ran = run_with_a_victim(children)
    assert isinstance(ended, Lost)
    assert all(isinstance(end, Completed) for end in others)
    assert 3 not in ran
    assert len(list(children.log.path.parent.glob("notes.*"))) == MOST_FALSE_STARTS


def test_child_that_is_killed_from_outside_costs_what_it_had_begun(start: Start, tmp_path: Path) -> None:
    children = start()
    slow, others = children.job("wait", str(tmp_path / "never")), [children.job("run", number) for number in range(6)]
    children.give([slow, *others])
    until((tmp_path / "never.begun").exists)
    os.kill(children.log.pids()[0], signal.SIGKILL)
    assert isinstance(children.ends.of(slow)[0], Lost)
    assert all(isinstance(end, Completed) for end in children.ends.of(*others))
    assert children.runs() == Counter(range(6))


def test_what_waits_behind_a_slow_item_is_done_by_others(start: Start, tmp_path: Path) -> None:
    children = start(processes=2, stall=0.01)
    slow, others = children.job("wait", str(tmp_path / "go")), [children.job("run", number) for number in range(20)]
    children.runner.submit([slow, *others])
    assert all(isinstance(end, Completed) for end in children.ends.of(*others))
    assert list(children.runner.running()) == [slow]
    (tmp_path / "go").touch()
    assert value(children.ends.of(slow)[0]) == "done"
    assert children.runs() == Counter(range(20))
    assert all(job.began_at is not None and 0 < job.duration < PATIENCE_SECONDS for job in (slow, *others))


def test_slow_items_are_given_one_at_a_time(start: Start, tmp_path: Path) -> None:
    children = start(stall=0.01)
    jobs = [children.job("wait", str(tmp_path / f"go{number}")) for number in range(4)]
    children.runner.submit(jobs)
    given = children.runner._pool.slots[0].jobs
    until(lambda: len(given) == 1)
    for number, job in enumerate(jobs):
        until((tmp_path / f"go{number}.begun").exists)
        assert len(given) == 1
        (tmp_path / f"go{number}").touch()
        assert value(children.ends.of(job)[0]) == "done"


def test_what_a_child_has_not_begun_can_be_taken_back(start: Start, tmp_path: Path) -> None:
    children = start()
    slow, others = children.job("wait", str(tmp_path / "go")), [children.job("run", number) for number in range(6)]
    children.give([slow, *others])
    until((tmp_path / "go.begun").exists)
    assert children.runner.cancel_queued() == others
    assert list(children.runner.running()) == [slow]
    assert [job.began_at for job in others] == [None] * 6
    (tmp_path / "go").touch()
    assert value(children.ends.of(slow)[0]) == "done"
    assert children.runner.close(jobs_too=False) == []
    assert len(children.ends) == children.before + 1


def test_stop_gives_back_what_has_not_begun(start: Start, tmp_path: Path) -> None:
    children = start()
    slow, others = children.job("wait", str(tmp_path / "go")), [children.job("run", number) for number in range(6)]
    children.give([slow, *others])
    until((tmp_path / "go.begun").exists)
    (pid,) = children.log.pids()
    assert set(children.runner.close(jobs_too=True)) == {slow, *others}
    assert not is_alive(pid)
    assert len(children.ends) == children.before


def test_item_that_runs_too_long_takes_nothing_along(start: Start, tmp_path: Path) -> None:
    children = start()
    slow, others = children.job("wait", str(tmp_path / "never")), [children.job("run", number) for number in range(6)]
    children.give([slow, *others])
    until((tmp_path / "never.begun").exists)
    children.runner.interrupt(slow, Failure("TimeLimitExceeded", "it ran for longer than the time limit of its task"))
    (end,) = children.ends.of(slow)
    assert isinstance(end, Failed)
    assert "longer than the time limit" in end.failure.text
    assert all(isinstance(end, Completed) for end in children.ends.of(*others))
    assert children.runs() == Counter(range(6))


def test_item_that_waits_in_a_child_and_lost_its_lease_is_not_run(start: Start, tmp_path: Path) -> None:
    children = start()
    slow, others = children.job("wait", str(tmp_path / "go")), [children.job("run", number) for number in range(6)]
    children.give([slow, *others])
    until((tmp_path / "go.begun").exists)
    others[2].lease_lost = True
    children.runner.revoke(others[2])
    assert children.ends.of(others[2]) == [Returned()]
    (tmp_path / "go").touch()
    assert value(children.ends.of(slow)[0]) == "done"
    children.ends.of(*others)
    assert children.runs() == Counter({0, 1, 3, 4, 5})


def test_item_that_a_handler_takes_from_the_queue_of_its_child_is_given_again(start: Start) -> None:
    children = start()
    jobs = [children.job("thief", 0, 2), *(children.job("run", number) for number in range(1, 8))]
    children.give(jobs)
    assert all(isinstance(end, Completed) for end in children.ends.of(*jobs))
    assert children.runs() == Counter(range(8))
    assert len(children.log.pids()) == 1


def test_last_item_that_a_handler_takes_from_the_queue_is_given_to_another_child(start: Start) -> None:
    children = start(silence=0.2)
    jobs = [children.job("run", 0), children.job("thief", 1, 9), children.job("run", 2), children.job("run", 3)]
    (pid,) = children.log.pids()
    children.give(jobs)
    assert all(isinstance(end, Completed) for end in children.ends.of(*jobs))
    assert children.runs() == Counter(range(4))
    assert children.log.pids() != [pid]


def test_item_that_is_taken_by_a_handler_that_hangs_is_given_to_another_child(start: Start, tmp_path: Path) -> None:
    children = start(processes=2, silence=0.2, stall=0.01)
    slots = children.runner._pool.slots
    jobs = [children.job("thief", 0, 9, str(tmp_path / "go")), children.job("run", 1), children.job("run", 2)]
    os.kill(slots[0].pid, signal.SIGSTOP)
    with children.runner._lock:
        assert all(slots[0].give(job) for job in jobs)
        os.kill(slots[0].pid, signal.SIGCONT)
        until((tmp_path / "go.begun").exists)
    children.runner._ring()
    assert all(isinstance(end, Completed) for end in children.ends.of(*jobs[1:]))
    assert list(children.runner.running()) == [jobs[0]]
    (tmp_path / "go").touch()
    assert isinstance(children.ends.of(jobs[0])[0], Completed)
    assert children.runs() == Counter(range(3))


def test_child_that_waits_for_an_earlier_run_of_its_item_is_not_replaced(start: Start) -> None:
    children = start(silence=0.05)
    jobs = [children.job("run", 0), children.job("run", 1)]
    lock, (pid,) = ItemLock(jobs[0].lease.id), children.log.pids()
    assert lock.take()
    children.give(jobs)
    time.sleep(0.5)
    lock.release()
    assert all(isinstance(end, Completed) for end in children.ends.of(*jobs))
    assert children.runs() == Counter(range(2))
    assert children.log.pids() == [pid]


def test_full_pipes_in_both_directions_do_not_deadlock(start: Start) -> None:
    children = start(processes=2)
    sizes = [100, 60 * KIB, 900 * KIB, 40 * KIB]
    texts = [chr(97 + number % 26) * sizes[number % 4] for number in range(40)]
    small = [children.job("run", number, 60 * KIB) for number in range(40)]
    large = [children.job("echo", text) for text in texts]
    with children.runner._lock:  # nobody reads what children write, until they wait for that
        children.runner._waiting.extend([*small, *large])
        children.runner._hand_out()
        until(lambda: all(unread(slot.channel) > 100 * KIB for slot in children.runner._pool.slots))
        children.runner._hand_out()  # and what goes to them is full too
    assert all(value(end) == "x" * 60 * KIB for end in children.ends.of(*small))
    assert [value(end) for end in children.ends.of(*large)] == texts
    assert children.runs() == Counter(range(40))


def test_nothing_is_given_behind_a_large_item(start: Start) -> None:
    children = start()
    jobs = [children.job("echo", text) for text in ("x" * 100 * KIB, "next")]
    (pid,) = children.log.pids()
    os.kill(pid, signal.SIGSTOP)
    children.runner.submit(jobs)
    assert list(children.runner._pool.slots[0].jobs) == [jobs[0].lease.token]
    os.kill(pid, signal.SIGCONT)
    assert [value(end) for end in children.ends.of(*jobs)] == ["x" * 100 * KIB, "next"]


def test_suspect_has_a_child_for_itself(start: Start) -> None:
    children = start()
    jobs = [children.job("run", number) for number in range(4)]
    jobs[1].lease = msgspec.structs.replace(jobs[1].lease, losses=1)
    (pid,) = children.log.pids()
    os.kill(pid, signal.SIGSTOP)
    children.runner.submit(jobs)
    assert list(children.runner._pool.slots[0].jobs) == [jobs[0].lease.token]
    children.runner.cancel_queued()
    children.runner.submit(jobs[1:])
    assert list(children.runner._pool.slots[0].jobs) == [jobs[1].lease.token]
    os.kill(pid, signal.SIGCONT)
    assert all(isinstance(end, Completed) for end in children.ends.of(*jobs[1:]))
    assert children.log.pids() != [pid]


def unread(channel: Any) -> int:
    """Bytes that a child wrote, and nobody has read."""
    return int(struct.unpack("i", fcntl.ioctl(channel, termios.FIONREAD, bytes(4)))[0])
