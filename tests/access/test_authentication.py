"""The gate: who is let in by which header, and until when."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import pytest

from redrive import AsyncBroker, connect_async
from redrive.auth import token_store
from redrive.auth.principal import TOKENS_NAMESPACE, UNAUTHENTICATED_ADMIN, Role
from redrive.auth.token_store import NewToken
from redrive.contract.admin_calls import Register
from redrive.errors import InvalidInput, Overloaded, StoreUnavailable, Unauthorized
from redrive.server import authentication as gates
from redrive.server.authentication import TokenAuthenticator
from redrive.server.broker_pool import BrokerPool
from redrive.server.http_server import may_bind
from redrive.telemetry.metrics import TOKENS_REFUSED
from redrive.testing import FakeClock


class Door:
    """A gate on a store in memory, with its time in the hands of the test."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.now = 0.0
        self.pauses: list[float] = []
        self.broker = connect_async("memory://", clock=self.clock, maintenance=False, namespace=TOKENS_NAMESPACE)
        self.gate = TokenAuthenticator(BrokerPool(self.opened), seconds=lambda: self.now, pause=self.pause)

    def opened(self, namespace: str) -> AsyncBroker:
        assert namespace == TOKENS_NAMESPACE
        return self.broker

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def make(self, name: str, *roles: str, **more: Any) -> NewToken:
        return await self.broker.run_flow(
            token_store.create(self.clock, name, roles or ("viewer",), created_by="test", **more)
        )

    async def identify(self, header: str | None) -> Any:
        return await self.gate.identify({} if header is None else {b"authorization": header.encode("latin-1")})

    async def close(self) -> None:
        await self.gate.close()
        await self.broker.close()


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    door = Door()
    yield door
    await door.close()


async def test_everybody_is_let_in_until_there_is_a_token(door: Door) -> None:
    assert await door.identify(None) is UNAUTHENTICATED_ADMIN
    assert await door.identify("Bearer whatever") is UNAUTHENTICATED_ADMIN
    made = await door.make("ann", "admin")
    door.now = 1.0
    with pytest.raises(Unauthorized):
        await door.identify(None)
    assert (await door.identify(f"Bearer {made.text}")).name == "ann"


async def test_token_says_what_it_is_for(door: Door) -> None:
    made = await door.make("ann", "producer", "viewer", namespaces=["team-*"], queues=["a", "b-*"])
    found = await door.identify(f"bearer  {made.text} ")
    assert found.roles == {Role.PRODUCER, Role.VIEWER}
    assert (found.namespaces, found.queues) == (("team-*",), ("a", "b-*"))


async def test_wrong_headers_are_answered_alike(door: Door) -> None:
    made, other = await door.make("ann"), await door.make("bob")
    over = await door.make("carol", expires="1m")
    door.clock.advance("2m")
    secret = made.text.rpartition("_")[2]
    wrong = [
        "",
        "Bearer",
        "Bearer ",
        "Basic dXNlcjpwYXNz",
        "Bearer nonsense",
        f"Bearer {made.text}0",
        f"Bearer {made.text[:-1]}",
        f"Bearer {made.text[:-1]}{'0' if made.text[-1] != '0' else '1'}",
        f"Bearer redrive_{other.token.id}_{secret}",
        f"Bearer redrive_ffffffff_{secret}",
        f"Bearer redrive__{secret}",
        f"Bearer {over.text}",
        "Bearer \xff\xfe",
    ]
    said = set()
    for header in wrong:
        with pytest.raises(Unauthorized) as refusal:
            await door.identify(header)
        said.add(str(refusal.value))
    assert len(said) == 1
    assert len(door.pauses) == len(wrong)
    counts = door.broker.metrics.counts(TOKENS_REFUSED)
    assert sum(counts.values()) == len(wrong)


