"""`redrive work`: what happens to items when the worker is stopped, killed, silent, or restarted."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.until import until

from redrive import Broker, Item, Status, connect
from redrive.broker.worker_session import Lost, Returned, open_worker_session
from redrive.clock import Instant
from redrive.errors import InvalidInput, StoreError
from redrive.model.ids import Token
from redrive.model.item import Lease
from redrive.task.app import App
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.worker import supervisor, worker_process
from redrive.worker.app_loader import SourceWatcher, load_app
from redrive.worker.crash_recovery import settle_orphans
from redrive.worker.in_flight import InFlightLog, WorkerExit
from redrive.worker.live_view import LiveView
from redrive.worker.process_exit import Exit
from redrive.worker.suspects import suspicion_of
from redrive.worker.worker_process import AppProgram

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no supervisor without fork")

PROGRAM = """
import os, time
from redrive.task.app import App
from redrive.task.context import Context

VERSION = "old"
app = App("sqlite:///jobs.db")
jobs = app.queue("jobs", keep_completed="1h", lease_timeout="1h", max_losses=2)

def begun(name):
    with open(name + ".begun", "a") as file:
        file.write(f"{os.getpid()}\\n")

@jobs.task
def wait(name: str) -> str:
    begun(name)
    while not os.path.exists(name):
        time.sleep(0.005)
    return "done"

@jobs.task
def wait_for_stop(context: Context, name: str) -> None:
    begun(name)
    while not context.stopping:
        time.sleep(0.005)
    begun(name)
    while not os.path.exists(name):
        time.sleep(0.005)

@jobs.task
def leave(code: int) -> None:
    os._exit(code)

@jobs.task
def version() -> str:
    return VERSION
