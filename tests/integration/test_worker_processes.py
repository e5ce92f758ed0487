"""Handlers in processes: what one of them does to its process costs nobody else, and nothing is done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sizes import THOROUGH
from tests.until import until

from redrive import Broker, Failure, Status, connect
from redrive.broker.worker_session import Completed, Failed, Lost, Outcome, Returned
from redrive.errors import InvalidInput
from redrive.model.classify import ErrorClass
from redrive.model.limits import MIB
from redrive.task.app import App
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.worker import child_pool
from redrive.worker.app_loader import load_app
from redrive.worker.child_pool import REPORT_SECONDS
from redrive.worker.execution import HandlerSettings
from redrive.worker.in_flight import InFlightLog
from redrive.worker.process_runner import ProcessRunner
from redrive.worker.runner import Job
from redrive.worker.worker import Worker

LIMITED = """
import time
from redrive import App
from redrive.worker.execution import TimeLimitExceeded

app = App("{url}")
jobs = app.queue("jobs", retry={{"attempts": 3, "cooldown": "1h"}}, max_losses=1)
ruled = app.queue("ruled", error_rules=[{{"error_class": "resource", "type": "TimeLimitExceeded"}}])

@jobs.task(time_limit="100ms")
def retried() -> None:
    time.sleep(600)

@jobs.task(time_limit="100ms", final_errors=[TimeLimitExceeded])
def final() -> None:
    time.sleep(600)

@ruled.task(time_limit="100ms")
def by_rule() -> None:
    time.sleep(600)
"""
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no processes to fork here")

PROGRAM = """
import ctypes, os, signal, subprocess, sys, time
from redrive.task.app import App
from redrive.task.context import Context

app = App()
jobs = app.queue("jobs")

@jobs.task
def whoami() -> list[int]:
    return [os.getpid(), os.getppid(), os.getpgid(0)]

@jobs.task
async def whoami_async() -> int:
    return os.getpid()

@jobs.task
def echo(value: str) -> str:
    return value

@jobs.task
def fail() -> None:
    raise ValueError("no")

@jobs.task
def leave(code: int) -> None:
    os._exit(code)

@jobs.task
def kill(number: int) -> None:
    os.kill(os.getpid(), number)

@jobs.task
def crash() -> None:
    ctypes.string_at(0)

def report(path: str, pid: int) -> None:
    with open(f"{path}.{pid}.written", "w") as file:  # renamed, so that a test never reads an empty one
        file.write(str(pid))
    os.replace(file.name, path + ".begun")

@jobs.task
def wait(path: str) -> str:
    report(path, os.getpid())
    while not os.path.exists(path):
        time.sleep(0.005)
    return "done"

@jobs.task
def wait_for_stop(path: str, context: Context) -> str:
    open(path + ".begun", "w").close()
    while not context.stopping:
        time.sleep(0.005)
    return "stopped"

@jobs.task
def start_another(path: str) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    report(path, other.pid)
    time.sleep(600)

@jobs.task
def take_memory(size: int) -> int:
    return len(bytearray(size))

@jobs.task
def return_text(size: int) -> str:
    return "x" * size

@jobs.task
def encode_text(size: int) -> None:
    echo.item("x" * size)

@jobs.task
def kill_the_zygote() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)

@jobs.task
def write_rubbish() -> None:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"rubbish" * 100)
        except OSError:
            pass
    time.sleep(600)

@jobs.task
def close_everything() -> None:
    os.closerange(3, 64)
    time.sleep(600)

@jobs.task
def leave_someone_behind() -> None:
    if os.fork() == 0:
        os.setsid()
        time.sleep(3)
        os._exit(0)
    os._exit(5)

@jobs.task
def copy_itself() -> str:
    return "the copy" if os.fork() == 0 else "the first"

@jobs.task
def die_later(path: str) -> None:
    import threading
    def die():
        while not os.path.exists(path):
            time.sleep(0.001)
        os._exit(7)
    threading.Thread(target=die).start()
