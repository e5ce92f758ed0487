"""A program that is run for an item: whatever it does with its input, its output and its children, the run ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.until import until

from redrive.model.duration import MILLISECOND, SECOND
from redrive.model.url import strip_password
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.worker.command_process import (
    MAX_OUTPUT_BYTES,
    TAIL_BYTES,
    CommandProcess,
    CommandResult,
    CommandSpec,
    NotStarted,
    environment,
)
from redrive.worker.output_forwarder import OutputForwarder

MIB = 1024 * 1024


def python(source: str, **options: object) -> CommandSpec:
    return CommandSpec((sys.executable, "-S", "-c", source), "/", **options)  # type: ignore[arg-type]


def shell(source: str, **options: object) -> CommandSpec:
    return CommandSpec(("/bin/sh", "-c", source), "/", **options)  # type: ignore[arg-type]


def run(program: CommandSpec, given: bytes = b"", *, keep_output: bool = True) -> CommandResult:
    return CommandProcess(program, given, {}, keep_output=keep_output).wait()


def test_program_gets_its_input_and_its_output_is_kept() -> None:
    ran = run(shell("cat; echo told >&2; exit 3"), b"\x00bytes\xff")
    assert (ran.output, ran.errors, ran.exit.exit_code) == (b"\x00bytes\xff", b"told\n", 3)
    assert (ran.is_complete, ran.timed_out, ran.is_stopped) == (True, False, False)


def test_large_input_is_read_whole() -> None:
    ran = run(python("import sys; print(len(sys.stdin.buffer.read()))"), b"x" * 50 * MIB)
    assert ran.output == b"%d\n" % (50 * MIB)


def test_large_input_that_nobody_reads_keeps_nobody_waiting() -> None:
    assert run(shell("exit 0"), b"x" * 50 * MIB).exit.is_clean


def test_output_without_end_is_drained_and_bounded() -> None:
    ran = run(shell("head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; echo end >&2"))
    assert ran.exit.is_clean
    assert (len(ran.output), ran.is_complete) == (MAX_OUTPUT_BYTES, False)
    assert (len(ran.errors), ran.errors[-5:]) == (TAIL_BYTES, b"\0end\n")


def test_output_that_nobody_wants_is_not_kept() -> None:
    assert run(shell("head -c 20000000 /dev/zero"), keep_output=False).output == b""


def test_child_that_holds_the_output_open_keeps_nobody_waiting(tmp_path: Path) -> None:
    began = time.monotonic()
    ran = run(shell(f"echo said; sleep 60 & echo $! > {tmp_path}/pid"))
    assert (ran.exit.exit_code, ran.output) == (0, b"said\n")
    assert time.monotonic() - began < 30
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it was left alone, as it may have been meant


def test_program_that_closes_its_output_is_waited_for() -> None:
    assert run(shell("exec >&- 2>&-; sleep 0.2; exit 4")).exit.exit_code == 4


def test_signal_that_killed_it_is_told() -> None:
    ran = run(shell("kill -SEGV $$"))
    assert (ran.exit.signal, ran.exit.exit_code) == (signal.SIGSEGV, None)


def run_too_long(source: str, ready: Path, **options: object) -> CommandResult:
    """Run a program beyond its time limit, which strikes only after it has made `ready`, on a slow machine too."""
    for timeout in (300 * MILLISECOND, 3 * SECOND, 30 * SECOND):
        ready.unlink(missing_ok=True)
        ran = run(shell(source, timeout=timeout, **options))
        assert ran.timed_out
        if ready.exists() and ready.read_text().endswith("\n"):
            return ran
    raise AssertionError(f"it was not ready after {timeout / SECOND:.0f} s")


def test_program_that_runs_too_long_is_asked_to_end(tmp_path: Path) -> None:
    source = f"trap 'echo bye >&2; exit 0' TERM; echo > {tmp_path}/ready; while :; do sleep 0.05; done"
    ran = run_too_long(source, tmp_path / "ready")
    assert ran.errors.endswith(b"bye\n")
    assert ran.seconds >= 0.3


def test_program_that_does_not_end_when_asked_is_killed_with_all_it_started(tmp_path: Path) -> None:
    source = f"trap '' TERM; sleep 300 & echo $! > {tmp_path}/pid; while :; do sleep 0.05; done"
    ran = run_too_long(source, tmp_path / "pid", kill_grace=200 * MILLISECOND)
    assert ran.exit.signal == signal.SIGKILL
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_waiting_for_a_program_to_end_costs_nothing(tmp_path: Path) -> None:
    before = time.thread_time()
    source = f"trap asked=1 TERM; echo > {tmp_path}/ready; while [ -z $asked ]; do sleep 0.05; done; sleep 1; exit 0"
    ran = run_too_long(source, tmp_path / "ready")
    assert ran.exit.exit_code == 0
    assert time.thread_time() - before < 0.3


def test_child_of_a_program_that_ended_too_late_ends_with_it(tmp_path: Path) -> None:
    source = f"(trap '' TERM; sh -c 'echo $PPID' > {tmp_path}/pid; exec sleep 300) & exec sleep 300"
    run_too_long(source, tmp_path / "pid", kill_grace=300 * MILLISECOND)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_program_is_stopped_from_another_thread(tmp_path: Path) -> None:
    program = CommandProcess(shell(f"echo begun > {tmp_path}/begun; exec sleep 300"), b"", {}, keep_output=False)
    waiting = Background(program.wait)
    written(tmp_path / "begun")
    until(lambda: program._pid is not None)
    program.stop()
    ran = waiting.result()
    assert (ran.is_stopped, ran.timed_out, ran.exit.signal) == (True, False, signal.SIGTERM)


def test_program_that_was_stopped_before_it_began_ends_at_once() -> None:
    program = CommandProcess(shell("sleep 300"), b"", {}, keep_output=False)
    program.stop()
    assert program.wait().is_stopped


@pytest.mark.parametrize("word", ["no-such-program-anywhere", "./nowhere", "/etc"])
def test_program_that_cannot_be_started_raises(word: str) -> None:
    with pytest.raises(NotStarted, match=rf"(No such file or directory|Permission denied): '{word}'"):
        run(CommandSpec((word,), "/"))


def test_nothing_is_started_that_cannot_be_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("redrive.worker.command_process.selectors.DefaultSelector", none_left)
    with pytest.raises(NotStarted, match="Too many open files"):
        run(shell(f"touch {tmp_path}/begun"))
    monkeypatch.undo()
    run(shell("exit 0"))
    assert not (tmp_path / "begun").exists()


def test_exit_code_is_seen_where_the_worker_ignores_the_end_of_children() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        ran = run(shell("cat; echo told >&2; exit 3"), b"given")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (ran.exit.exit_code, ran.output, ran.errors) == (3, b"given", b"told\n")


def test_program_whose_parent_is_killed_has_vanished(tmp_path: Path) -> None:
    program = CommandProcess(
        shell(f"echo $PPID > {tmp_path}/parent; sleep 300 & echo $! > {tmp_path}/pid; wait"), b"", {}, keep_output=True
    )
    ended: list[CommandResult] = []
    thread = threading.Thread(target=lambda: ended.append(program.wait()))
    thread.start()
    child = int(written(tmp_path / "pid"))
    until(lambda: program._pid is not None)
    os.kill(int(written(tmp_path / "parent")), signal.SIGKILL)
    thread.join(PATIENCE_SECONDS)
    (ran,) = ended
    assert (ran.exit_unknown, ran.is_stopped) == (True, False)
    assert is_gone(child)
    assert run(shell("exit 4")).exit.exit_code == 4  # another parent takes its place


_WORKER = """
import sys, threading, time
from pathlib import Path
from redrive.worker.command_process import CommandProcess, CommandSpec

