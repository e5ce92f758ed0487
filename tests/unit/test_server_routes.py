"""Every route of the server: once as it should be called, and once as it should not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.servers.asgi import Client

from redrive.model.options import OperationOptions
from redrive.server.application import application
from redrive.server.routes.table import ROUTES

NO_ID = "0" * 32
NO_TOKEN = "0" * 48
LINE = {
    "format": 1,
    "id": "ab" * 16,
    "queue": "jobs",
    "status": "pending",
    "payload": {"n": 1},
    "content_type": "application/json",
    "headers": {},
    "priority": 5,
    "put_at": 1_700_000_000_000_000,
    "counters": {},
}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    app = application(f"sqlite:///{tmp_path}/jobs.db", maintenance=False, actor="server")
    client = Client(app)
    await client.ok("queues.create", name="morgue")
    await client.ok("queues.create", name="jobs", settings={"max_attempts": 2, "retry": {"attempts": 1}})
    yield client
    await app.close()


class Bench:
    """Items in every state that a route needs."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.ok = client.ok

    async def put(self, payload: Any = None, **options: Any) -> str:
        answer = await self.ok("queue.produce", queue="jobs", items=[{"payload": payload or {"n": 1}, **options}])
        id: str = answer["items"][0]["id"]
        return id

    async def leased(self) -> str:
        await self.put()
        token: str = (await self.ok("queue.lease", queue="jobs", worker="worker"))["items"][0]["token"]
        return token

    async def dead(self) -> str:
        token = await self.leased()
        error = {"type": "TimeoutError", "text": "the mail server refused"}
        ended = await self.ok("queue.retry", queue="jobs", items=[{"token": token, "error": error}])
        assert ended["items"][0]["status"] == "dead"
        id: str = ended["items"][0]["id"]
        return id

    async def archived(self) -> str:
        id = await self.dead()
        await self.ok("dead.archive", ids=[id])
        return id

    async def captured(self, **options: Any) -> str:
        call = {"task_id": "wf_1", "task": {"type": "sweep"}, "error": "Connection timeout", "extra": {"repos": ["a"]}}
        answer = await self.ok("capture.enqueue", **{**call, **options})
        id: str = answer["item_id"]
        return id

    async def operation(self) -> str:
        await self.dead()
        answer = await self.ok("operations.start", verb="redrive", queue="jobs", paused=True)
        id: str = answer["operation"]["id"]
        return id