async def test_secrets_are_compared_in_constant_time(door: Door) -> None:
    made = await door.make("ann")
    wrong = ("Bearer redrive_ffffffff_" + "0" * 48, f"Bearer {made.text[:-1]}", "nonsense")
    with patch.object(hmac, "compare_digest", wraps=hmac.compare_digest) as compare:
        await door.identify(f"Bearer {made.text}")
        assert compare.call_count == 1
        for header in wrong:
            compare.reset_mock()
            with pytest.raises(Unauthorized):
                await door.identify(header)
            assert compare.call_count == 2  # as it is known, and as it is in the store


async def test_only_a_digest_of_the_secret_is_kept(door: Door) -> None:
    made = await door.make("ann")
    (kept,) = await door.broker.run_flow(token_store.list_all())
    secret = made.text.rpartition("_")[2]
    assert secret not in repr(kept)
    assert secret not in repr(made)
    assert len(secret) * 4 >= 160
    assert kept.digest == token_store.digest_of(secret)


async def test_revoked_token_is_refused_within_a_second(door: Door) -> None:
    made, _ = await door.make("ann"), await door.make("bob")
    await door.identify(f"Bearer {made.text}")
    assert await door.broker.run_flow(token_store.revoke("ann", "test"))
    door.now += gates.STALE_SECONDS
    with pytest.raises(Unauthorized):
        await door.identify(f"Bearer {made.text}")


async def test_new_token_is_known_at_once(door: Door) -> None:
    first = await door.make("ann")
    await door.identify(f"Bearer {first.text}")
    second = await door.make("bob")
    door.now += 0.001
    assert (await door.identify(f"Bearer {second.text}")).name == "bob"


async def test_tokens_are_not_read_for_every_request(door: Door) -> None:
    made = await door.make("ann")
    await door.identify(f"Bearer {made.text}")
    with patch.object(door.broker.core, "read", side_effect=AssertionError):
        for _ in range(100):
            await door.identify(f"Bearer {made.text}")


async def test_known_token_is_found_without_a_read(door: Door) -> None:
    made = await door.make("ann")
    known = {b"authorization": f"Bearer {made.text}".encode()}
    assert door.gate.known(known) is None
    await door.identify(f"Bearer {made.text}")
    with patch.object(door.broker.core, "read", side_effect=AssertionError):
        principal = door.gate.known(known)
        assert principal is not None
        assert principal.name == "ann"
        for header in (None, "Bearer x", "Bearer redrive_00000009_" + "0" * 48):
            assert door.gate.known({} if header is None else {b"authorization": header.encode()}) is None
        door.now = gates.READ_AGAIN_SECONDS
        assert door.gate.known(known) is None, "tokens are to be read again, which this does not begin"
        await asyncio.sleep(0)


async def test_known_token_stays_known_while_tokens_are_read_again(door: Door) -> None:
    made = await door.make("ann")
    known = {b"authorization": f"Bearer {made.text}".encode()}
    await door.identify(f"Bearer {made.text}")
    door.now = gates.READ_AGAIN_SECONDS
    await door.identify(f"Bearer {made.text}")  # begins to read, and does not wait
    assert door.gate.known(known) is not None
    door.now = gates.STALE_SECONDS
    assert door.gate.known(known) is None


async def test_everybody_is_known_until_there_is_a_token(door: Door) -> None:
    await door.identify(None)
    assert door.gate.known({}) is UNAUTHENTICATED_ADMIN
    await door.make("ann")
    door.now = gates.STALE_SECONDS
    with pytest.raises(Unauthorized):
        await door.identify(None)
    assert door.gate.known({}) is None


async def test_token_expires_by_the_clock_of_the_store(door: Door) -> None:
    made = await door.make("ann", expires="1m")
    door.clock.advance("59s")
    await door.identify(f"Bearer {made.text}")
    door.clock.advance("1s")
    with pytest.raises(Unauthorized):
        await door.identify(f"Bearer {made.text}")


