"""The journal of a worker: what it ran can be read after it was killed."""

import os
import signal
import stat
import struct
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
def journal(tmp_path: Path) -> InFlightLog:
    return InFlightLog.create(tmp_path / "journal", "host:1:abcd", 4)


def test_tells_what_runs_and_not_what_ended(journal: InFlightLog) -> None:
    journal.begin(0, ONE, "send")
    journal.begin(3, TWO)
    assert [(each.slot, each.token, each.label) for each in journal.running()] == [(0, ONE, "send"), (3, TWO, "")]
    journal.end(0)
    assert [each.token for each in journal.running()] == [TWO]
    assert journal.ended == 1


def test_next_item_in_a_slot_takes_the_place_of_the_one_before(journal: InFlightLog) -> None:
    journal.begin(1, ONE, "a_long_name")
    journal.end(1)
    journal.begin(1, TWO, "short")
    assert [(each.token, each.label) for each in journal.running()] == [(TWO, "short")]
    assert journal.running()[0].id == TWO[:32]


def test_another_reader_sees_it_all(journal: InFlightLog) -> None:
    journal.begin(2, ONE, "send")
    journal.assign_process(2, 4711)
    journal.beat()
    read = InFlightLog(journal.path)
    assert read.worker == "host:1:abcd"
    assert read.slots == 4
    assert read.beats == 1
    assert [(each.slot, each.pid) for each in read.running()] == [(2, 4711)]
    assert read.pids() == [4711]
    assert not read.is_finished
    journal.finish()
    assert read.is_finished


def test_label_that_is_too_long_is_cut(journal: InFlightLog) -> None:
    journal.begin(0, ONE, "é" * 100)
    assert journal.running()[0].label == "é" * 27


def test_name_of_a_worker_may_have_every_character(tmp_path: Path) -> None:
    name = "\N{WAVING HAND SIGN}" * 256
    assert InFlightLog.create(tmp_path / "journal", name, 1).worker == name
    with pytest.raises(InvalidInput, match="1 to 256 characters"):
        InFlightLog.create(tmp_path / "other", "", 1)


def test_how_it_ended_is_written_down_beside(journal: InFlightLog) -> None:
    assert journal.ending is None
    ending = WorkerExit(Exit(None, 9, 123_456_789, Instant(1_700_000_000_000_000)), "it was late", by_order=True)
    journal.write_ending(ending)
    assert InFlightLog(journal.path).ending == ending


def test_reason_that_is_too_long_is_cut(journal: InFlightLog) -> None:
    journal.write_ending(WorkerExit(Exit(1, None, 0, Instant(0)), "\N{WAVING HAND SIGN}" * 1000))
    ending = InFlightLog(journal.path).ending
    assert ending is not None
    assert ending.because == "\N{WAVING HAND SIGN}" * 200


def test_is_for_this_user_only(journal: InFlightLog) -> None:
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


def test_other_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"x" * 4096)
    with pytest.raises(InvalidInput, match="is not the journal of a worker"):
        InFlightLog(tmp_path / "journal")


def test_slot_that_does_not_exist_is_refused(journal: InFlightLog) -> None:
    with pytest.raises(struct.error):
        journal.begin(4, ONE)


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


def test_outlives_a_process_that_is_killed(journal: InFlightLog) -> None:
    ended = subprocess.run([sys.executable, "-c", _KILLED, os.fspath(journal.path)], timeout=30)
    assert ended.returncode == -signal.SIGKILL
    assert [(each.token, each.label) for each in journal.running()] == [(Token("1" * 48), "first")]
    assert journal.ended == 1