Story = Callable[[Bench], Awaitable[None]]
STORIES: dict[str, Story] = {}
REFUSALS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "queues.create": (400, "invalid_setting", {"name": "x", "settings": {"dlq": "morgue"}}),
    "queues.update": (404, "queue_not_found", {"name": "x", "settings": {}}),
    "queues.list": (400, "invalid_input", {"limit": 0}),
    "queues.stats": (400, "invalid_input", {"limit": 0}),
    "queues.info": (404, "queue_not_found", {"name": "x"}),
    "queues.pause": (404, "queue_not_found", {"name": "x"}),
    "queues.resume": (404, "queue_not_found", {"name": "x"}),
    "queues.delete": (404, "queue_not_found", {"name": "x"}),
    "queue.stats": (404, "queue_not_found", {"queue": "x"}),
    "queue.clear": (400, "invalid_input", {"queue": "jobs", "statuses": ["active"]}),
    "queue.produce": (404, "queue_not_found", {"queue": "x", "items": [{"payload": 1}]}),
    "queue.lease": (404, "queue_not_found", {"queue": "x"}),
    "items.lease": (404, "item_not_found", {"ids": [NO_ID]}),
    "queue.complete": (409, "lease_lost", {"queue": "jobs", "items": [{"token": NO_TOKEN}]}),
    "queue.retry": (409, "lease_lost", {"queue": "jobs", "items": [{"token": NO_TOKEN, "error": "no"}]}),
    "queue.extend": (400, "invalid_name", {"queue": "jobs", "items": [{"token": "x"}]}),
    "items.list": (404, "queue_not_found", {"queue": "x"}),
    "items.get": (404, "item_not_found", {"id": NO_ID}),
    "items.get_many": (400, "invalid_name", {"ids": ["x"]}),
    "items.by_key": (404, "queue_not_found", {"queue": "x", "keys": ["k"]}),
    "items.result": (404, "result_unavailable", {"id": NO_ID}),
    "items.import": (400, "invalid_input", {"queue": "jobs"}),
    "items.delete": (404, "item_not_found", {"ids": [NO_ID]}),
    "items.retry": (400, "invalid_name", {"ids": ["x"]}),
    "items.done": (404, "item_not_found", {"ids": [NO_ID]}),
    "items.fail": (400, "invalid_input", {"ids": [NO_ID]}),
    "items.bury": (404, "item_not_found", {"ids": [NO_ID]}),
    "items.move": (400, "invalid_name", {"ids": [NO_ID], "to": "no name"}),
    "items.reschedule": (400, "invalid_input", {"ids": [NO_ID], "delay": 1, "enqueue_at": "2100-01-01T00:00:00Z"}),
    "items.undo": (404, "item_not_found", {"ids": [NO_ID]}),
    "items.hold": (400, "invalid_input", {"ids": [NO_ID]}),
    "items.unhold": (400, "invalid_name", {"held_by": ""}),
    "dead.find": (400, "invalid_input", {"cursor": "x"}),
    "dead.groups": (404, "queue_not_found", {"queue": "x"}),
    "dead.search": (400, "invalid_input", {"words": "!"}),
    "dead.redrive": (400, "invalid_input", {}),
    "dead.archive": (404, "item_not_found", {"ids": [NO_ID]}),
    "dead.restore": (404, "item_not_found", {"ids": [NO_ID]}),
    "dead.purge": (409, "confirm_mismatch", {"queue": "jobs", "confirm": 7}),
    "operations.start": (400, "invalid_input", {"verb": "drop", "queue": "jobs"}),
    "operations.list": (400, "invalid_input", {"limit": "x"}),
    "operations.info": (404, "operation_not_found", {"id": NO_ID}),
    "operations.cancel": (404, "operation_not_found", {"id": NO_ID}),
    "operations.pause": (404, "operation_not_found", {"id": NO_ID}),
    "operations.resume": (404, "operation_not_found", {"id": NO_ID}),
    "operations.set_rate": (400, "invalid_input", {"id": NO_ID, "rate": -1}),
    "operations.undo": (404, "operation_not_found", {"id": NO_ID}),
    "breakers.list": (404, "queue_not_found", {"queue": "x"}),
    "breakers.open": (400, "invalid_input", {"queue": "jobs", "kind": "weather"}),
    "breakers.close": (404, "breaker_not_open", {"queue": "jobs"}),
    "feed.read": (404, "queue_not_found", {"queue": "x"}),
    "audit.list": (400, "invalid_input", {"before": "x"}),
    "workers.list": (400, "invalid_input", {"queue": "jobs"}),
    "moves.list": (413, "request_too_large", {"limit": 1001}),
    "capture.enqueue": (400, "invalid_input", {"task_id": "t", "task": 1, "error": "e", "retry_policy": "sometimes"}),
    "capture.list": (404, "queue_not_found", {}),
    "capture.get": (404, "not_found", {"queue": "jobs", "task_id": "t"}),
    "capture.retry": (404, "not_found", {"queue": "jobs", "task_id": NO_ID}),
    "capture.archive": (404, "queue_not_found", {"task_id": "t"}),
    "capture.restore": (404, "not_found", {"queue": "jobs", "task_id": "t"}),
    "capture.clear": (409, "confirm_mismatch", {"queue": "jobs", "confirm": 3}),
    "capture.statistics": (404, "queue_not_found", {"queue": "captured"}),
}


def story(name: str) -> Callable[[Story], Story]:
    def add(function: Story) -> Story:
        STORIES[name] = function
        return function

    return add


@story("queues.create")
async def _(bench: Bench) -> None:
    queue = await bench.ok("queues.create", name="new", settings={"lease_timeout": "30s", "dead_queue": "morgue"})
    assert queue["settings"]["lease_timeout"] == "30s"
    again = await bench.ok("queues.create", name="new", settings=queue["settings"])
    assert again == queue


@story("queues.update")
async def _(bench: Bench) -> None:
    retry = {
        "attempts": 3,
        "delay": "exponential",
        "base": "2s",
        "cap": "1m",
        "by_class": {"network": {"delays": ["1s"]}},
    }
    settings = {"max_attempts": 4, "retry": retry, "expire_timeout": "1h"}
    queue = await bench.ok("queues.update", name="jobs", settings=settings, actor="ann")
    assert queue["settings"]["retry"] == retry
    assert (await bench.ok("queues.update", name="jobs", settings=queue["settings"]))["settings"] == queue["settings"]
    queue = await bench.ok("queues.update", name="jobs", settings={"expire_timeout": None})
    assert "expire_timeout" not in queue["settings"]


@story("queues.list")
async def _(bench: Bench) -> None:
    first = await bench.ok("queues.list", limit=1)
    rest = await bench.ok("queues.list", limit=1, cursor=first["cursor"])
    assert [queue["name"] for queue in first["queues"] + rest["queues"]] == ["jobs", "morgue"]
    assert "cursor" not in rest


