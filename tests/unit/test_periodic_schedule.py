"""The schedule: each tick is put once, however many workers look."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Broker, Context, connect
from redrive.contract.admin_calls import Register
from redrive.contract.queries import ListRegistrations
from redrive.errors import StoreUnavailable
from redrive.testing import FakeClock, memory_broker, put_due_ticks, run_tasks
from redrive.worker.scheduler import SCHEDULE_KIND, Scheduler, TickPlanner

HOUR = 3_600_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with memory_broker(clock) as opened:
        yield opened


def hourly(broker: Broker, every: str = "1h", **options: Any) -> App:
    """A program with one periodic task. Made again, it is the same program in another process."""
    app = App()

    @app.queue("jobs").task(name="work", every=every, **options)
    def work(context: Context) -> None: ...

    app.create_queues(broker)
    return app


def pending(broker: Broker) -> int:
    return broker.stats("jobs").pending


def test_first_start_waits_for_the_next_tick(broker: Broker, clock: FakeClock) -> None:
    clock.advance("10m")
    schedule = TickPlanner(hourly(broker), broker)
    assert schedule.step() == clock.now() + HOUR * 5 // 6
    assert pending(broker) == 0
    clock.advance("50m")
    assert schedule.step() == clock.now() + HOUR
    assert pending(broker) == 1


def test_tick_is_put_once_among_many(broker: Broker, clock: FakeClock) -> None:
    schedules = [TickPlanner(hourly(broker), broker) for _ in range(5)]
    for expected in range(4):
        for schedule in schedules:
            schedule.step()
        assert pending(broker) == expected
        clock.advance("1h")


def test_tick_is_put_once_among_threads_that_look_at_once(tmp_path: Path, clock: FakeClock) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    brokers = [connect(url, clock=clock, maintenance=False) for _ in range(4)]
    schedules = [TickPlanner(hourly(broker), broker) for broker in brokers]
    for schedule in schedules:
        schedule.step()
    for tick in range(1, 11):
        clock.advance("1h")
        barrier = threading.Barrier(len(schedules))

        def look(schedule: TickPlanner, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            schedule.step()

        threads = [threading.Thread(target=look, args=(schedule,)) for schedule in schedules]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pending(brokers[0]) == tick
    for broker in brokers:
        broker.close()


def test_item_knows_its_tick(broker: Broker, clock: FakeClock) -> None:
    seen: list[Any] = []
    app = App()

    @app.queue("jobs").task(every="1h", on_missed="all")
    def work(context: Context) -> None:
        seen.append(context.tick)

    with app.override_broker(broker):
        put_due_ticks(app)
        begun = clock.now()
        clock.advance("2h10m")
        put_due_ticks(app)
        work.put()
        run_tasks(app)
    assert seen == [begun + HOUR, begun + 2 * HOUR, None]


@pytest.mark.parametrize(("missed", "put"), [("skip", 0), ("once", 1), ("all", 5)])
def test_ticks_missed_while_no_worker_ran(broker: Broker, clock: FakeClock, missed: str, put: int) -> None:
    TickPlanner(hourly(broker, on_missed=missed), broker).step()
    clock.advance("5h30m")
    schedule = TickPlanner(hourly(broker, on_missed=missed), broker)
    schedule.step()
    assert pending(broker) == put
    schedule.step()
    assert pending(broker) == put
    clock.advance("30m")
    schedule.step()
    assert pending(broker) == put + 1


def test_two_programs_may_have_a_task_of_one_name(broker: Broker, clock: FakeClock) -> None:
    other = App()

    @other.queue("others").task(name="work", every="1h")
    def work() -> None: ...

    other.create_queues(broker)
    schedules = [TickPlanner(hourly(broker), broker), TickPlanner(other, broker)]
    for _ in range(3):
        for schedule in schedules:
            schedule.step()
        clock.advance("1h")
    assert (pending(broker), broker.stats("others").pending) == (2, 2)


def test_changed_schedule_begins_anew_and_is_that_of_whoever_started_last(broker: Broker, clock: FakeClock) -> None:
    older = TickPlanner(hourly(broker), broker)
    older.step()
    clock.advance("2h30m")
    newer = TickPlanner(hourly(broker, every="10m"), broker)
    newer.step()
    assert pending(broker) == 0  # nothing was missed of a schedule that was not there
    clock.advance("30m")
    older.step()
    assert pending(broker) == 0  # left to the newer ones
    newer.step()
    assert pending(broker) == 1
    TickPlanner(hourly(broker), broker).step()
    clock.advance("1h")
    newer.step()
    assert pending(broker) == 1
    older.step()
    assert pending(broker) == 2


def test_tick_that_is_refused_is_put_later_and_keeps_no_other_waiting(broker: Broker, clock: FakeClock) -> None:
    app = App()
    full = app.queue("full", max_size=1)
    full.task(name="blocked", every="1h")(lambda: None)
    app.queue("jobs").task(name="work", every="1h")(lambda: None)
    app.create_queues(broker)
    schedule = TickPlanner(app, broker)
    schedule.step()
    broker.put("full", 1)
    clock.advance("1h")
    assert schedule.step() == clock.now() + 1_000_000
    assert pending(broker) == 1
    broker.complete(broker.lease("full")[0])
    schedule.step()
    assert broker.stats("full").pending == 1


def test_schedule_whose_beginning_could_not_be_written_begins_the_next_time(
    broker: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    TickPlanner(hourly(broker, every="2h"), broker).step()
    schedule = TickPlanner(hourly(broker), broker)
    committer = broker.core.committer
    commit = committer.commit

    def refuse(calls: Any) -> Any:
        if any(isinstance(call, Register) for call in calls):
            raise StoreUnavailable("memory", "gone")
        return commit(calls)

    monkeypatch.setattr(committer, "commit", refuse)
    schedule.step()
    monkeypatch.undo()
    schedule.step()
    clock.advance("1h")
    schedule.step()
    assert pending(broker) == 1


def test_only_queues_that_are_worked_on_are_seen_to(broker: Broker) -> None:
    app = hourly(broker)
    assert TickPlanner(app, broker, ["others"]).is_empty
    assert not TickPlanner(app, broker, ["jobs"]).is_empty


def test_value_that_nobody_knows_is_written_anew(broker: Broker, clock: FakeClock) -> None:
    broker.submit(Register(SCHEDULE_KIND, "jobs/work", b"nonsense"))
    schedule = TickPlanner(hourly(broker), broker)
    schedule.step()
    clock.advance("1h")
    schedule.step()
    assert pending(broker) == 1
    (registered,) = broker.core.read(ListRegistrations(SCHEDULE_KIND, "jobs/work"))
    assert registered.version == 3


def test_thread_puts_ticks_by_itself_until_it_is_closed(broker: Broker, clock: FakeClock) -> None:
    scheduler = Scheduler(hourly(broker), broker)
    scheduler.start()
    clock.until_waiting()
    for _ in range(2):
        clock.advance("1h")
        (lease,) = broker.lease("jobs", 10, wait="1h")
        broker.complete(lease)
        clock.until_waiting()
    scheduler.close()
    scheduler.close()
    clock.advance("1h")
    assert broker.lease("jobs") == []


def test_thread_without_periodic_tasks_is_not_started(broker: Broker) -> None:
    before = threading.active_count()
    scheduler = Scheduler(App(), broker)
    scheduler.start()
    assert threading.active_count() == before
    scheduler.close()
