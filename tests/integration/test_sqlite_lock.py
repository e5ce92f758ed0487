"""The write lock of a SQLite file: bounded waits that name the holder, and files for their owner alone."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.terminal.cli import Cli
from tests.until import until

from redrive import Broker, connect
from redrive.errors import InvalidInput, StoreBusy, StoreReadOnly, StoreUnavailable
from redrive.stores.sqlite import checkpoint, write_lock
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS

HOLDER = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
FILES = ("", "-lock", "-shm", "-wal")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        broker.create_queue("jobs")
        yield broker


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_lock, "LONGEST_WAIT_SECONDS", 0.5)


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that may only read the lock file, and holds the lock."""
    script = [sys.executable, "-c", HOLDER, f"{path}-lock", "--password", "5ec3et"]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.send_signal(signal.SIGCONT)
            holder.communicate()


@pytest.mark.usefixtures("impatient")
def test_turn_that_does_not_come_is_an_error_that_names_the_holder(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(path) as holder:
        for _ in range(3):
            with pytest.raises(
                StoreBusy, match=rf"process {holder.pid} .*Nothing was changed; .* end process"
            ) as caught:
                broker.put("jobs", 1)
            error = caught.value
            assert error.retryable
            assert error.pid == holder.pid
            assert error.command is not None
            assert error.command.startswith(sys.executable)
            assert "5ec3et" not in str(error)
        assert broker.stats("jobs").pending == 0, "reading needs no turn"
        monkeypatch.undo()
    broker.put("jobs", 2)
    assert [lease.value for lease in broker.lease("jobs", 10)] == [2]


@pytest.mark.usefixtures("impatient")
def test_holder_that_is_stopped_is_said_with_what_continues_it(broker: Broker, path: Path) -> None:
    with held(path) as holder:
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        with pytest.raises(StoreBusy, match=f"is stopped.*kill -CONT {holder.pid}"):
            broker.put("jobs", 1)


@pytest.mark.usefixtures("impatient")
def test_holder_that_the_system_does_not_name_is_unknown(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.lock_holder._LOCKS", str(tmp_path / "no list"))
    with held(path), pytest.raises(StoreBusy, match="another process holds it") as caught:
        broker.put("jobs", 1)
    assert caught.value.pid is None


@pytest.mark.usefixtures("impatient")
def test_store_is_not_opened_while_its_turn_does_not_come(broker: Broker, path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with held(path), pytest.raises(StoreBusy):
        connect(f"sqlite:///{path}", maintenance=False)
    until(lambda: len(os.listdir("/proc/self/fd")) == before)


@pytest.mark.usefixtures("impatient")
def test_close_ends_though_the_turn_does_not_come(path: Path) -> None:
    broker = connect(f"sqlite:///{path}", maintenance=False)
    broker.create_queue("jobs")
    with held(path):
        with pytest.raises(StoreBusy):
            broker.put("jobs", 1)
        broker.close()


def test_close_does_not_wait_for_the_turn_of_a_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_PAGES", 1)
    broker = connect(f"sqlite:///{path}", maintenance=False)
    broker.create_queue("jobs")
    checkpointer = broker.core.store._engine._checkpointer  # type: ignore[attr-defined]
    until(lambda: checkpointer.turn is not None)
    with held(path):
        checkpointer._bell.set()
        until(lambda: checkpointer._is_in_line and checkpointer.turn._job is not None)
        began = time.monotonic()
        broker.close()
        assert time.monotonic() - began < write_lock.LONGEST_WAIT_SECONDS


def test_waiting_caller_gets_its_turn_when_it_is_free(broker: Broker, path: Path) -> None:
    with held(path):
        waiting = Background(lambda: broker.put("jobs", 1))
        until(lambda: broker.core.store._engine._turn._job is not None)  # type: ignore[attr-defined]
        assert broker.stats("jobs").pending == 0
    assert waiting.result().id
    assert broker.stats("jobs").pending == 1


def test_error_of_work_done_in_line_is_the_callers(broker: Broker, path: Path) -> None:
    engine = broker.core.store._engine  # type: ignore[attr-defined]

    def fail() -> None:
        raise LookupError(threading.current_thread().name)

    with held(path):
        waiting = Background(lambda: engine._turn.run(fail))
        until(lambda: engine._turn._job is not None)
    with pytest.raises(LookupError, match="redrive-turn"):
        waiting.result()


INTERRUPTED = """
import sys
from redrive import connect
broker = connect(sys.argv[1], maintenance=False)
print("ready", flush=True)
sys.stdin.readline()
try:
    broker.put("jobs", 1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
broker.put("jobs", 2)
broker.close()
"""


def test_wait_for_a_turn_can_be_interrupted(broker: Broker, path: Path) -> None:
    script = [sys.executable, "-c", INTERRUPTED, f"sqlite:///{path}"]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        with held(path):
            program.stdin.write("go\n")
            program.stdin.flush()
            # Beside its main thread one that works for it, which waits for another that stands in line.
            until(lambda: len(os.listdir(f"/proc/{program.pid}/task")) == 3)
            program.send_signal(signal.SIGINT)
            assert program.stdout.readline() == "interrupted\n"
        program.communicate("go\n", timeout=PATIENCE_SECONDS)
    assert program.returncode == 0
    assert [lease.value for lease in broker.lease("jobs", 10)] in ([2], [1, 2])


def test_commands_that_a_program_starts_do_not_keep_its_turn(broker: Broker, path: Path) -> None:
    broker.put("jobs", 1)
    script = "import glob, os; print(*map(os.path.realpath, glob.glob('/proc/self/fd/*')))"
    shown = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, close_fds=False, check=True).stdout
    assert shown
    assert bytes(path) not in shown


# Who may use the files


def modes(path: Path) -> dict[str, str]:
    return {name: oct(stat.S_IMODE(os.stat(f"{path}{name}").st_mode)) for name in FILES}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277])