@story("queues.stats")
async def _(bench: Bench) -> None:
    await bench.dead()
    first = await bench.ok("queues.stats", limit=1)
    rest = await bench.ok("queues.stats", limit=1, cursor=first["cursor"])
    assert [(stats["queue"], stats["dead"]) for stats in first["stats"] + rest["stats"]] == [("jobs", 1), ("morgue", 0)]
    assert "cursor" not in rest


@story("queues.info")
async def _(bench: Bench) -> None:
    await bench.put()
    info = await bench.ok("queues.info", name="jobs")
    assert (info["settings"]["max_attempts"], info["stats"]["pending"]) == (2, 1)


@story("queues.pause")
async def _(bench: Bench) -> None:
    await bench.put()
    assert (await bench.ok("queues.pause", name="jobs"))["paused"]
    assert not (await bench.ok("queue.lease", queue="jobs"))["items"]


@story("queues.resume")
async def _(bench: Bench) -> None:
    await bench.ok("queues.pause", name="jobs")
    await bench.put()
    assert not (await bench.ok("queues.resume", name="jobs"))["paused"]
    assert (await bench.ok("queue.lease", queue="jobs"))["items"]


@story("queues.delete")
async def _(bench: Bench) -> None:
    await bench.put()
    await bench.client.refused("queues.delete", 409, "confirm_mismatch", name="jobs")
    assert await bench.ok("queues.delete", name="jobs", confirm=1) == {"removed": 1}
    assert [queue["name"] for queue in (await bench.ok("queues.list"))["queues"]] == ["morgue"]


@story("queue.stats")
async def _(bench: Bench) -> None:
    await bench.dead()
    stats = await bench.ok("queue.stats", queue="jobs")
    assert (stats["dead"], stats["dead_letters"], stats["pending"]) == (1, 1, 0)
    totals = {name: stats[f"{name}_total"] for name in ("dead", "redriven", "archived", "exhausted", "captured")}
    assert totals == {"dead": 1, "redriven": 0, "archived": 0, "exhausted": 1, "captured": 0}


@story("queue.clear")
async def _(bench: Bench) -> None:
    await bench.dead()
    for _ in range(3):
        await bench.put()
    held = (await bench.ok("queue.lease", queue="jobs"))["items"]
    assert await bench.ok("queue.clear", queue="jobs", dry_run=True) == {"removed": 0, "left": 2}
    await bench.client.refused("queue.clear", 409, "confirm_mismatch", queue="jobs", confirm=3)
    cleared = await bench.ok("queue.clear", queue="jobs", confirm=2, actor="ann")
    assert (cleared["removed"], cleared["left"], cleared["undo_until"] > "2026") == (2, 0, True)
    stats = await bench.ok("queue.stats", queue="jobs")
    assert (stats["pending"], stats["active"], stats["dead"], stats["archived"]) == (0, len(held), 1, 2)
    assert (await bench.ok("audit.list"))["entries"][0]["actor"] == "ann"
    # What is dropped is not dropped again, and goes for good only where that is said.
    assert await bench.ok("queue.clear", queue="jobs", statuses=["archived"]) == {"removed": 0, "left": 0}
    both = {"queue": "jobs", "statuses": ["dead", "archived"], "destructive": True}
    assert await bench.ok("queue.clear", **both, confirm=3) == {"removed": 3, "left": 0}
    stats = await bench.ok("queue.stats", queue="jobs")
    assert (stats["active"], stats["dead"], stats["archived"]) == (len(held), 0, 0)


RETRY = {"attempts": 3, "delay": "exponential", "base": "1m", "cap": "1h", "by_type": {"app.Busy": {"cooldown": "5s"}}}


@story("queue.produce")
async def _(bench: Bench) -> None:
    items = [
        {"payload": {"n": 1}, "kind": "welcome", "reference": "r-1", "headers": {"a": "b"}, "priority": 9},
        {"payload": "text", "encoding": "utf8", "idempotency_key": "k"},
        {"payload": "text", "encoding": "utf8", "idempotency_key": "k"},
        {"payload": 1, "enqueue_at": "2100-01-01T00:00:00Z", "retry": RETRY, "max_attempts": 7, "max_losses": 0},
        {"payload": 1, "delay": "1h", "expire_at": "2100-01-01T00:00:00Z"},
    ]
    with_key = await bench.ok("queue.produce", queue="jobs", items=items)
    assert [item["duplicate"] for item in with_key["items"]] == [False, False, True, False, False]
    leased = (await bench.ok("queue.lease", queue="jobs", limit=10))["items"]
    assert [item["payload"] for item in leased] == [{"n": 1}, "text"]
    assert (leased[0]["kind"], leased[0]["reference"], leased[0]["headers"]["a"]) == ("welcome", "r-1", "b")
    assert (leased[1]["encoding"], leased[1]["content_type"]) == ("utf8", "text/plain; charset=utf-8")
    later = await bench.ok("items.get", id=with_key["items"][3]["id"])
    assert (await bench.ok("items.get", id=with_key["items"][4]["id"]))[
        "expire_deadline"
    ] == "2100-01-01T00:00:00.000000Z"
    assert later["overrides"] == {"max_attempts": 7, "max_losses": 0, "retry": RETRY}


