"""Processes that share a file, each on a clock of its own that runs as fast as it can: each tick is put once."""

import multiprocessing
from collections import Counter
from pathlib import Path

from redrive import App, connect
from redrive.testing import FakeClock
from redrive.worker.scheduler import TickPlanner

PROCESSES = 4
HOURS = 60


def hourly(url: str, clock: FakeClock) -> App:
    app = App(url, clock=clock, maintenance=False)
    app.queue("jobs").task(name="work", every="1h", on_missed="all")(lambda: None)
    return app


def look_each_hour(url: str) -> None:
    clock = FakeClock()
    with hourly(url, clock) as app:
        schedule = TickPlanner(app, app.open())
        for _ in range(HOURS):
            schedule.step()
            clock.advance("1h")
        schedule.step()


def test_tick_is_put_once_among_processes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    begun = FakeClock().now()
    with hourly(url, FakeClock()) as app:
        TickPlanner(app, app.open()).step()
    spawned = multiprocessing.get_context("spawn")
    processes = [spawned.Process(target=look_each_hour, args=(url,)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    clock = FakeClock()
    clock.advance(f"{HOURS}h")
    with connect(url, clock=clock, maintenance=False) as broker:
        ticks = Counter(int(lease.headers["tick"]) for lease in broker.lease("jobs", 1000))
    assert ticks == {begun + hour * 3_600_000_000: 1 for hour in range(1, HOURS + 1)}