"""


class Ends:
    """Hears how jobs ended."""

    def __init__(self) -> None:
        self._heard: list[tuple[Job, Outcome, float]] = []
        self._changed = threading.Condition()

    def __call__(self, job: Job, end: Outcome) -> None:
        with self._changed:
            self._heard.append((job, end, time.monotonic()))
            self._changed.notify_all()

    def of(self, *jobs: Job) -> list[Outcome]:
        """How these ended, once they have."""

        def ended() -> dict[Job, Outcome]:
            return {job: end for job, end, _ in self._heard}

        with self._changed:
            assert self._changed.wait_for(lambda: ended().keys() >= set(jobs), PATIENCE_SECONDS), self._heard
            return [ended()[job] for job in jobs]

    def at(self, job: Job) -> float:
        return next(at for each, _, at in self._heard if each is job)

    def __len__(self) -> int:
        return len(self._heard)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"program_{os.getpid()}_{time.monotonic_ns()}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("REDRIVE_URL", f"sqlite:///{tmp_path}/jobs.db")
    yield f"{name}:app"
    sys.modules.pop(name, None)


@pytest.fixture
def app(program: str) -> App:
    return load_app(program)


@pytest.fixture
def broker(app: App) -> Iterator[Broker]:
    with connect("memory://") as broker:
        app.create_queues(broker)
        yield broker


@pytest.fixture
def ends() -> Ends:
    return Ends()


Start = Callable[..., ProcessRunner]


@pytest.fixture
def start(program: str, ends: Ends) -> Iterator[Start]:
    runners: list[ProcessRunner] = []

    def make(processes: int = 1, **options: Any) -> ProcessRunner:
        runner = ProcessRunner(program, processes, **options)
        runners.append(runner)
        runner.start(ends)
        return runner

    yield make
    for runner in runners:
        runner.close(jobs_too=True)


Make = Callable[..., Job]


@pytest.fixture
def job(app: App, broker: Broker) -> Make:
    def make(name: str, *args: Any, **kwargs: Any) -> Job:
        item = app.tasks[name].item(*args, **kwargs)
        broker.put_many(item.queue, [item.item])
        return Job(broker.lease(item.queue, worker="w")[0], app.tasks[name], HandlerSettings(keeps_completed=True))

    return make


def value(end: Outcome) -> Any:
    assert isinstance(end, Completed), end
    assert end.result is not None
    return end.result.value


def failure(end: Outcome) -> Failure:
    assert isinstance(end, Lost | Failed), end
    assert end.failure is not None
    return end.failure


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it went before the file was opened, or before it was read
        return False


def test_items_run_in_other_processes_each_in_a_group_of_its_own(start: Start, job: Make, ends: Ends) -> None:
    jobs = [job("whoami") for _ in range(20)]
    start(2).submit(jobs)
    told = [value(end) for end in ends.of(*jobs)]
    pids = {pid for pid, _, _ in told}
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    assert all(pid == group for pid, _, group in told)
    assert len({parent for _, parent, _ in told}) == 1


def test_coroutine_functions_run_too(start: Start, job: Make, ends: Ends) -> None:
    one = job("whoami_async")
    start().submit([one])
    assert value(ends.of(one)[0]) != os.getpid()


def test_failure_is_told_as_in_a_thread(start: Start, job: Make, ends: Ends) -> None:
    one, two = job("fail"), job("echo", "x")
    start().submit([one, two])
    ended, after = ends.of(one, two)
    assert isinstance(ended, Failed)
    assert ended.failure.type == "ValueError"
    assert "raise ValueError" in (ended.failure.traceback or "")
    assert value(after) == "x"


def test_large_payloads_pass_both_ways(start: Start, job: Make, ends: Ends) -> None:
    large = "ü" * (400 * 1024)
    jobs = [job("echo", large + str(number)) for number in range(6)]
    start(2).submit(jobs)
    assert [value(end) for end in ends.of(*jobs)] == [large + str(number) for number in range(6)]


@pytest.mark.parametrize(
    ("name", "argument", "killer", "code"),
    [
        ("leave", 3, None, 3),
        ("leave", 0, None, 0),
        ("kill", signal.SIGKILL, "SIGKILL", None),
        ("kill", signal.SIGABRT, "SIGABRT", None),
        ("crash", None, "SIGSEGV", None),
    ],
)
def test_item_that_kills_its_process_is_lost_with_what_is_known(
    start: Start, job: Make, ends: Ends, name: str, argument: int | None, killer: str | None, code: int | None
) -> None:
    one = job(name) if argument is None else job(name, argument)
    before, after = job("echo", "before"), job("echo", "after")
    start().submit([before, one, after])
    assert [value(end) for end in ends.of(before, after)] == ["before", "after"]
    lost = ends.of(one)[0]
    assert isinstance(lost, Lost)
    told = failure(lost)
    assert (told.type, told.error_class) == ("WorkerLost", ErrorClass.POISON)
    assert (told.signal, told.exit_code) == (killer, code)
    assert told.peak_memory is not None
    assert MIB < told.peak_memory < 10_000 * MIB
    assert told.duration is not None
    assert 0 < told.duration < PATIENCE_SECONDS * 1_000_000
    assert told.worker == "w"
    assert len(ends) == 3


def test_death_costs_its_slot_little(start: Start, job: Make, ends: Ends) -> None:
    """50 ms of one slot on a quiet machine, the median of several; in any case it does not wait for the report."""
    costs: list[float] = []
    runner = start(1)
    warm = job("echo", "warm")
    runner.submit([warm])
    ends.of(warm)
    for _ in range(9):
        killer, next_one = job("leave", 1), job("echo", "next")
        runner.submit([killer, next_one])
        began = time.monotonic()
        ends.of(killer, next_one)
        costs.append(ends.at(next_one) - began)
    assert sorted(costs)[4] < (0.25 if THOROUGH else REPORT_SECONDS), costs


def test_neighbours_go_on(start: Start, job: Make, ends: Ends, tmp_path: Path) -> None:
    waits = [job("wait", str(tmp_path / "go")) for _ in range(2)]
    killers = [job("kill", signal.SIGKILL) for _ in range(5)]
    runner = start(3)
    runner.submit([*waits, *killers])
    assert all(isinstance(end, Lost) for end in ends.of(*killers))
    until(lambda: set(runner.running()) == set(waits))
    (tmp_path / "go").touch()
    assert [value(end) for end in ends.of(*waits)] == ["done", "done"]


def test_item_that_runs_too_long_is_killed_with_all_that_it_started(
    start: Start, job: Make, ends: Ends, tmp_path: Path
) -> None:
    one = job("start_another", str(tmp_path / "x"))
    runner = start()
    runner.submit([one])
    other = begun(tmp_path / "x")
    for _ in range(3):  # whoever watches the time says so again and again
        runner.interrupt(one, Failure("TimeLimitExceeded", "it ran for longer than the time limit of its task"))
    end = ends.of(one)[0]
    assert isinstance(end, Failed)
    assert "longer than the time limit" in end.failure.text
    assert end.failure.peak_memory
    until(lambda: not is_alive(other))
    after = job("echo", "after")
    runner.submit([after])
    assert value(ends.of(after)[0]) == "after"
    assert len(ends) == 2


def test_time_limit_in_a_process_is_a_failure_that_is_retried_as_the_queue_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "limited_app.py").write_text(LIMITED.format(url=f"sqlite:///{tmp_path / 'jobs.db'}"))
    monkeypatch.syspath_prepend(tmp_path)
    app = load_app("limited_app:app")
    with app:
        app.create_queues(app.broker)
        ids = {name: app.tasks[name].put().id for name in ("retried", "final", "by_rule")}
        Worker(app, processes=2, spec="limited_app:app").run(until_idle=True)
        for name, (status, failures) in {"retried": (Status.FAILED, 1), "final": (Status.DEAD, 1)}.items():
            item = app.broker.get(ids[name])
            assert (item.status, item.counters.failures, item.counters.losses) == (status, failures, 0)
            assert item.last_failure is not None
            assert item.last_failure.type.endswith("TimeLimitExceeded")
            assert item.last_failure.error_class is not ErrorClass.POISON
            assert item.last_failure.host
            assert item.last_failure.duration
        ruled = app.broker.get(ids["by_rule"])
        assert ruled.last_failure is not None
        assert ruled.last_failure.error_class is ErrorClass.RESOURCE


def test_memory_beyond_the_limit_is_a_failure_of_the_handler(start: Start, job: Make, ends: Ends) -> None:
    one, two = job("take_memory", 3_000 * MIB), job("take_memory", MIB)
    start(memory_limit=1_500 * MIB).submit([one, two])
    ended, after = ends.of(one, two)
    assert isinstance(ended, Failed)
    assert ended.failure.type == "MemoryError"
    assert value(after) == MIB


@pytest.mark.parametrize("task", ["return_text", "encode_text"])
def test_value_that_needs_more_memory_to_encode_than_the_limit_is_a_failure(
    start: Start, job: Make, ends: Ends, task: str
) -> None:
    large, after = job(task, 240 * MIB), job("take_memory", MIB)
    start(memory_limit=600 * MIB).submit([large, after])
    ended, good = ends.of(large, after)
    assert isinstance(ended, Failed)
    assert ended.failure.type == "MemoryError"
    assert value(good) == MIB


def test_child_is_replaced_after_as_many_items_as_it_may_have(start: Start, job: Make, ends: Ends) -> None:
    jobs = [job("whoami") for _ in range(6)]
    start(1, max_items_per_child=2).submit(jobs)
    pids = [value(end)[0] for end in ends.of(*jobs)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]


def test_death_of_an_idle_child_costs_nothing(start: Start, job: Make, ends: Ends, tmp_path: Path) -> None:
    runner = start()
    one, who = job("die_later", str(tmp_path / "die")), job("whoami")
    runner.submit([one])
    ends.of(one)
    runner.submit([who])
    pid = value(ends.of(who)[0])[0]
    (tmp_path / "die").touch()
    until(lambda: not is_alive(pid))
    after = job("whoami")
    runner.submit([after])
    assert value(ends.of(after)[0])[0] != pid
    assert len(ends) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="only there it is known whether a child has read what it was sent")
def test_item_that_its_child_never_read_is_given_to_another(start: Start, job: Make, ends: Ends) -> None:
    runner = start()
    who = job("whoami")
    runner.submit([who])
    pid = value(ends.of(who)[0])[0]
    os.kill(pid, signal.SIGSTOP)
    one = job("whoami")
    runner.submit([one])
    until(lambda: list(runner.running()) == [one])
    os.kill(pid, signal.SIGKILL)
    assert value(ends.of(one)[0])[0] != pid


def test_death_is_noticed_though_something_holds_the_socket_open(start: Start, job: Make, ends: Ends) -> None:
    one, after = job("leave_someone_behind"), job("echo", "after")
    start().submit([one, after])
    assert failure(ends.of(one)[0]).exit_code == 5
    assert value(ends.of(after)[0]) == "after"


SLOW_IMPORT = """
import os, pathlib, signal, time
from redrive import App