@story("queue.lease")
async def _(bench: Bench) -> None:
    ids = [await bench.put() for _ in range(3)]
    leased = (await bench.ok("queue.lease", queue="jobs", limit=2, worker="w", lease_timeout=5))["items"]
    assert [item["id"] for item in leased] == ids[:2]
    assert all(len(item["token"]) == 48 and item["attempts"] == 1 for item in leased)


@story("items.lease")
async def _(bench: Bench) -> None:
    _, id = await bench.put(), await bench.dead()
    (leased,) = (await bench.ok("items.lease", ids=[id], include_dead=True, worker="w", lease_timeout=5))["items"]
    assert (leased["id"], leased["attempts"], leased["dead_reason"]) == (id, 2, "retries_exhausted")


@story("queue.complete")
async def _(bench: Bench) -> None:
    await bench.ok("queues.update", name="jobs", settings={"keep_completed": "1h"})
    token = await bench.leased()
    puts = [{"queue": "morgue", "payload": {"next": True}}]
    done = await bench.ok("queue.complete", queue="jobs", items=[{"token": token, "result": {"sum": 3}, "puts": puts}])
    item = await bench.ok("items.get", id=done["items"][0]["id"])
    assert (item["status"], item["result"]["payload"]) == ("completed", {"sum": 3})
    assert (await bench.ok("queue.stats", queue="morgue"))["pending"] == 1


@story("queue.retry")
async def _(bench: Bench) -> None:
    tokens = [await bench.leased() for _ in range(4)]
    ends = [
        {"dead": True, "note": "never"},
        {"error": {"type": "app.Broken", "text": "no", "status_code": 503, "traceback": "line 1"}},
        {"retry_at": "2100-01-01T00:00:00Z"},
        {"counted": False},
    ]
    items = [{"token": token, **end} for token, end in zip(tokens, ends, strict=True)]
    ended = (await bench.ok("queue.retry", queue="jobs", items=items))["items"]
    assert [item["status"] for item in ended] == ["dead", "dead", "pending", "pending"]
    assert [item.get("dead_reason") for item in ended] == ["buried", "retries_exhausted", None, None]
    assert ended[2]["ready_at"].startswith("2100-01-01T00:00:0")
    assert [item["counters"]["attempts"] for item in ended] == [1, 1, 1, 0]
    failure = (await bench.ok("items.get", id=ended[1]["id"]))["history"][0]["failure"]
    assert (failure["type"], failure["error_class"], failure["traceback"]) == ("app.Broken", "transient", "line 1")


@story("queue.extend")
async def _(bench: Bench) -> None:
    token = await bench.leased()
    before = await bench.ok("queue.extend", queue="jobs", items=[{"token": token}])
    after = await bench.ok("queue.extend", queue="jobs", items=[{"token": token}], lease_timeout="1h")
    assert after["items"][0]["deadline"] > before["items"][0]["deadline"]


@story("items.list")
async def _(bench: Bench) -> None:
    ids = [await bench.put() for _ in range(5)]
    first = await bench.ok("items.list", queue="jobs", limit=2)
    second = await bench.ok("items.list", queue="jobs", limit=2, cursor=first["cursor"])
    by_id = await bench.ok("items.list", queue="jobs", cursor=ids[1])
    assert [item["id"] for item in first["items"] + second["items"]] == ids[:4]
    assert [item["id"] for item in by_id["items"]] == ids[2:]
    assert "cursor" not in by_id


@story("items.get")
async def _(bench: Bench) -> None:
    item = await bench.ok("items.get", id=await bench.put({"password": "hunter2", "n": 1}))
    assert item["payload"]["n"] == 1
    assert "hunter2" not in str(item)
    assert "hunter2" in str(await bench.ok("items.get", id=item["id"], redacted=False))


@story("items.get_many")
async def _(bench: Bench) -> None:
    ids = [await bench.dead(), await bench.put({"password": "hunter2"}), NO_ID]
    found = (await bench.ok("items.get_many", ids=ids))["items"]
    assert [item and (item["id"], item["status"]) for item in found] == [(ids[0], "dead"), (ids[1], "pending"), None]
    assert "hunter2" not in str(found)
    assert "hunter2" in str(await bench.ok("items.get_many", ids=ids, redacted=False))