async def test_to_revoke_the_last_token_opens_nothing(door: Door) -> None:
    await door.make("ann")
    with pytest.raises(Unauthorized):
        await door.identify(None)
    await door.broker.run_flow(token_store.revoke("ann", "test"))
    door.now += 10
    with pytest.raises(Unauthorized):
        await door.identify(None)


async def test_expired_tokens_keep_the_door_shut(door: Door) -> None:
    await door.make("ann", expires="1m")
    door.clock.advance("1h")
    with pytest.raises(Unauthorized):
        await door.identify(None)


async def test_tokens_last_known_go_on_while_the_store_does_not_answer(door: Door) -> None:
    made = await door.make("ann")
    await door.identify(f"Bearer {made.text}")
    down = patch.object(door.broker.core, "read", side_effect=StoreUnavailable("memory", "gone"))
    with down:
        door.now += gates.GRACE_SECONDS - 1
        assert (await door.identify(f"Bearer {made.text}")).name == "ann"
        door.now += 2
        with pytest.raises(StoreUnavailable):
            await door.identify(f"Bearer {made.text}")
        with pytest.raises(StoreUnavailable):
            await door.identify(None)
    assert (await door.identify(f"Bearer {made.text}")).name == "ann"


async def test_nobody_is_let_in_before_tokens_could_be_read(door: Door) -> None:
    with (
        patch.object(door.broker.core, "read", side_effect=StoreUnavailable("memory", "gone")),
        pytest.raises(StoreUnavailable),
    ):
        await door.identify(None)


async def test_token_that_cannot_be_read_keeps_the_door_shut_and_lets_nobody_in(door: Door) -> None:
    door.broker.core.store.commit([Register("token", "odd", b"not json")])
    with pytest.raises(Unauthorized):
        await door.identify(None)
    with pytest.raises(Unauthorized):
        await door.identify("Bearer redrive__" + "0" * 48)


async def test_guessing_is_slowed_and_bounded(door: Door) -> None:
    made = await door.make("ann")
    await door.identify(f"Bearer {made.text}")
    held = asyncio.Event()

    async def pause(seconds: float) -> None:
        assert seconds == gates.PENALTY_SECONDS
        await held.wait()

    door.gate._pause = pause
    guesses = [asyncio.create_task(door.identify("Bearer x")) for _ in range(gates.MAX_PENALTIES)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await door.identify("Bearer x")
    assert (await door.identify(f"Bearer {made.text}")).name == "ann"  # whoever knows his token waits for nobody
    held.set()
    results = await asyncio.gather(*guesses, return_exceptions=True)
    assert {type(result) for result in results} == {Unauthorized}


async def test_names_of_tokens_are_unique(door: Door) -> None:
    await door.make("ann")
    with pytest.raises(InvalidInput, match="there is a token called 'ann'"):
        await door.make("ann")


@pytest.mark.parametrize(
    "given",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "retention"},
        {"name": "maintenance"},
        {"roles": ()},
        {"roles": ("king",)},
        {"namespaces": ()},
        {"queues": ("a\0",)},
        {"queues": ("x" * 200,)},
        {"queues": tuple(f"q{n}" for n in range(101))},
        {"expires": "0s"},
        {"expires": "soon"},
    ],
    ids=str,
)
async def test_token_that_makes_no_sense_is_refused(door: Door, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await door.broker.run_flow(
            token_store.create(door.clock, **{"name": "ann", "roles": ("viewer",), "created_by": "test", **given})
        )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
def test_server_without_tokens_listens_on_this_machine(host: str) -> None:
    may_bind(host, has_tokens=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "jobs.example", ""])
def test_server_without_tokens_does_not_listen_elsewhere(host: str) -> None:
    with pytest.raises(InvalidInput, match="redrive token create"):
        may_bind(host, has_tokens=False)
    may_bind(host, has_tokens=True)
    may_bind(host, has_tokens=False, allow_anyone=True)
