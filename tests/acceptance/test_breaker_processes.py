"""Four processes on one store, a dependency that is down, one of them killed with the probe in its hands."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
from tests.acceptance.children import fork, join
from tests.until import until

from redrive import connect
from redrive.errors import LeaseLost

PROCESSES = 4
ITEMS = 24
FAILURES = 4
HOLD_SECONDS = 0.05
"""How long a call to the dependency takes."""


def work(url: str, folder: Path, number: int) -> None:
    """Call the dependency for one item after the other. When a call begins and ends is on record.

    It ends before the store hears of it: by a success that closes the breaker others get their items at once.
    """
    journal = os.open(folder / f"{number}.journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with connect(url) as broker:
        while not (folder / "stop").exists():
            for lease in broker.lease("calls", 1, wait="100ms"):
                os.write(journal, f"{lease.leased_at / 1e6} {lease.id} began\n".encode())
                time.sleep(HOLD_SECONDS)
                while (folder / "hang").exists():  # and it is killed
                    time.sleep(0.01)
                ended_at, is_down = time.time(), (folder / "down").exists()
                try:
                    broker.fail(lease, ConnectionError("down")) if is_down else broker.complete(lease)
                    what = "failed" if is_down else "done"
                except LeaseLost:  # on a busy machine; another process has it
                    what = "lost"
                os.write(journal, f"{ended_at} {lease.id} {what}\n".encode())


def read_journals(folder: Path) -> list[tuple[float, str, str]]:
    lines = [line for path in folder.glob("*.journal") for line in _lines(path)]
    return sorted((float(at), id, what) for at, id, what in (line.split() for line in lines))


def _lines(journal: Path) -> list[str]:
    """The lines that are whole."""
    text = journal.read_text() if journal.exists() else ""
    return text.rpartition("\n")[0].splitlines()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_no_more_than_the_probes_are_let_through(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path}/redrive.db" if store == "sqlite" else request.getfixturevalue(f"{store}_url")
    (tmp_path / "down").touch()
    with connect(url, maintenance=False) as broker:
        broker.create_queue(
            "calls",
            lease_timeout="1s",
            retry={"attempts": 100, "base": "50ms"},
            breakers={"queue": {"failures": FAILURES, "open_for": "1s"}},
        )
        broker.put_many("calls", range(ITEMS))
        children = [fork(lambda say, number=number: work(url, tmp_path, number)) for number in range(PROCESSES)]  # type: ignore[misc]
        try:
            until(lambda: broker.list_breakers())
            opened_at = broker.list_breakers()[0].opened_at / 1e6
            probes = opened_at + 0.9
            until(lambda: any(at > probes and what == "began" for at, _, what in read_journals(tmp_path)))
            killed = _kill_one_with_a_probe(tmp_path, [pid for pid, _ in children], probes)
            (tmp_path / "down").unlink()
            until(lambda: broker.stats("calls").completed_total == ITEMS)
            assert broker.list_breakers() == ()
        finally:
            (tmp_path / "stop").touch()
            ends = [join(pid, reader) for pid, reader in children]
    assert [end.killed for end in ends].count(True) == 1
    assert ends[killed].killed
    _check_probes(read_journals(tmp_path), probes)


def _kill_one_with_a_probe(folder: Path, pids: list[int], since: float) -> int:
    """Let processes hang in their next call, and kill the one that has the next probe."""
    (folder / "hang").touch()
    victims: list[int] = []
    until(lambda: victims.extend(n for n in range(PROCESSES) if _hangs(folder / f"{n}.journal", since)) or victims)
    os.kill(pids[victims[0]], signal.SIGKILL)
    (folder / "hang").unlink()
    return victims[0]


def _hangs(journal: Path, since: float) -> bool:
    """Whether its last call is a probe, and takes long."""
    at, _, what = (_lines(journal) or ["0 - -"])[-1].split()
    return what == "began" and float(at) > since and time.time() > float(at) + 10 * HOLD_SECONDS


def _check_probes(entries: list[tuple[float, str, str]], since: float) -> None:
    """Between the opening and the first success after it, calls to the dependency are made one at a time."""
    probes = {id for at, id, what in entries if at > since and what == "began"}
    calls = [(at, what) for at, id, what in entries if at > since and id in probes]
    first_success = next(index for index, (_, what) in enumerate(calls) if what == "done")
    began = [at for at, what in calls[:first_success] if what == "began"]
    assert len(began) >= 2
    # A failed probe is followed by one second at least; a killed one by the timeout of its lease.
    assert all(later - earlier >= 0.9 for earlier, later in pairwise(began)), began