@story("items.by_key")
async def _(bench: Bench) -> None:
    id = await bench.put({"n": 7}, idempotency_key="k")
    found = (await bench.ok("items.by_key", queue="jobs", keys=["unknown", "k", "k"]))["items"]
    assert found[0] is None
    assert found[1] == found[2]
    assert (found[1]["id"], found[1]["payload"], found[1]["idempotency_key"]) == (id, {"n": 7}, "k")
    await bench.client.refused("items.by_key", 400, "invalid_input", queue="jobs", keys=[])


@story("items.result")
async def _(bench: Bench) -> None:
    token = await bench.leased()
    done = [{"token": token, "result": [1, 2], "keep_result": "1h"}]
    id = (await bench.ok("queue.complete", queue="jobs", items=done))["items"][0]["id"]
    assert (await bench.ok("items.result", id=id))["payload"] == [1, 2]


@story("items.import")
async def _(bench: Bench) -> None:
    item = {"source_id": "cd" * 16, "payload": {"n": 1}, "kind": "old", "attempts": 1}
    first = await bench.ok("items.import", queue="jobs", items=[item])
    assert (await bench.ok("items.import", queue="jobs", items=[item]))["items"][0]["duplicate"]
    found = await bench.ok("items.get", id=first["items"][0]["id"])
    assert (found["source_id"], found["kind"], found["counters"]["attempts"]) == ("cd" * 16, "old", 1)
    line = await bench.ok("items.import", queue="jobs", lines=[LINE])
    assert (await bench.ok("items.get", id=line["items"][0]["id"]))["source_id"] == LINE["id"]


@story("items.delete")
async def _(bench: Bench) -> None:
    answer = await bench.ok("items.delete", ids=[await bench.put()], actor="ann")
    (dropped,) = answer["items"]
    assert (dropped["status"], dropped["undo_until"] > "2026") == ("archived", True)
    assert not (await bench.ok("items.list", queue="jobs"))["items"]
    for asked in ({"status": "archived"}, {"archived": True}, {"dropped": True}):
        (item,) = (await bench.ok("items.list", queue="jobs", **asked))["items"]
        assert (item["id"], item["history"][-1]["event"], item["history"][-1]["actor"]) == (
            dropped["id"],
            "dropped",
            "ann",
        )
    (restored,) = (await bench.ok("items.undo", ids=[dropped["id"]]))["items"]
    assert (restored["status"], "undo_until" in restored) == ("pending", False)


@story("items.retry")
async def _(bench: Bench) -> None:
    answer = await bench.ok("items.retry", ids=[await bench.dead()])
    assert answer["items"][0]["status"] == "pending"


@story("items.done")
async def _(bench: Bench) -> None:
    assert (await bench.ok("items.done", ids=[await bench.put()]))["items"][0]["status"] == "removed"


@story("items.fail")
async def _(bench: Bench) -> None:
    answer = await bench.ok("items.fail", ids=[await bench.put()], error="the customer left")
    assert answer["items"][0]["dead_reason"] == "retries_exhausted"


@story("items.bury")
async def _(bench: Bench) -> None:
    answer = await bench.ok("items.bury", ids=[await bench.put()], note="not now")
    assert answer["items"][0]["dead_reason"] == "buried"


@story("items.move")
async def _(bench: Bench) -> None:
    answer = await bench.ok("items.move", ids=[await bench.put()], to="morgue")
    assert answer["items"][0]["queue"] == "morgue"


@story("items.reschedule")
async def _(bench: Bench) -> None:
    id = await bench.put()
    answer = await bench.ok("items.reschedule", ids=[id], enqueue_at="2100-01-01T00:00:00Z", note="not now")
    assert answer["items"][0]["ready_at"] == "2100-01-01T00:00:00.000000Z"
    assert (await bench.ok("items.get", id=id))["history"][-1]["note"] == "not now"


@story("items.undo")
async def _(bench: Bench) -> None:
    id = await bench.dead()
    await bench.ok("dead.redrive", ids=[id])
    assert (await bench.ok("items.undo", ids=[id]))["items"][0]["status"] == "dead"


@story("items.hold")
async def _(bench: Bench) -> None:
    assert await bench.ok("items.hold", ids=[await bench.put()], held_by="ann") == {"changed": 1}
    assert not (await bench.ok("queue.lease", queue="jobs"))["items"]


