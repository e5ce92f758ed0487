"""Items that kill their worker, in a fleet of dispatchers on one store with a fake clock.

Whatever falls together: those that kill are dead, all others are completed. Where a supervisor records what ran, no
item has more than one loss for the crashes of others: that of the crash which made it a suspect.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from tests.sizes import THOROUGH

from redrive import App, Broker, DeadReason, Status, connect
from redrive.broker.worker_session import Completed, Returned, open_worker_session
from redrive.model.failure import Failure
from redrive.model.ids import ItemId
from redrive.testing import FakeClock
from redrive.worker.crash_recovery import settle_orphans
from redrive.worker.dispatcher import Dispatcher, Ended
from redrive.worker.in_flight import InFlightLog
from redrive.worker.runner import Ended as OnEnded
from redrive.worker.runner import Job

SEEDS = 200 if THOROUGH else 12
WORKERS, SLOTS, ITEMS, KILLERS = 3, 16, 150, 6
TICKS = 20_000


class TickRunner:
    """A runner of jobs that last some ticks. One that kills ends its process with all that runs there."""

    isolated = False

    def __init__(self, chance: random.Random, in_flight_log: InFlightLog) -> None:
        self.slots = SLOTS
        self.is_dead = False
        self._chance, self._in_flight_log = chance, in_flight_log
        self._queued: list[Job] = []
        self._running: dict[Job, int] = {}
        """Ticks that each still runs."""
        self._free = list(range(SLOTS))
        self.seen: list[list[Job]] = []
        """What ran together, at each tick."""

    def start(self, ended: OnEnded) -> None:
        self._ended = ended

    def submit(self, jobs: Sequence[Job]) -> None:
        self._queued += jobs

    def running(self) -> Collection[Job]:
        return list(self._running)

    def cancel_queued(self) -> list[Job]:
        queued, self._queued = self._queued, []
        return queued

    def interrupt(self, job: Job, failure: Failure) -> None:
        raise AssertionError("there is no time limit")

    revoke = interrupt  # type: ignore[assignment]

    def close(self, jobs_too: bool) -> list[Job]:
        return []

    def tick(self) -> None:
        while self._queued and self._free:
            job = self._queued.pop(0)
            job.slot = self._free.pop()
            self._running[job] = self._chance.randint(1, 6) if self._chance.random() < 0.98 else 60
            self._in_flight_log.begin(job.slot, job.lease.token)
        self.seen.append(list(self._running))
        for job, left in list(self._running.items()):
            self._running[job] = left - 1
            if left == 1 and job.task is not None and job.task.name == "kill":
                self.is_dead = True
                return
        for job, left in list(self._running.items()):
            if left == 0:
                del self._running[job]
                self._free.append(job.slot)
                self._in_flight_log.end(job.slot)
                self._ended(job, Completed())


class Fleet:
    """Workers without threads. Each tick lets every one make a step; one that dies is replaced."""

    def __init__(self, app: App, broker: Broker, clock: FakeClock, chance: random.Random, folder: Path) -> None:
        self._app, self._broker, self._clock, self._chance, self._folder = app, broker, clock, chance, folder
        self.seen: list[list[Job]] = []
        self.deaths = 0
        self._started = 0
        self._workers = [self._start() for _ in range(WORKERS)]

    def _start(self) -> tuple[Dispatcher, TickRunner, InFlightLog]:
        self._started += 1
        name = f"worker-{self._started}"
        log = InFlightLog.create(self._folder / name, name, SLOTS)
        runner = TickRunner(self._chance, log)
        return Dispatcher(self._app, self._broker, ["jobs"], runner, name, self._on_settled), runner, log

    def _on_settled(self, ended: Sequence[Ended]) -> None:
        for _, _, settled in ended:
            if isinstance(settled, Exception):
                raise settled

    def run(self, *, supervised: bool) -> None:
        """Run until nothing is left."""
        for _ in range(TICKS):
            if not sum((stats := self._broker.stats("jobs")).__getattribute__(name) for name in ("pending", "active")):
                return
            for place, (dispatcher, runner, log) in enumerate(self._workers):
                while dispatcher.step():
                    pass
                runner.tick()
                if runner.is_dead:
                    self.deaths += 1
                    self.seen += runner.seen
                    if supervised:
                        settle_orphans(self._broker, log)
                    self._workers[place] = self._start()
            self._clock.advance(0.1)
            self._broker.run_maintenance()
            for dispatcher, _, _ in self._workers:
                dispatcher.session.extend([job.lease for job in dispatcher.jobs() if not job.has_ended])
        raise AssertionError(f"not at rest after {TICKS:,} ticks: {stats}")


def give_past(broker: Broker, chance: random.Random, ids: Sequence[ItemId]) -> None:
    """Let most items have been returned some times, and some of these redriven."""
    session = open_worker_session(broker, "before")
    for id in ids:
        for _ in range(chance.randint(0, 5)):
            session.step([(session.lease_by_id(id)[0], Returned(chance.choice([None, "stopped"])))], {})
        if chance.random() < 0.5:
            broker.bury(session.lease_by_id(id)[0])
            broker.redrive(id)


@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "leases expire"])
@pytest.mark.parametrize("max_losses", [2, 3, 5])
def test_those_that_kill_die_and_no_other_does(tmp_path: Path, supervised: bool, max_losses: int) -> None:
    for seed in range(SEEDS):
        chance, clock, folder = random.Random(seed), FakeClock(), tmp_path / f"{seed}"
        folder.mkdir()
        app = App()
        jobs = app.queue("jobs", lease_timeout="2s", keep_completed="365d", max_losses=max_losses)
        kill, good = jobs.task(name="kill")(lambda: None), jobs.task(name="good")(lambda: None)
        with connect("memory://", clock=clock, maintenance=False) as broker, app.override_broker(broker):
            app.create_queues(broker)
            killers = set(chance.sample(range(ITEMS), KILLERS))
            ids = [(kill if number in killers else good).put().id for number in range(ITEMS)]
            give_past(broker, chance, ids)
            fleet = Fleet(app, broker, clock, chance, folder)
            fleet.run(supervised=supervised)
            for number, item in enumerate(map(broker.get, ids)):
                if number in killers:
                    assert item.death is not None, seed
                    assert item.death.reason is DeadReason.WORKER_LOST, seed
                    continue
                assert item.status is Status.COMPLETED, (seed, item.counters)
                assert item.counters.losses <= 1 or not supervised, (seed, item.counters)
        for together in fleet.seen:
            assert len({job.is_suspect for job in together}) < 2, seed
