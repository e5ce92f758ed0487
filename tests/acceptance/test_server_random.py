"""Requests of all kinds, made at random of the shapes in the OpenAPI document and of what earlier answers held, many at
once: none of them meets a mistake of the server, and none is left without an answer.

REDRIVE_THOROUGH=1: 100,000 requests.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.servers.asgi import Client
from tests.sizes import THOROUGH

from redrive.server.application import application
from redrive.server.request_limits import Limits

REQUESTS = 100_000 if THOROUGH else 12_000
AT_ONCE = 20
ANSWER_SECONDS = 300.0
DOCUMENT = json.loads((Path(__file__).resolve().parents[2] / "docs/reference/openapi.json").read_text())
OFTEN = {"/v1/queue.produce", "/v1/queue.lease", "/v1/queue.retry", "/v1/queue.complete"}
JUNK: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, -(2**70), 1.5, -0.0, 1e308, "", "\0", "é", "😀", "x" * 300, "x" * 5000, [], {},
    [[]], "2026-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "1h", "-5s", "any",
]  # fmt: skip
KEYS = ["a", "max_attempts", "dead_queue", "retry", "lease_timeout", "kind"]


class Maker:
    """Makes requests: mostly what a call takes, with ids, tokens and cursors that were seen."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seen: dict[str, list[str]] = defaultdict(list)
        self.seen |= {"id": ["0" * 32], "token": ["0" * 48], "cursor": ["x"], "last": ["0"]}

    def body(self, path: str) -> bytes:
        content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        text = json.dumps(self.value(content["schema"])).encode()
        if text and self.random.random() < 0.02:  # cut off
            text = text[: self.random.randrange(len(text))]
        if text and self.random.random() < 0.02:  # one byte is another
            place = self.random.randrange(len(text))
            text = text[:place] + bytes([self.random.randrange(256)]) + text[place + 1 :]
        return text

    def value(self, shape: Any, name: str = "", depth: int = 0) -> Any:
        pick = self.random
        if pick.random() < 0.04 or depth > 8:
            return pick.choice(JUNK)
        if "$ref" in shape:
            return self.value(DOCUMENT["components"]["schemas"][shape["$ref"].rpartition("/")[2]], name, depth)
        if "anyOf" in shape:
            return self.value(pick.choice(shape["anyOf"]), name, depth + 1)
        if "enum" in shape:
            return pick.choice(shape["enum"])
        match shape.get("type"):
            case "object" if "properties" in shape:
                wanted = shape.get("required", ())
                fields = [field for field in shape["properties"] if field in wanted or pick.random() < 0.2]
                return {field: self.value(shape["properties"][field], field, depth + 1) for field in fields}
            case "object":
                return {pick.choice(KEYS): self.value({}, "", depth + 1) for _ in range(pick.randrange(3))}
            case "array":
                return [
                    self.value(shape.get("items", {}), name, depth + 1) for _ in range(pick.choice([0, 1, 1, 1, 2, 3]))
                ]
            case "integer":
                return pick.choice([0, 1, 2, 5, 10, 100, 1000, 2**31 - 1, pick.randint(-5, 50)])
            case "number":
                return pick.choice([0, 0.5, 1, 10, 1e6])
            case "boolean":
                return pick.random() < 0.5
            case "string":
                return self.text(name, shape)
            case _:
                return pick.choice(JUNK)

    def text(self, name: str, shape: Any) -> str:
        pick = self.random
        match name:
            case "queue" | "name" | "to":
                return pick.choice(["emails", "emails", "emails", "slow", f"new-{pick.randrange(30)}"])
            case "id" | "ids" | "source_id":
                return pick.choice(self.seen["id"])
            case "token":
                return pick.choice(self.seen["token"])
            case "cursor":
                return pick.choice(self.seen["cursor"] + self.seen["id"])
            case "after" | "before":
                return pick.choice(self.seen["last"])
        if shape.get("format") == "date-time":
            return pick.choice(["2026-01-01T00:00:00Z", "2100-01-01T00:00:00+02:00", "x"])
        return pick.choice(["a", "1h", "30s", "ann", "emails", "one two", "x*", "!"])

    def learn(self, answer: bytes) -> None:
        for name in ("id", "token", "cursor", "last"):
            found = re.findall(rf'"{name}":"([^"]+)"', answer.decode())
            self.seen[name] = (self.seen[name] + found)[-30:]


@pytest.mark.timeout(3600 if THOROUGH else 600)
@pytest.mark.parametrize("seed", range(1))
async def test_no_request_meets_a_mistake_of_the_server(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    app = application("memory://", limits=Limits(wait_seconds=0.002), maintenance=False)
    client, maker = Client(app), Maker(seed)
    for name in ("emails", "slow"):
        await client.ok("queues.create", name=name)
    paths = [path for path in DOCUMENT["paths"] if path.startswith("/v1/") and not path.startswith("/v1/tokens.")]
    weights = [4 if path in OFTEN else 1 for path in paths]
    statuses: Counter[int] = Counter()
    served: set[str] = set()

    async def one(path: str) -> None:
        body = maker.body(path)
        answer = await asyncio.wait_for(client.send("POST", path, body), ANSWER_SECONDS)
        assert answer.status < 500, f"{path} {body!r}: {answer}"
        statuses[answer.status] += 1
        if answer.status == 200:
            served.add(path)
            maker.learn(answer.body)
        else:
            assert {"code", "message", "details"} <= set(answer.json)

    for number in range(REQUESTS // AT_ONCE):
        await asyncio.gather(*map(one, maker.random.choices(paths, weights, k=AT_ONCE)))
        if number % 100 == 0:
            await app.brokers.open["default"].run_maintenance()
    with capsys.disabled():
        print(f"\n{REQUESTS:,} requests: {dict(statuses)}, {len(served)} of {len(paths)} paths served")
    assert statuses[200] > REQUESTS / 5, "too little of it was anything that a server does"
    assert len(served) > len(paths) * 0.7
    await app.close()