@story("items.unhold")
async def _(bench: Bench) -> None:
    await bench.put(held_by="ann")
    assert await bench.ok("items.unhold", held_by="ann") == {"changed": 1}
    assert (await bench.ok("queue.lease", queue="jobs"))["items"]


@story("dead.find")
async def _(bench: Bench) -> None:
    id = await bench.dead()
    found = await bench.ok(
        "dead.find", queue="jobs", error_type="TimeoutError", since="1h", until="2100-01-01T00:00:00Z"
    )
    assert [item["id"] for item in found["items"]] == [id]
    assert not (await bench.ok("dead.find", error_class="validation"))["items"]


@story("dead.groups")
async def _(bench: Bench) -> None:
    await bench.dead()
    await bench.dead()
    (group,) = (await bench.ok("dead.groups"))["groups"]
    assert (group["count"], group["queues"]) == (2, {"jobs": 2})


@story("dead.search")
async def _(bench: Bench) -> None:
    id = await bench.dead()
    assert [item["id"] for item in (await bench.ok("dead.search", words="mail refus*"))["items"]] == [id]
    assert not (await bench.ok("dead.search", words="disk"))["items"]


@story("dead.redrive")
async def _(bench: Bench) -> None:
    ids = [await bench.dead() for _ in range(3)]
    edited = await bench.ok("dead.redrive", ids=ids[:1], patch={"n": 2}, note="mended")
    assert (await bench.ok("items.get", id=edited["items"][0]["id"]))["payload"] == {"n": 2}
    assert (await bench.ok("dead.redrive", queue="jobs", dry_run=True))["plan"]["changed"] == 2
    operation = (await bench.ok("dead.redrive", queue="jobs", rate=100, note="all of them"))["operation"]
    assert (operation["verb"], operation["expected"], operation["rate"]) == ("redrive", 2, 100)


@story("dead.archive")
async def _(bench: Bench) -> None:
    id = await bench.dead()
    assert (await bench.ok("dead.archive", ids=[id]))["items"][0]["status"] == "archived"
    assert (await bench.ok("dead.archive", all=True))["operation"]["verb"] == "archive"


@story("dead.restore")
async def _(bench: Bench) -> None:
    assert (await bench.ok("dead.restore", ids=[await bench.archived()]))["items"][0]["status"] == "dead"


@story("dead.purge")
async def _(bench: Bench) -> None:
    assert (await bench.ok("dead.purge", ids=[await bench.archived()]))["items"][0]["status"] == "removed"
    await bench.archived()
    assert (await bench.ok("dead.purge", queue="jobs", confirm=1))["operation"]["expected"] == 1
    listed = [await bench.archived(), await bench.archived()]
    assert (await bench.ok("dead.purge", ids=listed, limit=1, confirm=1))["operation"]["limit"] == 1


@story("operations.start")
async def _(bench: Bench) -> None:
    await bench.put()
    plan = await bench.ok("operations.start", verb="move", queue="jobs", to="morgue", dry_run=True)
    assert plan["plan"]["queues"] == {"morgue": 1}
    await bench.put()
    plan = await bench.ok("operations.start", verb="move", queue="jobs", to="morgue", limit=1, dry_run=True)
    assert (plan["plan"]["total"], plan["plan"]["queues"]) == (2, {"morgue": 1})
    started = await bench.ok("operations.start", verb="move", queue="jobs", to="morgue", actor="ann")
    assert started["operation"]["actor"] == "ann"
    options = {"to": "morgue", "rate": 5.0, "canary": 2, "canary_success_ratio": 0.5, "note": "why", "actor": "ann"}
    options["limit"] = 3
    assert {*options} == {*OperationOptions.__annotations__} - {"confirm", "paused"}
    for call in ({"verb": "redrive", "paused": True, **options}, options):
        told = await bench.ok("operations.start" if "verb" in call else "dead.redrive", queue="jobs", **call)
        assert {name: told["operation"][name] for name in options} == options


@story("operations.list")
async def _(bench: Bench) -> None:
    id = await bench.operation()
    assert [each["id"] for each in (await bench.ok("operations.list", unfinished=True))["operations"]] == [id]


@story("operations.info")
async def _(bench: Bench) -> None:
    id = await bench.operation()
    assert (await bench.ok("operations.info", id=id))["operation"]["status"] == "paused"


@story("operations.cancel")
async def _(bench: Bench) -> None:
    id = await bench.operation()
    assert (await bench.ok("operations.cancel", id=id))["operation"]["status"] == "cancelled"


@story("operations.pause")
async def _(bench: Bench) -> None:
    id = await bench.operation()
    await bench.ok("operations.resume", id=id)
    assert (await bench.ok("operations.pause", id=id))["operation"]["status"] == "paused"


