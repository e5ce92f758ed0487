"""The script of Redis against the rules: the same calls, on the same items, give the same results and keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.servers.redis import Server
from tests.simulation.histories import random_history
from tests.simulation.redis_keys import all_keys
from tests.simulation.test_lanes import (
    ALIKE,
    BANG,
    BOOM,
    DEAD,
    LANES,
    LATER,
    MANY,
    TAIL,
    MakeCalls,
    furnish,
    leases,
    odd_among_alike,
    version,
)
from tests.simulation.twins import Ask, Twins, opens
from tests.sizes import THOROUGH

from redrive import Broker, Dead, DeadReason, RetryVerdict, Status
from redrive.contract import Call
from redrive.contract.item_calls import Complete, Extend, Leased, LeaseItems, NewItem, Put, ReturnLease, Settle
from redrive.contract.maintenance_calls import Promote
from redrive.contract.queries import ReadFeed
from redrive.contract.replies import REPLY_TO, REQUEST_ID
from redrive.model.duration import MINUTE
from redrive.model.judge import OutcomeKind
from redrive.model.payload import JSON
from redrive.stores.redis import store as redis_store
from redrive.stores.redis.store import RedisStore

SEEDS = 200 if THOROUGH else 4
EVERY = 20
SIDES = ("script", "rules")


class ScriptTwins(Twins):
    """Two namespaces on one server: the first has the script, the second follows the rules."""

    def __init__(self, seed: int, server: Server, prefix: str, patch: pytest.MonkeyPatch) -> None:
        self._server, self._prefixes, self._patch = server, [f"{prefix}_{side}" for side in SIDES], patch
        self.followed: list[Counter[type]] = [Counter(), Counter()]
        super().__init__(seed, *(opens(f"{server.url}?prefix={each}") for each in self._prefixes))

    def _answer(self, side: int, question: Ask) -> Any:
        with self._on_side(side):
            return super()._answer(side, question)

    @contextmanager
    def _on_side(self, side: int) -> Iterator[None]:
        commit_by_rules = RedisStore._commit_by_rules

        def count(store: RedisStore, calls: Sequence[Call], now: Any) -> Any:
            self.followed[side].update(map(type, calls))
            return commit_by_rules(store, calls, now)

        with self._patch.context() as patch:
            patch.setattr(RedisStore, "_commit_by_rules", count)
            if SIDES[side] == "rules":
                patch.setattr(redis_store, "is_fast_path", lambda call: False)
            yield

    def compare_keys(self) -> None:
        self.ask("keys", lambda side, _: all_keys(self._server, self._prefixes[side]))

    def compare(self, make: MakeCalls) -> None:
        """Both sides carry out calls in one transaction."""

        def carry_out(side: int, broker: Broker) -> Any:
            calls = make(broker)
            self.followed[side].clear()
            results = broker.core.store.commit(calls, self.clocks[side].now()).results
            return [replace(each, leases=tuple(each.leases)) if isinstance(each, Leased) else each for each in results]

        self.ask("calls", carry_out)
        self.read("feed", lambda _: ReadFeed(limit=1000))
        self.compare_keys()


@pytest.fixture
def twins(redis_server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptTwins]:
    found = ScriptTwins(0, redis_server, redis_url.partition("prefix=")[2], monkeypatch)
    yield found
    for broker in found.brokers:
        broker.close()


@pytest.mark.parametrize("name", ALIKE)
def test_failures_leave_the_keys_that_the_rules_leave(name: str, twins: ScriptTwins) -> None:
    furnish(twins)
    twins.compare(ALIKE[name])
    twins.compare(ALIKE[name])  # and once more, with groups and counts that are there
    by_script, by_rules = twins.followed
    assert not by_script, "the script was not taken"
    assert by_rules, "the rules were not followed"


ENDS = [name for name in LANES if name.startswith(("death", "retries", "losses", "releases", "returns", "end of"))]
BY_RULES = {"deaths to a dead queue": 12, "deaths between retries": 4, "deaths to a queue that was no dead queue": 12}
"""Calls that the script does not take: the item moves."""


@pytest.mark.parametrize("name", ENDS)
def test_ends_of_deliveries_leave_the_keys_that_the_rules_leave(name: str, twins: ScriptTwins) -> None:
    furnish(twins)
    twins.compare(LANES[name])
    by_script, by_rules = twins.followed
    assert by_script[Settle] == BY_RULES.get(name, 0)
    assert by_rules, "the rules were not followed"


def test_failures_that_are_odd_are_left_to_the_rules(twins: ScriptTwins) -> None:
    furnish(twins)
    twins.compare(odd_among_alike)
    by_script, by_rules = twins.followed
    assert 0 < by_script[Settle] < by_rules[Settle]


def deaths_with_replies(broker: Broker) -> list[Call]:
    """Of items that ask for a reply between others; one names the header in its payload only."""
    now = version(broker, "plain")
    asking = Put("plain", (NewItem(b"0", JSON, headers={REPLY_TO: "kept", REQUEST_ID: "r"}),))
    for put in ([asking, Put("plain", (NewItem(REPLY_TO.encode(), JSON),))], [asking]):
        broker.core.store.commit(put, broker.core.clock.now())
    held = broker.lease("plain", 3, worker="w") + leases(broker, "plain", 3)
    order = [held[3], held[0], held[4], held[1], held[2], held[5]]
    return [Settle(lease.token, OutcomeKind.FAILED, DEAD, now, BOOM) for lease in order]


def test_deaths_that_are_answered_are_left_to_the_rules(twins: ScriptTwins) -> None:
    furnish(twins)
    twins.compare(deaths_with_replies)
    assert twins.followed[0][Settle] == 5  # the first that asks for one, and those after it


def calls_after_a_death_that_is_answered(broker: Broker) -> list[Call]:
    """Each of them changes what the next one gives."""
    now = version(broker, "plain")
    (asking,), (retried, released) = with_reply(broker), leases(broker, "plain", 2)
    due_now = RetryVerdict(0, Status.FAILED)
    return [
        Settle(asking.token, OutcomeKind.FAILED, DEAD, now, BOOM),
        Settle(retried.token, OutcomeKind.FAILED, due_now, now, BOOM),
        Settle(released.token, OutcomeKind.RELEASED, TAIL, now),
        Promote(10),
        *(LeaseItems("plain", 1, worker) for worker in "xyx"),
    ]


def test_all_calls_after_one_that_is_left_are_left(twins: ScriptTwins) -> None:
    furnish(twins)
    twins.compare(calls_after_a_death_that_is_answered)
    assert twins.followed[0] == {Settle: 3, Promote: 1, LeaseItems: 3}


def calls_after_a_refused_put(broker: Broker) -> list[Call]:
    """Of three puts that are merged, one is refused."""
    broker.create_queue("small", max_size=3)
    broker.put("small", "active")
    (active,) = broker.lease("small", worker="w")
    puts = [Put("small", (NewItem(b"1", JSON, is_plain=True),)) for _ in range(3)]
    return [*puts, Complete(active.token), LeaseItems("small", 5, "w")]


def test_calls_after_a_refused_put_are_executed_by_the_script(twins: ScriptTwins) -> None:
    furnish(twins)
    twins.compare(calls_after_a_refused_put)
    assert not twins.followed[0], "the script was not taken"


def second_calls(broker: Broker) -> list[Call]:
    """Calls for deliveries that ended before in the same batch, or that go on."""
    now = version(broker, "plain")
    dead, retried, extended, asking, completed = leases(broker, "plain", 4) + with_reply(broker)

    def failed(lease: Any, verdict: Any) -> Call:
        return Settle(lease.token, OutcomeKind.FAILED, verdict, now, BOOM)

    return [
        *(failed(dead, DEAD), Complete(dead.token), failed(dead, TAIL), Extend(dead.token), failed(dead, DEAD)),
        *(failed(retried, LATER), failed(retried, DEAD), Complete(retried.token), ReturnLease(retried.token)),
        *(Extend(extended.token, MINUTE), failed(extended, DEAD), Extend(extended.token, MINUTE)),
        *(Complete(asking.token), failed(asking, DEAD)),
        *(failed(completed, DEAD), Complete(completed.token), failed(completed, DEAD)),
    ]


def with_reply(broker: Broker) -> list[Any]:
    asking = Put("plain", (NewItem(b"0", JSON, headers={REPLY_TO: "kept", REQUEST_ID: "r"}),))
    broker.core.store.commit([asking], broker.core.clock.now())
    return broker.lease("plain", 1, worker="w")


def test_first_call_for_a_delivery_counts(twins: ScriptTwins) -> None:
    furnish(twins)
    twins.compare(second_calls)


def deaths_of_letters(broker: Broker) -> list[Call]:
    """In the dead queue that they moved to: a letter leaves its group, and joins another or the same."""
    for lease in leases(broker, "to"):
        broker.fail(lease, "boom", final=True)
    now, held = version(broker, "morgue"), broker.lease("morgue", MANY, worker="w")
    failures = [BOOM, BANG] * (MANY // 2)
    done = [Complete(lease.token) for lease in held[:2]]
    return [*done, *(Settle(each.token, OutcomeKind.FAILED, DEAD, now, failures.pop()) for each in held[2:])]


def test_dead_letters_that_die_again_change_their_groups_as_the_rules_say(twins: ScriptTwins) -> None:
    furnish(twins)
    twins.compare(deaths_of_letters)
    assert not twins.followed[0], "the script was not taken"


def notes_alone(broker: Broker) -> list[Call]:
    """Deaths and releases that differ in their notes only, or have none."""
    now, notes = version(broker, "plain"), ["ada", "bob", None, ""]
    return [
        Settle(lease.token, kind, verdict, now, note=notes[place % 4])
        for place, (lease, (kind, verdict)) in enumerate(zip(leases(broker, "plain"), OTHER_ENDS * 4, strict=True))
    ]


OTHER_ENDS: list[tuple[OutcomeKind, Any]] = [
    (OutcomeKind.BURIED, Dead(DeadReason.BURIED)),
    (OutcomeKind.RELEASED, TAIL),
    (OutcomeKind.RELEASED, Dead(DeadReason.MAX_ATTEMPTS)),
]


def test_notes_are_kept_apart(twins: ScriptTwins) -> None:
    furnish(twins)
    twins.compare(notes_alone)
    assert not twins.followed[0], "the script was not taken"


@pytest.mark.parametrize("queue", ["plain", "silent"])
def test_words_are_those_that_the_rules_find(queue: str, twins: ScriptTwins) -> None:
    """Of the error, and of a payload that is not ASCII, has escapes, or is no text."""
    furnish(twins)

    def make(broker: Broker) -> list[Call]:
        items = [NewItem(payload, kind) for payload, kind in PAYLOADS]
        broker.core.store.commit([Put(queue, tuple(items))], broker.core.clock.now())
        now, held = version(broker, queue), broker.lease(queue, MANY, worker="w")
        return [Settle(lease.token, OutcomeKind.FAILED, DEAD, now, BANG) for lease in held]

    twins.compare(make)
    for word, count in {"second": 3, "grüße": 1, "zwei": 1, "nzwei": 0, "raw": 0}.items():
        found, _ = twins.ask(word, lambda _, broker, w=word: broker.find(words=w).items)  # type: ignore[misc]
        assert len(found) == (count if queue == "plain" else 0), word


PAYLOADS = [("Grüße".encode(), JSON), (rb'"eins\n\u007awei"', JSON), (b"raw", "application/octet-stream")]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories_are_the_same_by_the_script_and_by_the_rules(
    seed: int, redis_server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins, steps = ScriptTwins(seed, redis_server, redis_url.partition("prefix=")[2], monkeypatch), 0

    def compare_keys() -> None:
        nonlocal steps
        steps += 1
        if steps % EVERY == 0:
            twins.compare_keys()

    random_history(twins, compare_keys)
    by_script, by_rules = (sum(counts.values()) for counts in twins.followed)
    assert by_script < by_rules