program = CommandProcess(CommandSpec(("/bin/sh", "-c", sys.argv[1]), "/"), b"", {}, keep_output=True)
thread = threading.Thread(target=program.wait)
thread.start()
while program._pid is None:
    time.sleep(0.001)
Path(sys.argv[2]).write_text("started\\n")
thread.join()
"""


def test_program_ends_though_its_worker_and_its_parent_are_killed_together(tmp_path: Path) -> None:
    source = f"cd {tmp_path}; echo $PPID > parent; sleep 300 & echo $! > pid; echo $$ > leader; wait"
    worker = subprocess.Popen([sys.executable, "-c", _WORKER, source, str(tmp_path / "started")])
    pids = [int(written(tmp_path / name)) for name in ("leader", "pid")]
    assert written(tmp_path / "started")  # the parent has made it known to the shell by then
    worker.send_signal(signal.SIGSTOP)
    os.kill(int(written(tmp_path / "parent")), signal.SIGKILL)
    worker.kill()
    worker.wait()
    assert all(map(is_gone, pids))


def test_nothing_is_left_open() -> None:
    run(shell("echo x"))  # the parent of commands stays
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        run(shell("echo x"))
    assert len(os.listdir("/dev/fd")) == before


def test_program_runs_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "here.sh").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "here.sh").chmod(0o755)
    assert run(CommandSpec(("./here.sh",), str(tmp_path))).output.decode().strip() == str(tmp_path)


def test_secrets_of_the_worker_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_TOKEN", "s3cret")
    monkeypatch.setenv("DB_PASSWORD", "s3cret")
    monkeypatch.setenv("REDRIVE_URL", "postgresql://ann:s3cret@db/jobs")
    monkeypatch.setenv("PLAIN", "stays")
    program = CommandSpec(("/usr/bin/env",), "/", hidden=("DB_PASSWORD",))
    told = run(program).output.decode()
    assert "s3cret" not in told
    assert "PLAIN=stays" in told
    assert "REDRIVE_URL=postgresql://ann@db/jobs" in told


def test_secret_that_was_asked_for_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_TOKEN", "s3cret")
    program = CommandSpec(("env",), "/", {"REDRIVE_TOKEN": "s3cret"})
    assert environment(program, {})["REDRIVE_TOKEN"] == "s3cret"


@pytest.mark.parametrize(
    ("url", "harmless"),
    [
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("redis://:pass@host:1/0", "redis://@host:1/0"),
        ("postgresql://u:p@a/b?schema=x", "postgresql://u@a/b?schema=x"),
        ("postgresql://a/b?password=hunter2hunter2", None),
        ("http://[broken", None),
    ],
)
def test_password_is_taken_out_of_a_url(url: str, harmless: str | None) -> None:
    assert strip_password(url) == harmless


# What is passed on.


def test_output_is_passed_on_in_whole_lines(capfd: pytest.CaptureFixture[str]) -> None:
    output, errors = OutputForwarder(1), OutputForwarder(2)
    source = "printf 'one\\ntw'; sleep 0.1; printf 'o\\nthree'; echo told >&2"
    ran = CommandProcess(shell(source), b"", {}, keep_output=False, output=output, errors=errors).wait()
    output.close()
    errors.close()
    assert ran.errors == b"told\n"
    assert capfd.readouterr() == ("one\ntwo\nthree\n", "told\n")


def test_output_that_is_kept_is_not_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    output = OutputForwarder(1)
    assert CommandProcess(shell("echo x"), b"", {}, keep_output=True, output=output).wait().output == b"x\n"
    output.close()
    assert capfd.readouterr().out == ""


def test_output_that_nobody_reads_keeps_no_program_waiting() -> None:
    reads, writes = os.pipe()
    output = OutputForwarder(writes)
    began = time.monotonic()
    for _ in range(2):
        source = "head -c 20000000 /dev/zero | tr '\\0' x"
        assert CommandProcess(shell(source), b"", {}, keep_output=False, output=output).wait().exit.is_clean
    assert time.monotonic() - began < 30
    read = b""
    while b"dropped" not in read[-200:]:
        read = read[-200:] + os.read(reads, 65536)
    assert b"bytes of output were dropped" in read
    os.close(reads)


def written(path: Path) -> str:
    """What a program writes into a file."""
    until(lambda: path.exists() and path.read_text().endswith("\n"))
    return path.read_text().strip()


def is_gone(pid: int) -> bool:
    """Whether it ends soon; a zombie that somebody else is to reap is gone too."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        threading.Event().wait(0.01)
    return False