@story("operations.resume")
async def _(bench: Bench) -> None:
    id = await bench.operation()
    assert (await bench.ok("operations.resume", id=id))["operation"]["status"] == "running"


@story("operations.set_rate")
async def _(bench: Bench) -> None:
    id = await bench.operation()
    assert (await bench.ok("operations.set_rate", id=id, rate=5))["operation"]["rate"] == 5


@story("operations.undo")
async def _(bench: Bench) -> None:
    id = await bench.operation()
    await bench.ok("operations.cancel", id=id)
    assert (await bench.ok("operations.undo", id=id))["operation"]["verb"] == "undo"


@story("capture.enqueue")
async def _(bench: Bench) -> None:
    id = await bench.captured(metadata={"team": "x"})
    error = {"type": "TimeoutError", "text": "and again", "traceback": "line 7"}
    again = await bench.ok(
        "capture.enqueue", task_id="wf_1", task={"type": "sweep"}, extra={"repos": ["a"]}, error=error
    )
    assert again == {"task_id": "wf_1", "item_id": id, "duplicate": True}
    task = await bench.ok("capture.get", task_id="wf_1")
    assert (task["error"], task["last_error"], task["traceback"]) == ("Connection timeout", "and again", "line 7")
    assert (task["task"], task["extra"], task["metadata"]) == ({"type": "sweep"}, {"repos": ["a"]}, {"team": "x"})


@story("capture.list")
async def _(bench: Bench) -> None:
    await bench.captured()
    await bench.captured(task_id="wf_2", max_retries=0, error="permission denied", retry_policy="linear")

    async def listed(**where: Any) -> list[str]:
        return [task["task_id"] for task in (await bench.ok("capture.list", **where))["tasks"]]

    assert await listed() == ["wf_2", "wf_1"]
    assert await listed(status="exhausted") == await listed(policy="linear") == ["wf_2"]
    assert await listed(category="network") == ["wf_1"]
    assert await listed(before="2020-01-01T00:00:00Z") == await listed(due_before="2020-01-01T00:00:00Z") == []
    page = await bench.ok("capture.list", limit=1)
    assert await listed(limit=1, cursor=page["cursor"]) == ["wf_1"]


@story("capture.get")
async def _(bench: Bench) -> None:
    id = await bench.captured()
    task = await bench.ok("capture.get", task_id="wf_1")
    assert (task["status"], task["retry_policy"], task["max_retries"]) == ("pending", "exponential", 3)
    assert task["next_retry_at"] > task["failed_at"]
    assert await bench.ok("capture.get", task_id=id) == task


@story("capture.retry")
async def _(bench: Bench) -> None:
    id = await bench.captured(max_retries=0)
    answer = await bench.ok("capture.retry", task_id="wf_1", actor="ann")
    assert (answer["item_id"], answer["success"], answer["is_due"]) == (id, False, True)
    assert not answer["is_processor_running"]
    assert answer["message"].startswith("it is due now, and waits: no retry processor of 'captured' runs")
    assert (await bench.ok("queue.lease", queue="captured"))["items"][0]["id"] == id
    assert (await bench.ok("audit.list"))["entries"][0]["actor"] == "ann"


@story("capture.archive")
async def _(bench: Bench) -> None:
    id = await bench.captured(max_retries=0)
    answer = await bench.ok("capture.archive", task_id="wf_1")
    assert answer == {"task_id": "wf_1", "item_id": id, "status": "archived"}


@story("capture.restore")
async def _(bench: Bench) -> None:
    await bench.captured(max_retries=0)
    await bench.ok("capture.archive", task_id="wf_1")
    assert (await bench.ok("capture.restore", task_id="wf_1"))["status"] == "exhausted"


@story("capture.clear")
async def _(bench: Bench) -> None:
    await bench.captured(max_retries=0)
    answer = await bench.ok("capture.clear", actor="ann")
    assert (answer["cleared"], answer["undo_until"][:4].isdigit()) == (1, True)
    assert (await bench.ok("audit.list"))["entries"][0]["actor"] == "ann"
    assert (await bench.ok("capture.get", task_id="wf_1"))["status"] == "archived"
    await bench.ok("capture.restore", task_id="wf_1")
    assert (await bench.ok("capture.clear", confirm=1)) == {"cleared": 1}
    assert (await bench.ok("capture.list", status="archived"))["tasks"] == []


@story("capture.statistics")
async def _(bench: Bench) -> None:
    await bench.captured()
    found = await bench.ok("capture.statistics")
    assert (found["queue_size"], found["max_size"], found["is_processor_running"]) == (1, 10_000, False)
    assert found["status_breakdown"]["pending"] == found["error_categories"]["network"] == 1
    assert found["lifetime_stats"]["enqueued_total"] == 1


