"""Suspects of a worker with threads: when they start, beside what, and which worker has the turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redrive import Broker, connect
from redrive.broker.worker_session import Lost, Outcome, Released, Returned, WorkerSession, open_worker_session
from redrive.errors import Forbidden
from redrive.model.queue import QueueSettings
from redrive.testing import FakeClock
from redrive.worker.execution import HandlerSettings
from redrive.worker.runner import Job
from redrive.worker.suspects import (
    AMBIGUOUS,
    DRAIN_TIME,
    GATHER_TIME,
    REST_FACTOR,
    TURN_TIMEOUT,
    Suspects,
    Turn,
    most_together,
    suspicion_of,
)

SETTINGS = QueueSettings(max_attempts=0, max_losses=0)
SLOTS = 32


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with connect("memory://", clock=clock, maintenance=False) as broker:
        broker.create_queue("jobs", max_attempts=0, max_losses=0, lease_timeout="1h")
        yield broker


@pytest.fixture
def suspects(broker: Broker) -> Suspects:
    return Suspects(SLOTS, Turn(broker, "one"), open_worker_session(broker, "one"))


def lost(broker: Broker, count: int, losses: int = 1) -> list[Job]:
    """Jobs of items that were lost so often."""
    session = open_worker_session(broker, "gone")
    broker.put_many("jobs", range(count))
    leases = session.step([], {"jobs": count}).leases
    for _ in range(losses):
        session.step([(lease, Lost()) for lease in leases], {})
        leases = session.step([], {"jobs": count}).leases
    assert [lease.losses for lease in leases] == [losses] * count
    return [Job(lease, None, HandlerSettings()) for lease in leases]


def admit(suspects: Suspects, jobs: list[Job], clock: FakeClock, settings: QueueSettings = SETTINGS) -> None:
    for job in jobs:
        assert suspects.admit(job, settings, len(jobs) + 1, clock.now()) is None


def test_fewer_run_together_after_each_loss(broker: Broker) -> None:
    assert [most_together(lost(broker, 1, losses)[0].suspicion, SLOTS) for losses in range(1, 6)] == [32, 4, 1, 1, 1]


AMBIGUOUS_RETURN = Returned(AMBIGUOUS)


@pytest.mark.parametrize(
    ("ends", "suspicion"),
    [
        ([Returned()] * 5, 0),
        ([Returned()] * 3 + [Lost()], 1),
        ([Returned("stopped")] * 3 + [Lost(), Returned(), Returned("stopped"), Returned(delay=1)], 1),
        ([Released()] * 5 + ["redrive", Lost()], 1),
        ([Lost(), AMBIGUOUS_RETURN, AMBIGUOUS_RETURN], 3),
        ([Lost(), AMBIGUOUS_RETURN, Returned(), Lost(), Released(), AMBIGUOUS_RETURN], 4),
        ([Lost(), AMBIGUOUS_RETURN, AMBIGUOUS_RETURN, Released(), "redrive"], 0),
        ([Lost(), AMBIGUOUS_RETURN, AMBIGUOUS_RETURN, Released(), "redrive", Lost(), AMBIGUOUS_RETURN], 2),
        ([Lost(), AMBIGUOUS_RETURN] + [Returned("stopped")] * 44, 46),  # the history does not have all of them
    ],
)
def test_only_losses_count_and_crashes_beside_others_since_the_first(
    broker: Broker, clock: FakeClock, ends: list[Outcome | str], suspicion: int
) -> None:
    session = open_worker_session(broker, "one")
    id = broker.put("jobs", 1).id
    for end in ends:
        if isinstance(end, str):
            broker.bury(session.lease_by_id(id)[0])
            broker.redrive(id)
        else:
            session.step([(session.lease_by_id(id)[0], end)], {})
    assert suspicion_of(session.lease_by_id(id)[0], session) == suspicion


def test_only_items_that_were_lost_and_returned_or_redriven_cost_a_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(WorkerSession, "leased_item")
    session = open_worker_session(broker, "one")
    assert suspicion_of(lost(broker, 1)[0].lease, session) == 1
    broker.put("jobs", 1)
    for _ in range(3):
        lease = session.step([], {"jobs": 1}).leases[0]
        assert suspicion_of(lease, session) == 0
        session.step([(lease, Returned())], {})


def test_they_start_together_when_nothing_else_runs(suspects: Suspects, broker: Broker, clock: FakeClock) -> None:
    jobs = lost(broker, 40)
    admit(suspects, jobs, clock)
    assert suspects.keep_others_out, "there is no room for more of them"
    assert suspects.choose(1, clock.now()) == []
    assert suspects.choose(0, clock.now()) == jobs[:SLOTS]
    assert suspects.choose(0, clock.now()) == []
    suspects.end(jobs[3])
    assert suspects.choose(0, clock.now()) == [jobs[SLOTS]]


def test_the_most_suspect_bounds_how_many_run_beside_it(suspects: Suspects, broker: Broker, clock: FakeClock) -> None:
    twice = lost(broker, 6, losses=2)
    once = lost(broker, 8)
    admit(suspects, twice, clock)
    admit(suspects, once, clock)
    started = suspects.choose(0, clock.now())
    assert started == once
    for job in once[:5]:
        suspects.end(job)
    assert suspects.choose(0, clock.now()) == twice[:1], "four together, and three of the others run"


def test_what_the_next_loss_makes_dead_waits_in_its_queue(suspects: Suspects, broker: Broker, clock: FakeClock) -> None:
    job, settings = lost(broker, 1)[0], QueueSettings(max_losses=2)
    end = suspects.admit(job, settings, 2, clock.now())
    assert isinstance(end, Returned)
    assert end.delay
    assert suspects.choose(0, clock.now()) == []
    assert suspects.next_alone() == job.lease.id
    assert suspects.next_alone() is None
    assert suspects.admit(job, settings, 1, clock.now()) is None
    assert suspects.choose(0, clock.now()) == [job]
    assert suspects.keep_others_out


def test_others_go_on_until_the_worker_has_the_turn(suspects: Suspects, broker: Broker, clock: FakeClock) -> None:
    admit(suspects, lost(broker, 3), clock)
    assert suspects.choose(5, clock.now()) == []
    assert not suspects.keep_others_out
    clock.advance(GATHER_TIME / 1_000_000)
    assert suspects.choose(5, clock.now()) == []
    assert suspects.keep_others_out
    jobs = suspects.choose(0, clock.now())
    assert len(jobs) == 3
    for job in jobs:
        assert suspects.keep_others_out
        suspects.end(job)
    suspects.choose(0, clock.now())
    assert not suspects.keep_others_out


def test_worker_with_a_long_job_leaves_its_suspects_to_others(
    suspects: Suspects, broker: Broker, clock: FakeClock
) -> None:
    jobs, late = lost(broker, 3), lost(broker, 1)[0]
    admit(suspects, jobs, clock)
    clock.advance(GATHER_TIME / 1_000_000)
    suspects.choose(1, clock.now())
    assert suspects.keep_others_out
    assert suspects.leave_to_others(clock.now()) == []
    clock.advance(DRAIN_TIME / 1_000_000)
    assert suspects.choose(1, clock.now()) == []
    assert not suspects.keep_others_out
    left = suspects.leave_to_others(clock.now())
    assert [job for job, _ in left] == jobs
    assert all(isinstance(end, Returned) and end.delay for _, end in left)
    other = Turn(broker, "other")
    other.take("jobs")
    assert other.is_held
    assert isinstance(suspects.admit(late, SETTINGS, 2, clock.now()), Returned)
    suspects.choose(0, clock.now())  # the long job has ended
    assert suspects.admit(late, SETTINGS, 2, clock.now()) is None


def test_long_jobs_delay_suspects_for_some_times_their_length_only(
    suspects: Suspects, broker: Broker, clock: FakeClock
) -> None:
    """Each job lasts 100 s, and the next one starts unless the worker drains. It drains for a quarter of the time."""
    job, step = lost(broker, 1)[0], 0.5
    drained = worked = 0.0
    left = 100.0
    while left > 0:
        assert drained + worked < 1000, "it starves"
        if job not in suspects.waiting:
            suspects.admit(job, SETTINGS, 2, clock.now())
        assert suspects.choose(1, clock.now()) == []
        suspects.leave_to_others(clock.now())
        clock.advance(step)
        if suspects.keep_others_out:
            drained, left = drained + step, left - step
        else:
            worked, left = worked + step, 100.0
        assert drained <= worked / REST_FACTOR + 200
    assert worked >= drained


def test_worker_that_may_not_take_the_turn_drains_without_it(
    suspects: Suspects, broker: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Forbidden("manage", "default")  # as a server of an older version

    monkeypatch.setattr("redrive.worker.suspects.register", refuse)
    jobs = lost(broker, 3)
    admit(suspects, jobs, clock)
    clock.advance(GATHER_TIME / 1_000_000)
    suspects.choose(1, clock.now())
    assert suspects.keep_others_out
    assert suspects.choose(0, clock.now()) == jobs
    for job in jobs:
        suspects.end(job)
    suspects.choose(0, clock.now())
    assert not suspects.keep_others_out


def test_one_worker_at_a_time_has_the_turn(broker: Broker, clock: FakeClock) -> None:
    one, two = Turn(broker, "one"), Turn(broker, "two")
    one.take("jobs")
    two.take("jobs")
    assert (one.is_held, two.is_held) == (True, False)
    for _ in range(5):
        clock.advance(TURN_TIMEOUT / 2_000_000)
        one.renew()
        two.take("jobs")
        assert (one.is_held, two.is_held) == (True, False)
    one.release()
    clock.advance(GATHER_TIME / 1_000_000)
    two.take("jobs")
    assert (one.is_held, two.is_held) == (False, True)


def test_turn_of_a_worker_that_is_gone_ends(broker: Broker, clock: FakeClock) -> None:
    one, two = Turn(broker, "one"), Turn(broker, "two")
    one.take("jobs")
    clock.advance(TURN_TIMEOUT / 1_000_000)
    two.take("jobs")
    assert two.is_held
    one.renew()
    assert not one.is_held, "it was suspended, and another worker has the turn"
