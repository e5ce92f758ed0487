"""What a queue server promises its clients, over HTTP on every store: source ids, dead queues, attempts, expiry.

Everything is seen through the public calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.asgi import Client

from redrive.server.application import application
from redrive.testing import FakeClock

STORES = ("memory", "sqlite", "postgres", "redis")
SOURCE = "ab" * 16


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=STORES)
async def client(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Client]:
    url = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/jobs.db",
        "postgres": lambda: request.getfixturevalue("postgres_url"),
        "redis": lambda: request.getfixturevalue("redis_url"),
    }[request.param]()
    app = application(url, maintenance=False, clock=clock)
    await app.brokers.at("default")  # to create the tables of a store may take longer than a request has patience
    yield Client(app)
    await app.close()


async def step(client: Client) -> None:
    """What the maintenance does by itself where it runs."""
    await client.app.brokers.open["default"].run_maintenance()


async def queues(client: Client, **settings: Any) -> None:
    """A dead queue, and a queue that names it."""
    await client.ok("queues.create", name="morgue")
    await client.ok("queues.create", name="jobs", settings={"dead_queue": "morgue", **settings})


async def produce(client: Client, payload: Any = 1, **options: Any) -> str:
    answer = await client.ok("queue.produce", queue="jobs", items=[{"payload": payload, **options}])
    id: str = answer["items"][0]["id"]
    return id


async def lease(client: Client, queue: str = "jobs") -> dict[str, Any]:
    (item,) = (await client.ok("queue.lease", queue=queue, worker="worker"))["items"]
    found: dict[str, Any] = item
    return found


async def give_back(client: Client, **end: Any) -> dict[str, Any]:
    token = (await lease(client))["token"]
    (item,) = (await client.ok("queue.retry", queue="jobs", items=[{"token": token, **end}]))["items"]
    found: dict[str, Any] = item
    return found


async def listed(client: Client, queue: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.ok("items.list", queue=queue))["items"]
    return items


# Source ids


async def test_imported_item_keeps_the_id_it_had_as_its_source(client: Client) -> None:
    await client.ok("queues.create", name="jobs")
    receipt = await client.ok("items.import", queue="jobs", items=[{"source_id": SOURCE, "payload": {"n": 1}}])
    (item,) = await listed(client, "jobs")
    assert item["source_id"] == SOURCE
    assert item["id"] == receipt["items"][0]["id"] != SOURCE
    assert item["payload"] == {"n": 1}


async def test_item_of_a_known_source_is_ignored_without_an_error(client: Client) -> None:
    await client.ok("queues.create", name="jobs")
    first = await client.ok("items.import", queue="jobs", items=[{"source_id": SOURCE, "payload": 1}])
    second = await client.ok("items.import", queue="jobs", items=[{"source_id": SOURCE, "payload": 2}])
    assert second["items"] == [{"id": first["items"][0]["id"], "duplicate": True}]
    assert [item["payload"] for item in await listed(client, "jobs")] == [1]


async def test_source_is_known_after_the_copy_was_worked_on(client: Client) -> None:
    await client.ok("queues.create", name="jobs")
    await client.ok("items.import", queue="jobs", items=[{"source_id": SOURCE, "payload": 1}])
    await client.ok("queue.complete", queue="jobs", items=[{"token": (await lease(client))["token"]}])
    again = await client.ok("items.import", queue="jobs", items=[{"source_id": SOURCE, "payload": 1}])
    assert again["items"][0]["duplicate"]
    assert await listed(client, "jobs") == []


async def test_item_that_was_put_has_no_source(client: Client) -> None:
    await client.ok("queues.create", name="jobs")
    await produce(client)
    assert "source_id" not in (await listed(client, "jobs"))[0]


async def test_batch_with_one_known_source_imports_the_others(client: Client) -> None:
    await client.ok("queues.create", name="jobs")
    items = [{"source_id": f"{n:032x}", "payload": n} for n in range(3)]
    await client.ok("items.import", queue="jobs", items=items[:1])
    receipts = (await client.ok("items.import", queue="jobs", items=items))["items"]
    assert [receipt["duplicate"] for receipt in receipts] == [True, False, False]
    assert [item["payload"] for item in await listed(client, "jobs")] == [0, 1, 2]


async def test_item_that_cannot_be_imported_is_named_by_its_place(client: Client) -> None:
    await client.ok("queues.create", name="jobs")
    items = [{"source_id": SOURCE, "payload": 1}, {"source_id": "zz", "payload": 2}]
    error = await client.refused("items.import", 400, "invalid_name", queue="jobs", items=items)
    assert error["details"]["item"] == 1
    assert error["message"].startswith("item id 'zz' ")
    assert "line" not in error["message"]
    assert "imported" not in error["message"]
    assert await listed(client, "jobs") == []


async def test_line_that_cannot_be_imported_is_named_by_its_number(client: Client) -> None:
    await client.ok("queues.create", name="jobs")
    error = await client.refused("items.import", 400, "invalid_input", queue="jobs", lines=[{"format": 1}])
    assert error["message"] == "line 1: needs one of payload, payload_text and payload_base64"
    assert await listed(client, "jobs") == []


async def test_imported_item_has_the_times_and_counters_it_brings(client: Client) -> None:
    await client.ok("queues.create", name="jobs")
    times = {"put_at": "1970-01-01T00:00:00.000000Z", "expire_deadline": "2099-01-01T00:00:00.000000Z"}
    counted = {"deliveries": 5, "attempts": 4, "failures": 3, "losses": 2, "redrives": 1}
    item = {"source_id": SOURCE, "payload": "eA==", "encoding": "base64", "status": "failed", **times, **counted}
    await client.ok("items.import", queue="jobs", items=[item])
    (found,) = await listed(client, "jobs")
    assert {name: found[name] for name in times} == times
    assert found["counters"] == counted
    assert (found["status"], found["payload"], found["encoding"]) == ("failed", "eA==", "base64")


# Dead queues that make no sense


async def test_dead_queue_must_exist(client: Client) -> None:
    error = await client.refused(
        "queues.create", 400, "invalid_setting", name="jobs", settings={"dead_queue": "nowhere"}
    )
    assert "dead_queue 'nowhere' does not exist; create it first" in error["message"]


async def test_queue_is_not_its_own_dead_queue(client: Client) -> None:
    error = await client.refused("queues.create", 400, "invalid_setting", name="jobs", settings={"dead_queue": "jobs"})
    assert "dead_queue cannot reference itself" in error["message"]


async def test_dead_queue_has_no_dead_queue_of_its_own(client: Client) -> None:
    await queues(client)
    error = await client.refused("queues.create", 400, "invalid_setting", name="a", settings={"dead_queue": "jobs"})
    assert "dead_queue 'jobs' cannot have its own dead_queue" in error["message"]


async def test_rules_hold_from_the_other_side_and_for_updates(client: Client) -> None:
    await queues(client)
    await client.ok("queues.create", name="other")
    for name, dead_queue in (("morgue", "other"), ("jobs", "jobs"), ("other", "jobs"), ("jobs", "nowhere")):
        await client.refused("queues.update", 400, "invalid_setting", name=name, settings={"dead_queue": dead_queue})
    await client.refused("queues.delete", 409, "queue_in_use", name="morgue")


async def test_queue_with_a_good_dead_queue_is_created(client: Client) -> None:
    await queues(client)
    info = await client.ok("queues.info", name="jobs")
    assert info["settings"]["dead_queue"] == "morgue"
    await client.ok("queues.update", name="jobs", settings={"dead_queue": None})
    await client.ok("queues.delete", name="morgue")


# Attempts


async def test_item_that_was_given_back_too_often_moves_to_the_dead_queue(client: Client) -> None:
    await queues(client, max_attempts=2)
    id = await produce(client, {"n": 1}, headers={"tenant": "a"}, kind="welcome")
    first = await give_back(client)
    assert (first["status"], first["counters"]["attempts"], first["id"]) == ("pending", 1, id)
    second = await give_back(client)
    assert (second["queue"], second["dead_reason"], second["source_id"]) == ("morgue", "max_attempts", id)
    assert await listed(client, "jobs") == []
    (dead,) = await listed(client, "morgue")
    assert dead["id"] == second["id"] != id
    assert (dead["source_id"], dead["payload"], dead["kind"], dead["headers"]["tenant"]) == (
        id,
        {"n": 1},
        "welcome",
        "a",
    )
    assert (dead["counters"]["attempts"], dead["counters"]["deliveries"]) == (0, 2)
    assert dead["deaths"][0]["counters"]["attempts"] == 2


async def test_item_that_is_given_back_dead_is_kept_and_not_deleted(client: Client) -> None:
    await queues(client)
    id = await produce(client)
    assert (await give_back(client, dead=True, note="cannot work"))["dead_reason"] == "buried"
    (dead,) = await listed(client, "morgue")
    assert (dead["source_id"], dead["deaths"][0]["cause"]["title"]) == (id, "cannot work")


async def test_failure_that_is_reported_is_kept_with_the_item(client: Client) -> None:
    await queues(client)
    await produce(client)
    await give_back(client, error={"type": "smtp.Refused", "text": "no such user", "traceback": "line 7"})
    (dead,) = await listed(client, "morgue")
    failure = dead["history"][0]["failure"]
    assert (failure["type"], failure["text"], failure["traceback"]) == ("smtp.Refused", "no such user", "line 7")


async def test_lease_that_runs_out_too_often_is_a_death_too(client: Client, clock: FakeClock) -> None:
    await queues(client, max_attempts=2, lease_timeout="10s")
    id = await produce(client)
    for _ in range(2):
        await lease(client)
        clock.advance("11s")
        await step(client)
    assert await listed(client, "jobs") == []
    assert [item["source_id"] for item in await listed(client, "morgue")] == [id]


async def test_late_worker_is_told_and_changes_nothing(client: Client, clock: FakeClock) -> None:
    await queues(client, lease_timeout="10s")
    await produce(client)
    late = (await lease(client))["token"]
    clock.advance("11s")
    await step(client)
    newer = await lease(client)
    error = await client.refused("queue.complete", 409, "lease_lost", queue="jobs", items=[{"token": late}])
    assert error["details"]["status"] == "active"
    await client.ok("queue.complete", queue="jobs", items=[{"token": newer["token"]}])


async def test_item_given_back_for_later_comes_then_and_not_before(client: Client, clock: FakeClock) -> None:
    await queues(client)
    await produce(client)
    ended = await give_back(client, delay="1m")
    assert ended["status"] == "pending"
    assert (await client.ok("queue.lease", queue="jobs"))["items"] == []
    clock.advance("61s")
    assert (await lease(client))["attempts"] == 2


# Expiry


async def test_item_that_expired_moves_to_the_dead_queue_and_is_gone_from_its_own(
    client: Client, clock: FakeClock
) -> None:
    await queues(client, expire_timeout="1m")
    id = await produce(client)
    clock.advance("61s")
    await step(client)
    assert await listed(client, "jobs") == []
    (dead,) = await listed(client, "morgue")
    assert (dead["source_id"], dead["deaths"][0]["reason"]) == (id, "expired")


async def test_dead_letters_do_not_expire_where_they_lie(client: Client, clock: FakeClock) -> None:
    await queues(client, expire_timeout="1m")
    await client.ok("queues.update", name="morgue", settings={"expire_timeout": "1m"})
    await produce(client)
    clock.advance("61s")
    await step(client)
    clock.advance("10d")
    await step(client)
    assert len(await listed(client, "morgue")) == 1


async def test_item_that_expires_while_it_is_worked_on_dies_only_if_it_is_not_completed(
    client: Client, clock: FakeClock
) -> None:
    await queues(client, expire_timeout="1m", lease_timeout="1h")
    await produce(client)
    await produce(client)
    first, second = await lease(client), await lease(client)
    clock.advance("61s")
    await step(client)
    assert len(await listed(client, "jobs")) == 2
    await client.ok("queue.complete", queue="jobs", items=[{"token": first["token"]}])
    await client.ok("queue.retry", queue="jobs", items=[{"token": second["token"]}])
    assert [item["source_id"] for item in await listed(client, "morgue")] == [second["id"]]


# Without a dead queue


async def test_without_a_dead_queue_the_dead_stay_where_they_are(client: Client) -> None:
    await client.ok("queues.create", name="jobs", settings={"max_attempts": 1})
    id = await produce(client)
    await give_back(client)
    assert [(item["id"], item["status"]) for item in await listed(client, "jobs")] == [(id, "dead")]


async def test_the_dead_are_dropped_only_where_that_was_asked_for(client: Client) -> None:
    await client.ok("queues.create", name="jobs", settings={"max_attempts": 1, "on_dead": "drop"})
    await produce(client)
    assert (await give_back(client))["status"] == "removed"
    assert await listed(client, "jobs") == []
    (entry,) = (await client.ok("audit.list"))["entries"]
    assert (entry["actor"], entry["count"]) == ("on_dead", 1)


# The same twice


async def test_same_key_puts_once(client: Client) -> None:
    await client.ok("queues.create", name="jobs")
    first = await produce(client, {"n": 1}, idempotency_key="k")
    again = await client.ok("queue.produce", queue="jobs", items=[{"payload": {"n": 1}, "idempotency_key": "k"}])
    assert again["items"] == [{"id": first, "duplicate": True}]
    await client.refused(
        "queue.produce",
        409,
        "idempotency_conflict",
        queue="jobs",
        items=[{"payload": {"n": 2}, "idempotency_key": "k"}],
    )
    assert len(await listed(client, "jobs")) == 1


async def test_second_death_makes_a_second_letter_and_not_a_duplicate(client: Client) -> None:
    await queues(client, max_attempts=1)
    await produce(client)
    first = await give_back(client)
    redriven = (await client.ok("dead.redrive", ids=[first["id"]]))["items"][0]
    assert redriven["queue"] == "jobs"
    second = await give_back(client)
    assert second["queue"] == "morgue"
    assert len({first["id"], redriven["id"], second["id"]}) == 3
    assert [len(item["deaths"]) for item in await listed(client, "morgue")] == [2]


async def test_consumer_that_waits_is_woken_by_a_redrive(client: Client) -> None:
    await queues(client, max_attempts=1)
    await produce(client)
    dead = await give_back(client)
    waiting = client.begin("queue.lease", {"queue": "jobs", "wait": "30s"})
    while not len(client.app.waiting):
        await _tick()
    await client.ok("dead.redrive", ids=[dead["id"]])
    assert len((await waiting.answer()).json["items"]) == 1


async def _tick() -> None:
    import asyncio

    await asyncio.sleep(0.001)


async def test_results_stand_for_each_item_and_the_status_for_all(client: Client) -> None:
    await client.ok("queues.create", name="jobs")
    await produce(client)
    token = (await lease(client))["token"]
    items = [{"token": token}, {"token": "0" * 48}]
    error = await client.refused("queue.complete", 409, "lease_lost", queue="jobs", items=items)
    good, bad = error["results"]
    assert (good["queue"], bad["error"]["code"]) == ("jobs", "lease_lost")
    assert await listed(client, "jobs") == []