@story("breakers.list")
async def _(bench: Bench) -> None:
    assert (await bench.ok("breakers.list"))["breakers"] == []
    await bench.put()
    await bench.ok("breakers.open", queue="jobs", open_for="10m", note="maintenance of the mail server")
    (found,) = (await bench.ok("breakers.list"))["breakers"]
    assert (found["queue"], found["kind"], found["state"], found["waiting"]) == ("jobs", "queue", "open", 1)
    assert found["reason"] == "maintenance of the mail server"
    assert found["next_probe_at"] > found["opened_at"]
    assert (await bench.ok("breakers.list", queue="jobs"))["breakers"] == [found]
    assert (await bench.ok("breakers.list", queue="morgue"))["breakers"] == []
    assert (await bench.ok("queue.stats", queue="jobs"))["breakers"] == [found]
    assert (await bench.ok("queues.info", name="jobs"))["stats"]["breakers"] == [found]
    stats = {each["queue"]: each["breakers"] for each in (await bench.ok("queues.stats"))["stats"]}
    assert stats == {"jobs": [found], "morgue": []}


@story("breakers.open")
async def _(bench: Bench) -> None:
    await bench.put()
    opened = await bench.ok("breakers.open", queue="jobs", actor="ann")
    assert (opened["state"], opened["opened_by"], opened["reason"]) == ("open", "ann", "opened by an operator")
    assert not (await bench.ok("queue.lease", queue="jobs"))["items"]
    assert await bench.ok("breakers.open", queue="jobs", actor="bob") == opened
    (entry,) = (await bench.ok("audit.list"))["entries"]
    assert (entry["actor"], entry["queue"]) == ("ann", "jobs")


@story("breakers.close")
async def _(bench: Bench) -> None:
    await bench.dead()
    (group,) = (await bench.ok("dead.groups"))["groups"]
    kind = f"fingerprint:{group['fingerprint']}"
    opened = await bench.ok("breakers.open", queue="jobs", kind=kind)
    await bench.ok("breakers.open", queue="jobs", kind=group["error_class"])
    await bench.ok("breakers.open", queue="morgue", kind=group["error_class"])
    (marked,) = (await bench.ok("dead.groups"))["groups"]
    assert [each["kind"] for each in marked["breakers"]] == [kind, group["error_class"]]
    assert await bench.ok("breakers.close", queue="jobs", kind=kind, actor="ann") == {"released": 0}
    assert opened["kind"] not in [each["kind"] for each in (await bench.ok("breakers.list"))["breakers"]]
    assert (await bench.ok("audit.list"))["entries"][0]["actor"] == "ann"


@story("feed.read")
async def _(bench: Bench) -> None:
    id = await bench.dead()
    page = await bench.ok("feed.read", after="0", queue="jobs")
    assert [(entry["kind"], entry["id"]) for entry in page["entries"]] == [("dead", id)]
    assert not (await bench.ok("feed.read", after=page["last"], wait="10ms"))["entries"]


@story("audit.list")
async def _(bench: Bench) -> None:
    await bench.ok("items.delete", ids=[await bench.put()])
    (entry,) = (await bench.ok("audit.list"))["entries"]
    assert (entry["actor"], entry["verb"]) == ("server", "drop")
    assert not (await bench.ok("audit.list", before=entry["number"]))["entries"]


@story("workers.list")
async def _(bench: Bench) -> None:
    assert (await bench.ok("workers.list"))["workers"] == []


@story("moves.list")
async def _(bench: Bench) -> None:
    assert (await bench.ok("moves.list"))["moves"] == []


def _names() -> list[str]:
    return [route.name for route in ROUTES if not route.name.startswith("tokens.")]


def test_every_route_has_a_story_and_a_refusal() -> None:
    """Those of tokens have theirs where tokens are."""
    assert set(STORIES) == set(REFUSALS) == set(_names())


@pytest.mark.parametrize("name", _names())
async def test_route_does_what_it_says(client: Client, name: str) -> None:
    await STORIES[name](Bench(client))


@pytest.mark.parametrize("name", _names())
async def test_route_refuses_what_is_wrong(client: Client, name: str) -> None:
    status, code, arguments = REFUSALS[name]
    answer = await client.refused(name, status, code, **arguments)
    assert set(answer) in ({"code", "message", "details"}, {"code", "message", "details", "results"})


@pytest.mark.parametrize("name", _names())
async def test_field_that_nobody_knows_is_refused(client: Client, name: str) -> None:
    answer = await client.refused(name, 400, "invalid_input", **{"surprise": 1, **REFUSALS[name][2]})
    assert "surprise" in answer["message"]
