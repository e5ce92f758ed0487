"""Bugs in gates that are put in must be found by the tests of the conformance suite, and by the race of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.acceptance.test_gates import ALLOWANCE, race
from tests.integration.test_gates import lease_in_the_middle, two_brokers

from redrive import Broker, connect
from redrive.clock import Instant
from redrive.contract.admin_calls import SetBreakers, SetPaused
from redrive.model.gate import RETRY_AFTER_GATE, Gate, Gates, set_gate
from redrive.stores.redis import store as redis_store
from redrive.stores.redis.scripts import COMMIT, Script
from redrive.stores.relational import batch as relational_batch
from redrive.stores.relational import leases as relational_leases
from redrive.stores.rules import leases as rules_leases
from redrive.stores.rules import settle as rules_settle
from redrive.stores.rules.dispatch import CALL_RULES
from redrive.testing.conformance.gates import GateConformance, RetryAfterGateConformance
from redrive.testing.conformance.shared_gates import SharedGateConformance
from redrive.testing.conformance.suite import StoreDriver
from redrive.testing.fake_clock import FakeClock

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def direct(url: str) -> Iterator[StoreDriver]:
    clock = FakeClock()
    with connect(url, clock=clock, maintenance=False) as broker:
        yield StoreDriver(broker.core.store, clock)


class Sharing(SharedGateConformance):
    """What a store says that processes share."""

    supports_processes = is_durable = True


def test_gate_that_is_read_without_its_allowance_is_found(direct: StoreDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed_or_not(gates: Gates, now: Instant, limit: int) -> int:
        return 0 if any(now < gate.until for gate in gates) else limit

    for module in (rules_leases, relational_leases):
        monkeypatch.setattr(module, "lease_limit", closed_or_not)
    with pytest.raises(AssertionError):
        GateConformance().test_allowance_is_given_and_not_one_lease_more(direct)


def test_resume_that_opens_a_gate_is_found(direct: StoreDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    set_paused = CALL_RULES[SetPaused]

    def resume(state: Any, call: Any) -> Any:
        queue = state.queue(call.name)
        if not call.paused:
            queue.value = msgspec.structs.replace(queue.value, gates=())
        return set_paused(state, call)

    monkeypatch.setitem(CALL_RULES, SetPaused, resume)
    with pytest.raises(AssertionError):
        GateConformance().test_pause_and_gate_are_independent(direct, "gate")


def test_pause_that_a_closing_breaker_ends_is_found(direct: StoreDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    set_breakers = CALL_RULES[SetBreakers]

    def resume_too(state: Any, call: Any) -> Any:
        queue = state.queue(call.name)
        queue.value = msgspec.structs.replace(queue.value, paused=False)
        return set_breakers(state, call)

    monkeypatch.setitem(CALL_RULES, SetBreakers, resume_too)
    with pytest.raises(AssertionError):
        GateConformance().test_pause_and_gate_are_independent(direct, "gate")


def test_answer_from_before_the_reopening_that_is_honoured_is_found(
    direct: StoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(gates: Gates, until: Instant, leased_at: Instant, now: Instant) -> Gates:
        return set_gate(gates, RETRY_AFTER_GATE, Gate(RETRY_AFTER_GATE, until))

    monkeypatch.setattr(rules_settle, "close_for_retry_after", close)
    with pytest.raises((AssertionError, ValueError)):
        RetryAfterGateConformance().test_answer_from_before_the_reopening_is_ignored(direct)


def test_leases_by_id_that_do_not_count_are_found(direct: StoreDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_leases, "counts_leases", lambda gates: False)
    with pytest.raises(AssertionError):
        GateConformance().test_lease_by_id_counts(direct)


# Among brokers and processes


@pytest.fixture
def open_broker(tmp_path: Path) -> Iterator[Callable[[], Broker]]:
    clock = FakeClock()
    opened: list[Broker] = []

    def open_one() -> Broker:
        opened.append(connect(f"sqlite:///{tmp_path}/jobs.db", clock=clock, maintenance=False))
        return opened[-1]

    yield open_one
    for broker in opened:
        broker.close()


def test_allowance_that_each_process_counts_for_itself_is_found(
    open_broker: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relational_batch.Batch, "set_gates", relational_batch.Batch.see_gates)
    with pytest.raises(AssertionError):
        Sharing().test_allowance_is_exact_among_brokers(open_broker)  # type: ignore[arg-type]


def test_gates_that_live_in_memory_only_are_found(
    open_broker: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relational_batch.Batch, "set_gates", relational_batch.Batch.see_gates)
    with pytest.raises(AssertionError):
        Sharing().test_gates_and_breakers_survive_a_restart(open_broker, FakeClock())  # type: ignore[arg-type]


def test_allowance_that_is_read_without_a_lock_is_found(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relational_leases, "_lock_gates", lambda batch, names: None)
    with two_brokers(postgres_url) as (one, two):
        assert lease_in_the_middle(one, two, postgres_url, monkeypatch) == [2, 2]


@pytest.mark.timeout(300)
def test_allowance_that_a_script_does_not_read_is_found(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = COMMIT.source
    assert source.count("if info.a then") == 1
    monkeypatch.setattr(redis_store, "COMMIT", Script("commit", source.replace("if info.a then", "if false then")))
    assert max(race(redis_url).values()) > ALLOWANCE