"""


class Work:
    """A program with a task or two, its store, and `redrive work` on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"work_{os.getpid()}_{time.monotonic_ns()}"
        self.source = folder / f"{self.name}.py"
        self.source.write_text(PROGRAM)
        self.processes: list[subprocess.Popen[str]] = []
        self.broker = connect(f"sqlite:///{folder}/jobs.db", maintenance=False)
        self.broker.create_queue("jobs", keep_completed="1h", lease_timeout="1h", max_losses=2)

    def put(self, task: str, **arguments: Any) -> str:
        return self.broker.put("jobs", arguments, headers={"task": task}).id

    def start(self, *arguments: str, program: str | None = None) -> subprocess.Popen[str]:
        command = ["-m", "redrive", "work", f"{self.name}:app", *arguments] if program is None else ["-c", program]
        process = subprocess.Popen(
            [sys.executable, *command], cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.processes.append(process)
        return process

    def begun(self, name: str, times: int = 1) -> int:
        """The process in which a `wait` began for the so many-th time, once it has."""
        path = self.folder / f"{name}.begun"
        until(lambda: path.exists() and path.read_text().count("\n") >= times)
        return int(path.read_text().splitlines()[times - 1])

    def go(self, name: str) -> None:
        (self.folder / name).touch()

    def item(self, id: str, status: Status) -> Item:
        """The item, once it is that."""
        until(lambda: self.broker.get(id).status is status)
        return self.broker.get(id)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.broker.close()


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    work = Work(tmp_path)
    yield work
    for name in ("a", "b", "c"):
        work.go(name)  # whatever still waits ends
    work.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output


def charged(item: Item) -> tuple[int, int, int]:
    return item.counters.attempts, item.counters.failures, item.counters.losses


def test_works_until_there_is_nothing_to_do(work: Work) -> None:
    ids = [work.put("version") for _ in range(10)]
    code, output = ended(work.start("--until-idle"))
    assert code == 0, output
    assert all(work.broker.get(id).status is Status.COMPLETED for id in ids)


def test_stops_after_what_runs(work: Work) -> None:
    id = work.put("wait_for_stop", name="a")
    process = work.start()
    work.begun("a")
    process.send_signal(signal.SIGTERM)
    until(lambda: "stopping" in _so_far(process))
    work.begun("a", times=2)  # the word has come from the supervisor to the worker
    later = work.put("version")
    work.go("a")
    code, output = ended(process)
    assert code == 0, output
    assert charged(work.item(id, Status.COMPLETED)) == (1, 0, 0)
    assert work.broker.get(later).status is Status.PENDING


def _so_far(process: subprocess.Popen[str]) -> str:
    """What a process has written, line by line, without waiting for its end."""
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("options", [("--concurrency", "2"), ("--processes", "2")])
def test_second_signal_stops_at_once_and_charges_nothing(work: Work, options: tuple[str, ...]) -> None:
    ids = [work.put("wait", name="a"), work.put("wait", name="b")]
    process = work.start(*options)
    work.begun("a")
    work.begun("b")
    process.send_signal(signal.SIGTERM)
    until(lambda: "stopping" in _so_far(process))
    process.send_signal(signal.SIGTERM)  # the same word once more, as some send it to a process and to its group
    patience = time.monotonic() + supervisor.SECOND_SIGNAL_WINDOW_SECONDS
    until(lambda: time.monotonic() > patience)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, output = ended(process)
    assert code == 0, output
    for id in ids:
        item = work.item(id, Status.PENDING)
        assert charged(item) == (0, 0, 0)
        assert item.history[-1].note == "its worker was stopped while it ran"


@pytest.mark.parametrize("options", [("--concurrency", "2"), ("--processes", "2")])
def test_worker_that_is_killed_is_replaced_and_what_ran_is_charged(work: Work, options: tuple[str, ...]) -> None:
    ids = [work.put("wait", name="a"), work.put("wait", name="b")]
    process = work.start(*options)
    first = work.begun("a")
    work.begun("b")
    worker = first if options[0] == "--concurrency" else _parent(_parent(first))
    os.kill(worker, signal.SIGKILL)
    again = work.begun("a", times=2)
    assert again != first
    work.go("a")
    work.go("b")
    for id in ids:
        item = work.item(id, Status.COMPLETED)
        assert charged(item) == (2, 0, 1)
        told = item.last_failure
        assert told is not None
        assert (told.type, told.signal) == ("WorkerLost", "SIGKILL")
    assert not is_alive(worker)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("code", [0, 3, worker_process.EXIT_BAD_APP])
def test_item_that_ends_the_worker_dies_of_it(work: Work, code: int) -> None:
    killer = work.put("leave", code=code)
    process = work.start()
    item = work.item(killer, Status.DEAD)
    assert item.death is not None
    assert item.death.reason == "worker_lost"
    assert item.last_failure is not None
    assert item.last_failure.exit_code == code
    assert item.counters.losses == 2
    other = work.put("version")
    assert charged(work.item(other, Status.COMPLETED)) == (1, 0, 0)
    process.send_signal(signal.SIGTERM)
    worker_exit, output = ended(process)
    assert worker_exit == 0
    assert output.count(f"item_lost item={killer}") == 1, output
    assert output.count(f"item_dead item={killer}") == 1, output


def test_hang_up_starts_the_worker_anew(work: Work) -> None:
    id = work.put("wait", name="a")
    process = work.start()
    first = work.begun("a")
    process.send_signal(signal.SIGHUP)
    work.go("a")
    assert charged(work.item(id, Status.COMPLETED)) == (1, 0, 0)
    work.put("wait", name="b")
    assert work.begun("b") != first
    work.go("b")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


def test_worker_that_is_silent_is_killed(work: Work) -> None:
    id = work.put("wait", name="a")
    process = work.start("--watchdog-timeout", "6s")
    first = work.begun("a")
    until(lambda: work.broker.workers())  # it beats
    threading.Event().wait(1.0)  # at least once
    os.kill(first, signal.SIGSTOP)
    assert work.begun("a", times=2) != first
    work.go("a")
    item = work.item(id, Status.COMPLETED)
    assert item.counters.losses == 1
    assert item.last_failure is not None
    assert "no heartbeat for 6 s" in item.last_failure.text
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


_IMPATIENT = """
from redrive.telemetry import events
from redrive.worker.ipc import WorkerLaunch
from redrive.worker.supervisor import Supervisor
events.configure()
raise SystemExit(Supervisor(WorkerLaunch("{name}:app", shutdown_timeout=0.1), grace_seconds=0.2).run())
"""


def test_worker_that_does_not_stop_is_killed_and_what_ran_is_not_charged(work: Work) -> None:
    id = work.put("wait", name="a")
    process = work.start(program=_IMPATIENT.format(name=work.name))
    first = work.begun("a")
    os.kill(first, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    code, output = ended(process)
    assert code == 1, output
    item = work.item(id, Status.PENDING)
    assert charged(item) == (0, 0, 0)
    assert item.history[-1].note == "its worker was stopped while it ran"
    assert not is_alive(first)


def test_worker_stops_when_its_supervisor_is_gone(work: Work) -> None:
    id = work.put("wait", name="a")
    process = work.start()
    worker = work.begun("a")
    process.kill()
    work.go("a")
    assert charged(work.item(id, Status.COMPLETED)) == (1, 0, 0)
    until(lambda: not is_alive(worker))


def test_changed_source_is_loaded(work: Work) -> None:
    process = work.start("--reload")
    old = work.item(work.put("version"), Status.COMPLETED)
    assert old.result is not None
    assert old.result.value == "old"
    work.source.write_text("this is not Python")
    until(lambda: "cannot be imported" in _so_far(process))
    work.source.write_text(PROGRAM.replace('"old"', '"brand new"'))
    new = work.item(work.put("version"), Status.COMPLETED)
    assert new.result is not None
    assert new.result.value == "brand new"
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


@pytest.mark.parametrize(
    ("source", "spec", "told"),
    [
        ("", "nothing_of_that_name:app", "there is no module nothing_of_that_name"),
        ("", "nothing.of_that_name:app", r"there is no module nothing.of_that_name \(nothing is missing\)"),
        ("", "{name}:app", "module {name} has no app"),
        ("apps = 1", "{name}:app", r"has no app \(did you mean apps\?\)"),
        ("from redrive.task.app import App\njobs = App()", "{name}:app", "has no app; it has App jobs"),
        ("app = 1", "{name}:app", "is int, not an App"),
        ("", "{name}", "write module:attribute"),
        ("", "{name}.py:app", "is a file; name the module, as in {name}:app"),
        ("", "./folder/{name}.py:app", r"is a file; name the module, as in folder\.{name}:app"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, spec: str, told: str
) -> None:
    name = f"wrong_{time.monotonic_ns()}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match=told.format(name=name)):
        load_app(spec.format(name=name))


def test_what_a_module_needs_and_is_missing_is_not_taken_for_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy_program.py").write_text("import nothing_of_that_name")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        load_app("needy_program:app")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "redrive: module {name} has no app"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("from redrive.task.app import App\napp = App('memory://')", "redrive: {name}:app runs on memory://"),
        ("from redrive.task.app import App\napp = App('sqlite:///x.db')", "redrive: there is no queue to work on"),
    ],
)
def test_worker_that_cannot_begin_says_why_once_and_ends(work: Work, source: str, told: str) -> None:
    work.source.write_text(source)
    code, output = ended(work.start())
    assert code == 2, output
    assert output.count(told.format(name=work.name)) == 1, output


def test_store_that_cannot_be_opened_is_said_in_a_line_and_tried_again(work: Work) -> None:
    missing = work.folder / "later"
    process = work.start("--url", f"sqlite:///{missing}/jobs.db", "--until-idle")
    until(lambda: "store_not_opened" in _so_far(process))
    missing.mkdir()
    code, output = ended(process)
    assert code == 0, output
    assert "Traceback" not in output
    assert "orphans_not_settled" not in output


def test_version_is_told_without_importing_what_works(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['redrive', '--version']\n"
        "from redrive.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'rich', 'redrive.worker'} & set(sys.modules), 'too much'"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("redrive 0.")


# What a dead worker left.


@pytest.fixture
def broker() -> Iterator[Broker]:
    with connect("memory://", maintenance=False) as broker:
        broker.create_queue("jobs", max_losses=5, lease_timeout="1h")
        yield broker


@pytest.fixture
def in_flight_log(tmp_path: Path) -> InFlightLog:
    return InFlightLog.create(tmp_path / "journal", "gone", 8)


def test_what_ran_is_lost_and_what_was_only_held_is_given_back(broker: Broker, in_flight_log: InFlightLog) -> None:
    broker.put_many("jobs", range(6))
    leases = broker.lease("jobs", 4, worker="gone")
    other = broker.lease("jobs", 1, worker="other")[0]
    for slot, lease in enumerate(leases[:2]):
        in_flight_log.begin(slot, lease.token)
    in_flight_log.write_exit(
        WorkerExit(Exit(None, signal.SIGSEGV, 1 << 20, Instant(in_flight_log.running()[0].began_at + 1_500_000)))
    )
    left = settle_orphans(broker, in_flight_log)
    assert (left.lost, left.returned, left.refused) == (2, 2, 0)
    for lease in leases[:2]:
        item = broker.get(lease.id)
        assert (item.status, charged(item)) == (Status.PENDING, (1, 0, 1))
        assert item.last_failure is not None
        assert item.last_failure.signal == "SIGSEGV"
        assert item.last_failure.duration == pytest.approx(1_500_000, abs=100_000)
    for lease in leases[2:]:
        item = broker.get(lease.id)
        assert (item.status, charged(item), item.history) == (Status.PENDING, (0, 0, 0), ())
    assert broker.get(other.id).status is Status.ACTIVE
    assert open_worker_session(broker, "gone").list_leases() == ()


def test_what_ran_is_given_back_where_its_worker_stopped_in_order(broker: Broker, in_flight_log: InFlightLog) -> None:
    broker.put("jobs", 1)
    lease = broker.lease("jobs", worker="gone")[0]
    in_flight_log.begin(0, lease.token)
    in_flight_log.finish(settled_all=False)
    assert (in_flight_log.is_finished, in_flight_log.is_stopped) == (False, True)
    in_flight_log.write_exit(WorkerExit(Exit(0, None, 0, Instant(0)), by_order=in_flight_log.is_stopped))
    assert settle_orphans(broker, in_flight_log).returned == 1
    assert charged(broker.get(lease.id)) == (0, 0, 0)


def lose(broker: Broker, count: int) -> list[Lease]:
    """Leases of items that were lost once."""
    session = open_worker_session(broker, "lost before")
    session.step([(lease, Lost()) for lease in session.step([], {"jobs": count}).leases], {})
    return list(open_worker_session(broker, "gone").step([], {"jobs": count}).leases)


def test_suspects_that_ran_together_are_given_back(broker: Broker, in_flight_log: InFlightLog) -> None:
    broker.put_many("jobs", range(3))
    for slot, lease in enumerate(lose(broker, 3)):
        in_flight_log.begin(slot, lease.token)
    assert settle_orphans(broker, in_flight_log).returned == 3
    session = open_worker_session(broker, "gone")
    again = session.step([], {"jobs": 3}).leases
    assert [(lease.losses, lease.attempts, suspicion_of(lease, session)) for lease in again] == [(1, 2, 2)] * 3


def test_what_was_returned_and_redriven_before_is_given_back_as_any_suspect(
    broker: Broker, in_flight_log: InFlightLog
) -> None:
    session = open_worker_session(broker, "before")
    broker.put_many("jobs", range(3))
    for _ in range(5):
        session.step([(lease, Returned()) for lease in session.step([], {"jobs": 3}).leases], {})
    for lease in session.step([], {"jobs": 3}).leases:
        broker.bury(lease)
        broker.redrive(lease.id)
    for slot, lease in enumerate(lose(broker, 3)):
        in_flight_log.begin(slot, lease.token)
    left = settle_orphans(broker, in_flight_log)
    assert (left.lost, left.returned) == (0, 3)


def test_suspect_that_ran_alone_is_lost(broker: Broker, in_flight_log: InFlightLog) -> None:
    broker.put_many("jobs", range(3))
    first, *others = lose(broker, 3)
    in_flight_log.begin(0, first.token)
    left = settle_orphans(broker, in_flight_log)
    assert (left.lost, left.returned) == (1, 2)
    assert [broker.get(lease.id).counters.losses for lease in (first, *others)] == [2, 1, 1]


def test_suspects_in_processes_of_their_own_are_lost(broker: Broker, in_flight_log: InFlightLog) -> None:
    """What runs beside them is not decided by suspicion there: without a loss, one could kill workers for ever."""
    broker.put_many("jobs", range(2))
    for slot, lease in enumerate(lose(broker, 2)):
        in_flight_log.begin(slot, lease.token)
        in_flight_log.assign_process(slot, 4711 + slot)
    assert settle_orphans(broker, in_flight_log).lost == 2


def test_suspect_that_never_runs_alone_is_lost_in_the_end(broker: Broker, in_flight_log: InFlightLog) -> None:
    broker.put_many("jobs", range(2))
    leases = lose(broker, 2)
    lost = []
    for _ in range(4):
        for slot, lease in enumerate(leases):
            in_flight_log.begin(slot, lease.token)
        lost.append(settle_orphans(broker, in_flight_log).lost)
        leases = list(open_worker_session(broker, "gone").step([], {"jobs": 2}).leases)
    assert lost == [0, 0, 0, 2]


def test_what_ended_and_was_not_settled_is_given_back(broker: Broker, in_flight_log: InFlightLog) -> None:
    broker.put("jobs", 1)
    lease = broker.lease("jobs", worker="gone")[0]
    in_flight_log.begin(0, lease.token)
    in_flight_log.end(0)
    assert settle_orphans(broker, in_flight_log).returned == 1
    assert charged(broker.get(lease.id)) == (0, 0, 0)


def test_what_is_settled_already_stays_as_it_is(broker: Broker, in_flight_log: InFlightLog) -> None:
    broker.put("jobs", 1)
    lease = broker.lease("jobs", worker="gone")[0]
    in_flight_log.begin(0, lease.token)
    broker.fail(lease, "no")
    left = settle_orphans(broker, in_flight_log)
    assert (left.lost, left.returned, left.refused) == (0, 0, 0)


def test_more_than_one_transaction_holds_is_settled(broker: Broker, in_flight_log: InFlightLog) -> None:
    broker.put_many("jobs", range(2500))
    for _ in range(3):
        broker.lease("jobs", 1000, worker="gone")
    assert settle_orphans(broker, in_flight_log).returned == 2500


def test_journal_is_kept_where_the_store_cannot_be_reached(tmp_path: Path, in_flight_log: InFlightLog) -> None:
    app = App(f"sqlite:///{tmp_path}/no/such/folder/jobs.db")
    app.queue("jobs")
    with pytest.raises((StoreError, InvalidInput)):
        app.open()
    in_flight_log.begin(0, Token("1" * 48))
    worker_process._settle(AppProgram(app), (str(in_flight_log.path), str(tmp_path / "missing")))
    assert in_flight_log.path.exists()


# Around it.


def test_app_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_program.py").write_text(
        "from redrive.task.app import App\nclass holder: app = App('sqlite:///a.db')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert isinstance(load_app("found_program:holder.app"), App)
    assert load_app("found_program:holder.app", "memory://").open().durability() is not None


def test_sources_tell_what_changed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / ".hidden").mkdir()
    sources = SourceWatcher(tmp_path)
    assert sources.changed() is None
    (tmp_path / "b.py").write_text("2")
    assert sources.changed() == tmp_path / "b.py"
    (tmp_path / ".hidden" / "c.py").write_text("3")
    (tmp_path / "notes.txt").write_text("4")
    assert sources.changed() is None
    (tmp_path / "a.py").unlink()
    assert sources.changed() == tmp_path / "a.py"


def test_view_shows_what_runs(in_flight_log: InFlightLog) -> None:
    in_flight_log.begin(0, Token("abcdef01" + "2" * 40), "send_mail")
    in_flight_log.begin(1, Token("9" * 48), "ended")
    in_flight_log.end(1)
    file = io.StringIO()
    console = Console(file=file, width=120)
    console.print(LiveView("redrive work jobs:app", console).drawing(in_flight_log, "running"))
    drawn = file.getvalue()
    assert "1 item ended" in drawn
    assert "1 running" in drawn
    assert "send_mail" in drawn
    assert "abcdef01" in drawn
    assert "99999999" not in drawn
