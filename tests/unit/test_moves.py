"""Moves between stores as one program sees them: which stores it knows, threads, back-off, and what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.until import until

from redrive import Broker, Dead, DeadReason, PendingMove, connect, connect_async
from redrive.broker.flows.moves import LONGEST_PAUSE, MoveBackoff
from redrive.clock import Instant
from redrive.errors import Closed, InvalidInput, InvalidName, QueueFull, StoreUnavailable
from redrive.model.duration import SECOND
from redrive.testing.conformance.actions import kill, take, take_all, values
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock

FULL = QueueFull("morgue", 1, 1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with connect(
        "memory://", store_name="here", stores={"there": "memory://"}, clock=clock, maintenance=False
    ) as broker:
        broker.on_store("there").create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue@there")
        yield broker


@pytest.mark.parametrize(
    ("name", "stores", "text"),
    [
        (None, {"there": "memory://"}, "stores= needs store_name="),
        ("here", {"here": "memory://"}, "the name of this store itself"),
        ("here", {"there": 7}, "no URL under 'there'"),
        ("here", ["there"], "a table from names to URLs"),
    ],
)
def test_stores_that_cannot_be_are_refused(name: Any, stores: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        connect("memory://", store_name=name, stores=stores)


@pytest.mark.parametrize("name", ["", "a@b", 7])
def test_bad_name_of_a_store_is_refused(name: Any) -> None:
    with pytest.raises(InvalidName):
        connect("memory://", store_name=name)
    with pytest.raises(InvalidName):
        connect("memory://", store_name="here", stores={name: "memory://"})


def test_all_stores_of_a_program_know_each_other(broker: Broker) -> None:
    there = broker.on_store("there")
    assert there.on_store("here").get_queue("jobs").name == "jobs"
    assert there.on_store("there").get_queue("morgue").source_queues == ("jobs@here",)
    with pytest.raises(InvalidInput, match="knows no store 'nowhere', only here, there"):
        there.on_store("nowhere")


def test_stores_are_closed_with_the_broker_that_opened_them(clock: FakeClock) -> None:
    broker = connect("memory://", store_name="here", stores={"there": "memory://"}, clock=clock, maintenance=False)
    there = broker.on_store("there")
    broker.close()
    with pytest.raises(Closed):
        there.list_queues()
    with pytest.raises(Closed):
        broker.on_store("there").list_queues()


def test_store_that_was_closed_by_itself_is_opened_again(clock: FakeClock, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/there.db"
    with connect("memory://", store_name="here", stores={"there": url}, clock=clock, maintenance=False) as broker:
        broker.on_store("there").create_queue("morgue")
        broker.on_store("there").close()
        assert broker.on_store("there").get_queue("morgue").name == "morgue"


def test_stores_are_opened_when_they_are_needed(tmp_path: Path) -> None:
    with connect("memory://", store_name="here", stores={"there": f"sqlite:///{tmp_path}/there.db"}) as broker:
        broker.create_queue("jobs")
        broker.run_maintenance()
        assert list(tmp_path.iterdir()) == []
        broker.on_store("there")
        assert (tmp_path / "there.db").exists()


def test_item_arrives_by_itself() -> None:
    with connect("memory://", store_name="here", stores={"there": "memory://"}) as broker:
        there = broker.on_store("there")
        there.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue@there")
        kill(broker, "x")
        until(lambda: there.count() == 1 and broker.count() == 0)
        there.redrive(there.find().items[0].id)
        assert values([take(broker, wait=PATIENCE_SECONDS)]) == ["x"]
        until(lambda: there.count(status="any") == 0)


def test_items_arrive_at_once_and_not_with_the_next_step_of_the_lifecycle(clock: FakeClock) -> None:
    """The clock stands still, so that no step comes by itself after the first."""
    with connect("memory://", store_name="here", stores={"there": "memory://"}, clock=clock) as broker:
        there = broker.on_store("there")
        there.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue@there")
        clock.until_waiting(2)
        for n in range(20):
            kill(broker, n)
        until(lambda: there.count() == 20 and broker.count() == 0)


def test_store_that_cannot_be_opened_stops_no_other(tmp_path: Path, clock: FakeClock) -> None:
    stores = {"broken": f"sqlite:///{tmp_path}/missing/x.db", "there": "memory://"}
    with connect("memory://", store_name="here", stores=stores, clock=clock, maintenance=False) as broker:
        broker.create_queue("jobs")
        broker.on_store("there").create_queue("inbox")
        with pytest.raises(StoreUnavailable):
            broker.on_store("broken")
        with pytest.raises(StoreUnavailable):
            broker.create_queue("doomed", dead_queue="morgue@broken")
        first, second = (broker.put("jobs", n).id for n in range(2))
        assert broker.move(first, "inbox@broken").status == "moving", "it is taken there when the store is back"
        broker.move(second, "inbox@there")
        assert broker.run_maintenance().moved == 1
        (moving,) = broker.moves()
        assert (moving.id, moving.to) == (first, "inbox@broken")
        assert "does not exist" in (moving.problem or "")
        assert str(moving).endswith(str(moving.problem))


def test_move_is_left_to_a_program_that_knows_the_store(tmp_path: Path, clock: FakeClock) -> None:
    urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("here", "there")}
    options: dict[str, Any] = {"clock": clock, "maintenance": False}
    with connect(urls["here"], store_name="here", stores={"there": urls["there"]}, **options) as knowing:
        knowing.on_store("there").create_queue("morgue")
        knowing.create_queue("jobs", dead_queue="morgue@there")
        with connect(urls["here"], store_name="here", **options) as ignorant:
            assert kill(ignorant, "x").status == "moving"
            assert ignorant.run_maintenance().moved == 0
            assert ignorant.moves()[0].problem == "this program knows no store 'there'"
        assert knowing.run_maintenance().moved == 1
        assert knowing.on_store("there").count() == 1


def test_item_that_came_from_a_store_of_the_same_name_is_not_sent_to_itself(tmp_path: Path, clock: FakeClock) -> None:
    urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("main", "archive")}
    options: dict[str, Any] = {"clock": clock, "maintenance": False}
    with connect(urls["main"], store_name="main", stores={"archive": urls["archive"]}, **options) as broker:
        broker.on_store("archive").create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue@archive")
        kill(broker, "x")
        broker.run_maintenance()
    with connect(urls["archive"], store_name="main", **options) as misnamed:
        misnamed.create_queue("jobs")
        with pytest.raises(InvalidInput, match="came from a store called 'main'"):
            misnamed.redrive(misnamed.find().items[0].id)
        assert misnamed.plan_operation("redrive").skipped == {"invalid_input": 1}
        assert misnamed.redrive(misnamed.find().items[0].id, to="jobs").queue == "jobs"


def test_what_is_on_its_way_for_long_is_stuck(broker: Broker, clock: FakeClock) -> None:
    kill(broker)
    clock.advance("5m")
    assert [moving.stuck for moving in broker.moves()] == [False]
    clock.advance("1s")
    assert [moving.stuck for moving in broker.moves()] == [True]


@pytest.mark.parametrize("limit", [0, 1001, "7"])
def test_bad_limit_is_refused(broker: Broker, limit: Any) -> None:
    with pytest.raises(InvalidInput):
        broker.moves(limit)


def test_back_off_doubles_up_to_a_minute() -> None:
    trials, now, pauses = MoveBackoff(), Instant(0), []
    for _ in range(9):
        trials.failed("morgue@there", FULL, now)
        pause = next(n for n in range(1, 100) if trials.is_due("morgue@there", Instant(now + n * SECOND)))
        pauses.append(pause)
        now = Instant(now + pause * SECOND)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert trials.is_due("other@there", now)
    trials.went_well("morgue@there")
    assert (trials.is_due("morgue@there", now), trials.problem("morgue@there")) == (True, None)


def test_clock_that_was_set_back_keeps_nothing_waiting() -> None:
    trials = MoveBackoff()
    trials.failed("morgue@there", FULL, Instant(1000 * LONGEST_PAUSE))
    assert trials.is_due("morgue@there", Instant(0))


def test_asynchronous_face_does_the_same(clock: FakeClock) -> None:
    async def scenario() -> None:
        stores = {"there": "memory://"}
        async with connect_async(
            "memory://", store_name="here", stores=stores, clock=clock, maintenance=False
        ) as broker:
            there = await broker.on_store("there")
            await there.create_queue("morgue")
            await broker.create_queue("jobs", dead_queue="morgue@there")
            await broker.put("jobs", "x")
            (lease,) = await broker.lease("jobs")
            assert (await broker.fail(lease, "boom")).status == "moving"
            (moving,) = await broker.moves()
            assert isinstance(moving, PendingMove)
            assert (await broker.run_maintenance()).moved == 1
            (letter,) = (await there.find()).items
            await there.redrive(letter.id)
            assert (await there.run_maintenance()).moved == 1
            (lease,) = await broker.lease("jobs")
            assert lease.value == "x"

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_verdict_of_a_program_may_name_another_store(broker: Broker) -> None:
    broker.put_many("jobs", range(2))
    first, second = take_all(broker)
    with pytest.raises(InvalidInput, match="knows no store 'nowhere'"):
        broker.fail(first, "boom", verdict=Dead(DeadReason.POLICY, to="x@nowhere"))
    assert broker.fail(first, "boom", verdict=Dead(DeadReason.POLICY, to="morgue@there")).status == "moving"
    broker.create_queue("near")
    assert broker.fail(second, "boom", verdict=Dead(DeadReason.POLICY, to="near@here")).queue == "near"
