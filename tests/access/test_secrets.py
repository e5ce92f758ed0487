"""Nothing that is secret gets into a log line, a metric, a page, or the answer to somebody who may not see it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.access.test_routes import SAMPLES
from tests.access.world import FOREIGN, OWN, OWN_QUEUES, SECRET, World
from tests.servers.asgi import Answer, Client

from redrive.auth import token_store
from redrive.auth.principal import TOKENS_NAMESPACE, Role
from redrive.server.application import application
from redrive.server.asgi import Server
from redrive.server.authentication import TokenAuthenticator

PASSWORD = "hunter2hunter2"
PAGES = ("/", "/health", "/health/live", "/health/ready", "/metrics", "/openapi.json")


async def not_waited(seconds: float) -> None:
    """Whoever brings a wrong token does not wait here."""


class Door:
    """A server with tokens of every role, and the two sides in its store."""

    def __init__(self, app: Server) -> None:
        self.app = app
        self.texts: dict[str, str] = {}

    async def open(self) -> None:
        assert isinstance(self.app.access, TokenAuthenticator)
        self.app.access._pause = not_waited
        core = (await self.app.brokers.at("default")).core
        self.world = World(core)
        own = self.world.sides[OWN]
        for side in self.world.sides.values():
            side.own_token, side.own_id, side.own_letter_id = own.token, own.id, own.letter_id
        broker = await self.app.brokers.at(TOKENS_NAMESPACE)
        for role in Role:
            for limited in (False, True):
                name = f"{role}-{'some' if limited else 'all'}"
                queues = OWN_QUEUES if limited else ("*",)
                made = await broker.run_flow(
                    token_store.create(core.clock, name, (role,), queues=queues, created_by="test")
                )
                self.texts[name] = made.text

    def client(self, token: str | None) -> Client:
        return Client(self.app, **({} if token is None else {"authorization": f"Bearer {token}"}))


@pytest.fixture
async def door(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Door]:
    caplog.set_level(logging.DEBUG)
    door = Door(application("memory://", maintenance=False))
    await door.open()
    yield door
    await door.app.close()


def holds(answer: Answer, *secrets: str) -> bool:
    return any(secret in answer.body.decode("utf-8", "replace") + str(answer.headers) for secret in secrets)


async def make_trouble(door: Door) -> None:
    """Failures, conflicts and mistakes, with secrets in everything that a client can give."""
    client = door.client(door.texts["admin-all"])
    key = f"key-{SECRET}"
    item: dict[str, Any] = {"payload": {"password": SECRET}, "headers": {"h": SECRET}, "idempotency_key": key}
    await client.ok("queue.produce", queue="own-third", items=[item])
    await client.call("queue.produce", queue="own-third", items=[{**item, "payload": 1}])
    (leased,) = (await client.ok("queue.lease", queue="own-third"))["items"]
    error = {"type": "E", "text": f"cannot log in: password={PASSWORD}", "traceback": f"api_key={PASSWORD}"}
    await client.ok("queue.retry", queue="own-third", items=[{"token": leased["token"], "error": error}])
    await client.call("queue.complete", queue="own-third", items=[{"token": leased["token"], "result": SECRET}])
    for body in (b"{", b'{"queue": "own-third", "items": [{"payload": ' + SECRET.encode(), b"\xff" + SECRET.encode()):
        await client.send("POST", "/v1/queue.produce", body)


async def test_secrets_are_in_no_log_and_no_page(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    await make_trouble(door)
    secrets = [text.rpartition("_")[2] for text in door.texts.values()]
    answers = []
    for sample in SAMPLES:
        for side in (OWN, FOREIGN):
            for name in ("producer-all", "consumer-some", "viewer-all", "operator-some", "admin-some"):
                call = sample.make(door.world.sides[side])
                answers.append((name, await door.client(door.texts[name]).call(sample.route, **call)))
        broken = f"{door.texts['admin-all'][:-1]}x"
        answers.append(("nobody", await door.client(broken).call(sample.route)))
        answers.append(("nobody", await door.client(None).call(sample.route)))
    for page in PAGES:
        for name in ("viewer-all", "admin-all"):
            answers.append(("page", await door.client(door.texts[name]).send("GET", page)))
        answers.append(("page", await door.client(f"redrive_{SECRET}").send("GET", page)))
    for who, answer in answers:
        assert answer.status != 500, answer
        assert not holds(answer, *secrets), (who, answer)
        if who in ("page", "nobody", "producer-all", "viewer-all"):
            assert not holds(answer, SECRET, PASSWORD), (who, answer)
        if answer.status >= 400:
            assert not holds(answer, SECRET, PASSWORD), (who, answer)
    told = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    for secret in (SECRET, PASSWORD, *secrets):
        assert secret not in told


async def test_password_of_the_store_is_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app = application(f"postgresql://ann:{PASSWORD}@127.0.0.1:1/x?connect_timeout=1", maintenance=False)
    client = Client(app)
    answers = [await client.call("queues.list"), *[await client.send("GET", page) for page in PAGES]]
    await app.close()
    assert answers[0].status == 503
    for answer in answers:
        assert not holds(answer, PASSWORD), answer
    assert PASSWORD not in "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)


async def test_audit_rows_carry_the_name_of_the_token(door: Door) -> None:
    client = door.client(door.texts["operator-all"])
    await client.ok("queues.pause", name="own-jobs", actor="somebody-else")
    await client.ok("items.done", ids=[door.world.sides[OWN].id], actor="somebody-else")
    entries = (await client.ok("audit.list", limit=2))["entries"]
    assert [entry["actor"] for entry in entries] == ["operator-all", "operator-all"]


async def test_tokens_are_made_listed_and_revoked_over_the_server(door: Door) -> None:
    admin = door.client(door.texts["admin-all"])
    made = await admin.ok("tokens.create", name="shop", roles=["producer"], queues=["own-*"], expires_in="90d")
    listed = {token["name"]: token for token in (await admin.ok("tokens.list"))["tokens"]}
    assert listed["shop"]["created_by"] == "admin-all"
    assert listed["shop"]["roles"] == ["producer"]
    assert "token" not in listed["shop"]
    assert made["token"].rpartition("_")[2] not in str(listed)
    gate = door.app.access
    assert isinstance(gate, TokenAuthenticator)
    gate._read_at = None  # as if a second had passed
    await door.client(made["token"]).ok("queue.produce", queue="own-jobs", items=[{"payload": 1}])
    await door.client(made["token"]).refused(
        "queue.produce", 403, "forbidden", queue="foreign-jobs", items=[{"payload": 1}]
    )
    await admin.ok("tokens.revoke", name="shop")
    await admin.refused("tokens.revoke", 404, "not_found", name="shop")
    gate._read_at = None
    await door.client(made["token"]).refused(
        "queue.produce", 401, "unauthorized", queue="own-jobs", items=[{"payload": 1}]
    )