@pytest.mark.parametrize(
    ("query", "mode", "lock"),
    [("", 0o600, 0o600), ("?mode=0660", 0o660, 0o660), ("?mode=640", 0o640, 0o600), ("?mode=0666", 0o666, 0o666)],
)
def test_files_are_for_those_whom_the_url_names(path: Path, query: str, mode: int, lock: int, mask: int) -> None:
    with umask(mask), connect(f"sqlite:///{path}{query}", maintenance=False) as broker:
        broker.create_queue("jobs")
        assert modes(path) == {"": oct(mode), "-lock": oct(lock), "-shm": oct(mode), "-wal": oct(mode)}


def test_files_have_their_mode_from_the_beginning(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a moment later: whoever opens a file in between keeps it open."""
    created = []

    def fchmod(file: int, mode: int) -> None:
        created.append(stat.S_IMODE(os.fstat(file).st_mode))

    with umask(0), monkeypatch.context() as patched:
        patched.setattr(os, "fchmod", fchmod)
        connect(f"sqlite:///{path}", maintenance=False).close()
    assert created == [0o600, 0o600]


@pytest.mark.parametrize(("mode", "lock"), [(0o644, 0o600), (0o664, 0o660), (0o660, 0o660), (0o666, 0o666)])
def test_lock_of_a_database_that_exists_is_for_those_who_may_write_to_it(path: Path, mode: int, lock: int) -> None:
    connect(f"sqlite:///{path}", maintenance=False).close()
    path.chmod(mode)
    Path(f"{path}-lock").unlink()
    with umask(0o022), connect(f"sqlite:///{path}", maintenance=False):
        assert modes(path) == {"": oct(mode), "-lock": oct(lock), "-shm": oct(mode), "-wal": oct(mode)}


def test_lock_that_root_creates_belongs_to_the_owner_of_the_database(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    connect(f"sqlite:///{path}", maintenance=False).close()
    Path(f"{path}-lock").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda file, *owner: given.append(owner))
    connect(f"sqlite:///{path}", maintenance=False).close()
    found = path.stat()
    assert given == [(found.st_uid, found.st_gid)]


@pytest.mark.parametrize("mode", ["", "600x", "77", "0777", "0060", "0400", "660660", "rw-rw----", "-600"])
def test_mode_that_no_database_can_have_is_refused(path: Path, mode: str) -> None:
    with pytest.raises(InvalidInput, match=r"write sqlite:///FILE\?mode=0660"):
        connect(f"sqlite:///{path}?mode={mode}", maintenance=False)
    assert not path.exists()


@pytest.mark.parametrize("query", ["?modus=0660", "?mode=0600&mode=0660", "?mode=0660&x=1", "?x"])
def test_other_options_of_a_file_are_refused(path: Path, query: str) -> None:
    with pytest.raises(InvalidInput, match=r"there is only \?mode=0660"):
        connect(f"sqlite:///{path}{query}", maintenance=False)
    assert not path.exists()


def test_mode_of_a_project_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redrive.toml").write_text('url = "sqlite:///jobs.db?mode=0660"\n')
    monkeypatch.chdir(tmp_path)
    Cli("")("queue", "create", "jobs")
    assert stat.S_IMODE(os.stat(tmp_path / "jobs.db").st_mode) == 0o660


def test_lock_that_is_a_link_is_refused(path: Path, tmp_path: Path) -> None:
    """Who may write to the folder could let us create a file elsewhere."""
    Path(f"{path}-lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match=r"its lock .* cannot be opened"):
        connect(f"sqlite:///{path}", maintenance=False)
    assert not (tmp_path / "elsewhere").exists()


def test_lock_that_this_user_may_not_use_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refused(name: Any, *arguments: Any, **options: Any) -> int:
        if str(name).endswith("-lock"):  # root may open anything, so permissions prove nothing
            raise PermissionError(13, "Permission denied", name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StoreReadOnly, match=r"jobs\.db-lock writable for this user"):
        connect(f"sqlite:///{path}", maintenance=False)


def test_doctor_names_files_that_others_may_use_and_what_mends_it(broker: Broker, path: Path) -> None:
    cli = Cli(f"sqlite:///{path}")
    assert file_check(cli, 0)["state"] == "ok"
    for name in FILES:
        os.chmod(f"{path}{name}", 0o644)
    check = file_check(cli, 1)
    assert check["state"] == "warn"
    for name in FILES:
        assert f"jobs.db{name} (0644)" in check["finding"]
    subprocess.run(check["advice"], shell=True, check=True)
    assert set(modes(path).values()) == {oct(0o600)}
    assert file_check(cli, 0)["state"] == "ok"


def test_doctor_names_nothing_that_the_url_allows(path: Path) -> None:
    cli = Cli(f"sqlite:///{path}?mode=0640")
    cli("queue", "create", "jobs")
    assert file_check(cli, 0)["state"] == "ok"
    os.chmod(f"{path}-lock", 0o640)
    check = file_check(cli, 1)
    assert check["advice"] == f"chmod 600 {path}-lock"


def file_check(cli: Cli, exits: int) -> dict[str, Any]:
    (check,) = (each for each in cli.json("doctor", exits=exits)["checks"] if each["name"] == "files")
    assert isinstance(check, dict)
    return check