begun = pathlib.Path({folder!r})
count = len(list(begun.iterdir()))
(begun / str(os.getpid())).touch()
while count < {held}:
    time.sleep(0.005)
app = App()
jobs = app.queue("jobs")
"""


@pytest.mark.parametrize(("kills", "starts"), [(2, True), (4, False)])
def test_zygote_that_is_killed_while_it_imports_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, starts: bool
) -> None:
    monkeypatch.setattr(child_pool, "ZYGOTE_PAUSES", (0.0, 0.0, 0.0, 0.0))
    (begun := tmp_path / "begun").mkdir()
    (tmp_path / "slow_import.py").write_text(SLOW_IMPORT.format(folder=str(begun), held=kills))
    monkeypatch.syspath_prepend(tmp_path)
    runner = ProcessRunner("slow_import:app", 1)
    problems: list[Exception] = []

    def start() -> None:
        try:
            runner.start(lambda job, end: None)
        except InvalidInput as error:
            problems.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    killed: set[str] = set()
    for _ in range(kills):
        until(lambda: {each.name for each in begun.iterdir()} - killed)
        (pid,) = {each.name for each in begun.iterdir()} - killed
        killed.add(pid)
        os.kill(int(pid), signal.SIGKILL)
    starting.join(PATIENCE_SECONDS)
    assert bool(problems) is not starts
    if starts:
        runner.close(jobs_too=True)


def test_death_of_the_zygote_costs_what_ran_and_no_more(start: Start, job: Make, ends: Ends) -> None:
    runner = start(2)
    for _ in range(3):
        killer = job("kill_the_zygote")
        others = [job("echo", str(number)) for number in range(10)]
        runner.submit([killer])
        assert isinstance(ends.of(killer)[0], Lost)
        runner.submit(others)
        assert [value(end) for end in ends.of(*others)] == [str(number) for number in range(10)]


@pytest.mark.parametrize("name", ["write_rubbish", "close_everything"])
def test_item_that_breaks_its_connection_is_lost(start: Start, job: Make, ends: Ends, name: str) -> None:
    one, after = job(name), job("echo", "after")
    start().submit([one, after])
    assert isinstance(ends.of(one)[0], Lost)
    assert value(ends.of(after)[0]) == "after"


def test_copy_of_the_process_that_a_handler_made_answers_for_nobody(start: Start, job: Make, ends: Ends) -> None:
    jobs = [job("copy_itself") if number % 2 == 0 else job("echo", str(number)) for number in range(20)]
    start().submit(jobs)
    told = [value(end) for end in ends.of(*jobs)]
    assert told == ["the first" if number % 2 == 0 else str(number) for number in range(20)]


def test_item_that_somebody_else_may_have_is_not_begun(start: Start, job: Make, ends: Ends, tmp_path: Path) -> None:
    first, lost, after = job("wait", str(tmp_path / "go")), job("echo", "lost"), job("echo", "after")
    start().submit([first, lost, after])
    lost.lease_lost = True
    (tmp_path / "go").touch()
    assert ends.of(lost) == [Returned()]
    assert lost.began_at is None
    assert value(ends.of(after)[0]) == "after"


def test_item_whose_lease_is_lost_is_killed_with_all_that_it_started_and_its_slot_is_free(
    start: Start, job: Make, ends: Ends, tmp_path: Path
) -> None:
    one, after = job("start_another", str(tmp_path / "one")), job("echo", "after")
    runner = start()
    runner.submit([one, after])
    started = begun(tmp_path / "one")
    one.lease_lost = True
    runner.revoke(one)
    assert ends.of(one) == [Returned()]
    assert value(ends.of(after)[0]) == "after"
    until(lambda: not is_alive(started))


def test_item_begins_when_its_earlier_run_has_ended_in_whatever_worker_that_is(
    start: Start, job: Make, ends: Ends, broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = job("wait", str(tmp_path / "go"))
    first, second = start(), start()
    first.submit([one])
    earlier = begun(tmp_path / "go")
    broker.retry(one.lease.id, force=True)
    again = Job(broker.lease("jobs")[0], one.task, one.handling)
    second.submit([again])
    until(lambda: "run_waits" in capfd.readouterr().err)
    assert begun(tmp_path / "go") == earlier
    first.revoke(one)
    until(lambda: begun(tmp_path / "go") != earlier)
    assert not is_alive(earlier)
    (tmp_path / "go").touch()
    assert value(ends.of(again)[0]) == "done"


def test_item_that_waits_for_its_earlier_run_goes_back_when_the_worker_stops(
    start: Start, job: Make, ends: Ends, broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = job("wait", str(tmp_path / "go"))
    start().submit([one])
    begun(tmp_path / "go")
    broker.retry(one.lease.id, force=True)
    again = Job(broker.lease("jobs")[0], one.task, one.handling)
    second = start()
    second.submit([again])
    until(lambda: "run_waits" in capfd.readouterr().err)
    second.close(jobs_too=False)
    assert ends.of(again) == [Returned()]


def begun(path: Path) -> int:
    """The process that reported that it has begun."""
    file = path.with_name(f"{path.name}.begun")
    until(file.exists)
    return int(file.read_text())


def test_signals_that_stop_a_service_do_not_reach_the_item(start: Start, job: Make, ends: Ends, tmp_path: Path) -> None:
    one = job("wait", str(tmp_path / "go"))
    start().submit([one])
    pid = begun(tmp_path / "go")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(pid, number)
    (tmp_path / "go").touch()
    assert value(ends.of(one)[0]) == "done"


def test_what_has_not_begun_can_be_taken_back(start: Start, job: Make, ends: Ends, tmp_path: Path) -> None:
    one, two, three = job("wait", str(tmp_path / "go")), job("echo", "2"), job("echo", "3")
    runner = start()
    runner.submit([one, two, three])
    until(lambda: (tmp_path / "go.begun").exists())
    assert runner.cancel_queued() == [two, three]
    assert list(runner.running()) == [one]
    (tmp_path / "go").touch()
    assert value(ends.of(one)[0]) == "done"
    assert runner.close(jobs_too=False) == []
    assert len(ends) == 1


def test_handler_is_told_that_the_worker_stops(start: Start, job: Make, ends: Ends, tmp_path: Path) -> None:
    stopping = threading.Event()
    one = job("wait_for_stop", str(tmp_path / "x"))
    runner = start(stopping=stopping.is_set)
    runner.submit([one])
    until(lambda: (tmp_path / "x.begun").exists())
    stopping.set()
    assert value(ends.of(one)[0]) == "stopped"


def test_what_runs_when_nobody_waits_any_longer_is_killed_and_given_back(
    start: Start, job: Make, ends: Ends, tmp_path: Path
) -> None:
    jobs = [job("wait", str(tmp_path / f"never{number}")) for number in range(2)]
    runner = start(2)
    runner.submit(jobs)
    pids = [begun(tmp_path / f"never{number}") for number in range(2)]
    assert set(runner.close(jobs_too=True)) == set(jobs)
    assert not any(is_alive(pid) for pid in pids)
    assert len(ends) == 0


def test_journal_has_what_runs(start: Start, job: Make, ends: Ends, tmp_path: Path) -> None:
    in_flight_log = InFlightLog.create(tmp_path / "journal", "w", 2)
    one = job("wait", str(tmp_path / "go"))
    start(2, in_flight_log=in_flight_log).submit([one])
    pid = begun(tmp_path / "go")
    assert [(each.token, each.label, each.pid) for each in in_flight_log.running()] == [(one.lease.token, "wait", pid)]
    (tmp_path / "go").touch()
    ends.of(one)
    assert in_flight_log.running() == []
    assert in_flight_log.ended == 1


def test_app_that_cannot_be_imported_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_program.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match="nothing_of_that_name"):
        ProcessRunner("broken_program:app", 1).start(Ends())
    with pytest.raises(InvalidInput, match="there is no module no_such_module"):
        ProcessRunner("no_such_module:app", 1).start(Ends())


_PARENT = """
import sys, threading
from redrive import connect
from redrive.worker.execution import HandlerSettings
from redrive.worker.app_loader import load_app
from redrive.worker.process_runner import ProcessRunner
from redrive.worker.runner import Job
from redrive.worker.worker import Worker
spec, path = sys.argv[1:]
app = load_app(spec)
broker = connect("memory://")
app.create_queues(broker)
item = app.tasks["wait"].item(path)
broker.put_many("jobs", [item.item])
runner = ProcessRunner(spec, 3)
runner.start(lambda job, end: None)
runner.submit([Job(broker.lease("jobs")[0], app.tasks["wait"], HandlerSettings())])
threading.Event().wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there the system ends children with their parents")
def test_children_die_with_the_worker(program: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, program, str(tmp_path / "never")], env=environment, cwd=tmp_path
    )
    try:
        busy = begun(tmp_path / "never")
        until(lambda: len(_descendants(parent.pid)) == 4)  # a zygote and three children
        children = _descendants(parent.pid)
        assert busy in children
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not any(is_alive(pid) for pid in children))


def _descendants(pid: int) -> set[int]:
    direct: set[int] = set()
    for thread in os.listdir(f"/proc/{pid}/task"):  # a child belongs to the thread that started it
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            direct |= {int(each) for each in file.read().split()}
    return direct | {each for child in direct for each in _descendants(child)}


def test_processes_are_refused_where_there_is_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(InvalidInput, match="needs a system that can fork"):
        ProcessRunner("program:app", 1)
