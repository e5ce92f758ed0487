"""The in-flight log of a worker: what it ran can be read after it was killed."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.clock import Instant
from redrive.errors import InvalidInput
from redrive.model.ids import Token, make_token
from redrive.worker.in_flight import InFlightLog, WorkerExit
from redrive.worker.process_exit import Exit

ONE, TWO = make_token(1, 1, 1), make_token(2, 2, 2)


@pytest.fixture
def in_flight_log(tmp_path: Path) -> InFlightLog:
    return InFlightLog.create(tmp_path / "journal", "host:1:abcd", 4)


def test_tells_what_runs_and_not_what_ended(in_flight_log: InFlightLog) -> None:
    in_flight_log.begin(0, ONE, "send")
    in_flight_log.begin(3, TWO)
    assert [(each.slot, each.token, each.label) for each in in_flight_log.running()] == [(0, ONE, "send"), (3, TWO, "")]
    in_flight_log.end(0)
    assert [each.token for each in in_flight_log.running()] == [TWO]
    assert in_flight_log.ended == 1


def test_item_that_waits_is_in_its_slot_and_does_not_run(in_flight_log: InFlightLog) -> None:
    in_flight_log.begin(0, ONE, "send", waits=True)
    assert in_flight_log.running() == []
    assert in_flight_log.token_in(0) == ONE
    in_flight_log.begin(0, ONE, "send")
    assert [each.token for each in in_flight_log.running()] == [ONE]
    assert in_flight_log.token_in(0) == ONE
    in_flight_log.end(0)
    assert in_flight_log.token_in(0) is None


def test_next_item_in_a_slot_takes_the_place_of_the_one_before(in_flight_log: InFlightLog) -> None:
    in_flight_log.begin(1, ONE, "a_long_name")
    in_flight_log.end(1)
    in_flight_log.begin(1, TWO, "short")
    assert [(each.token, each.label) for each in in_flight_log.running()] == [(TWO, "short")]
    assert in_flight_log.running()[0].id == TWO[:32]


def test_another_reader_sees_it_all(in_flight_log: InFlightLog) -> None:
    in_flight_log.begin(2, ONE, "send")
    in_flight_log.assign_process(2, 4711)
    in_flight_log.beat()
    read = InFlightLog(in_flight_log.path)
    assert read.worker == "host:1:abcd"
    assert read.slots == 4
    assert read.beats == 1
    assert [(each.slot, each.pid) for each in read.running()] == [(2, 4711)]
    assert read.pids() == [4711]
    assert not read.is_finished
    in_flight_log.finish()
    assert read.is_finished


def test_label_that_is_too_long_is_cut(in_flight_log: InFlightLog) -> None:
    in_flight_log.begin(0, ONE, "é" * 100)
    assert in_flight_log.running()[0].label == "é" * 27


def test_name_of_a_worker_may_have_every_character(tmp_path: Path) -> None:
    name = "\N{WAVING HAND SIGN}" * 256
    assert InFlightLog.create(tmp_path / "journal", name, 1).worker == name
    with pytest.raises(InvalidInput, match="1 to 256 characters"):
        InFlightLog.create(tmp_path / "other", "", 1)


def test_how_it_ended_is_written_down_beside(in_flight_log: InFlightLog) -> None:
    assert in_flight_log.worker_exit is None
    worker_exit = WorkerExit(Exit(None, 9, 123_456_789, Instant(1_700_000_000_000_000)), "it was late", by_order=True)
    in_flight_log.write_exit(worker_exit)
    assert InFlightLog(in_flight_log.path).worker_exit == worker_exit


def test_reason_that_is_too_long_is_cut(in_flight_log: InFlightLog) -> None:
    in_flight_log.write_exit(WorkerExit(Exit(1, None, 0, Instant(0)), "\N{WAVING HAND SIGN}" * 1000))
    worker_exit = InFlightLog(in_flight_log.path).worker_exit
    assert worker_exit is not None
    assert worker_exit.because == "\N{WAVING HAND SIGN}" * 200


def test_is_for_this_user_only(in_flight_log: InFlightLog) -> None:
    assert stat.S_IMODE(in_flight_log.path.stat().st_mode) == 0o600


_TRUNCATES = """
import os, sys
from pathlib import Path
from redrive.worker.in_flight import InFlightLog
log = InFlightLog(Path(sys.argv[1]))
if len(sys.argv) > 2 and os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
for descriptor in range(3, 256):
    for change in (lambda: os.ftruncate(descriptor, 0), lambda: os.write(descriptor, b"rubbish")):
        try:
            change()
        except OSError:
            pass
log.begin(0, "1" * 48, "first")
log.close()
"""


@pytest.mark.parametrize("forked", [[], ["forked"]])
def test_handler_that_truncates_every_open_file_does_not_reach_it(
    in_flight_log: InFlightLog, forked: list[str]
) -> None:
    size = in_flight_log.path.stat().st_size
    command = [sys.executable, "-c", _TRUNCATES, os.fspath(in_flight_log.path), *forked]
    assert subprocess.run(command, timeout=240).returncode == 0
    assert in_flight_log.path.stat().st_size == size
    assert [each.token for each in in_flight_log.running()] == [Token("1" * 48)]


def test_descriptor_that_is_opened_after_it_stays_open_when_it_is_closed(
    in_flight_log: InFlightLog, tmp_path: Path
) -> None:
    logs = [InFlightLog(in_flight_log.path) for _ in range(3)]
    others = [os.open(tmp_path, os.O_RDONLY) for _ in range(4)]
    for log in logs:
        log.close()
    for other in others:
        os.close(other)


def test_other_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"x" * 4096)
    with pytest.raises(InvalidInput, match="is not the in-flight log of a worker"):
        InFlightLog(tmp_path / "journal")


def test_slot_that_does_not_exist_is_refused(in_flight_log: InFlightLog) -> None:
    with pytest.raises(IndexError):
        in_flight_log.begin(4, ONE)


_KILLED = """
import os, signal, sys
from pathlib import Path
from redrive.worker.in_flight import InFlightLog
journal = InFlightLog(Path(sys.argv[1]))
journal.begin(0, "1" * 48, "first")
journal.begin(1, "2" * 48, "second")
journal.end(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_outlives_a_process_that_is_killed(in_flight_log: InFlightLog) -> None:
    ended = subprocess.run([sys.executable, "-c", _KILLED, os.fspath(in_flight_log.path)], timeout=240)
    assert ended.returncode == -signal.SIGKILL
    assert [(each.token, each.label) for each in in_flight_log.running()] == [(Token("1" * 48), "first")]
    assert in_flight_log.ended == 1
