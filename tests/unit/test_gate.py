"""How many leases gates let through, when they open, and what a Retry-After does to them."""

from __future__ import annotations

import pytest

from redrive.clock import Instant
from redrive.errors import QueueGated
from redrive.model.gate import (
    RETRY_AFTER_GATE,
    Gate,
    Gates,
    close_for_retry_after,
    count_leases,
    counts_leases,
    lease_limit,
    opens_at,
    set_gate,
    shut_gate,
)
from redrive.model.ids import ItemId
from redrive.model.retry_after import MAX_RETRY_AFTER

NOW = Instant(1_000)
LATER = Instant(2_000)
ID = ItemId("0" * 32)
CLOSED, PASSED = Gate("breaker", LATER), Gate("breaker", NOW)
USED_UP, TWO_LEFT = Gate("other", NOW, 1, (ID,)), Gate("other", NOW, 3, (ID,))


@pytest.mark.parametrize(
    ("gates", "limit", "opens"),
    [
        ((), 5, NOW),
        ((PASSED,), 5, NOW),
        ((CLOSED,), 0, LATER),
        ((PASSED, TWO_LEFT), 2, NOW),
        ((CLOSED, TWO_LEFT), 0, LATER),
        ((PASSED, USED_UP), 0, None),
        ((USED_UP, CLOSED), 0, None),
        ((TWO_LEFT, Gate("breaker", NOW, 1)), 1, NOW),
        ((Gate("breaker", NOW, 0),), 0, None),
    ],
)
def test_gates_limit_leases(gates: Gates, limit: int, opens: Instant | None) -> None:
    assert lease_limit(gates, NOW, 5) == limit
    assert (shut_gate(gates, NOW) is None) == (limit > 0)
    assert opens_at(gates, NOW) == opens


def test_leases_are_counted_where_there_is_an_allowance() -> None:
    assert not counts_leases((PASSED, CLOSED))
    assert counts_leases((PASSED, TWO_LEFT))
    assert count_leases((PASSED, TWO_LEFT), [ID, ID]) == (PASSED, Gate("other", NOW, 3, (ID, ID, ID)))


def test_gate_is_replaced_by_its_name() -> None:
    assert set_gate((PASSED, TWO_LEFT), "breaker", CLOSED) == (TWO_LEFT, CLOSED)
    assert set_gate((PASSED, TWO_LEFT), "breaker", None) == (TWO_LEFT,)


@pytest.mark.parametrize(
    ("present", "leased_at", "until", "closed_until"),
    [
        (None, 0, 1_500, 1_500),
        (None, 0, 1_000, None),  # now is not in the future
        (None, 0, 10**18, NOW + MAX_RETRY_AFTER),
        (1_500, 0, 1_200, 1_500),  # closed for longer already
        (1_500, 0, 1_800, 1_800),
        (900, 800, 1_500, 900),  # leased before the gate opened again
        (900, 900, 1_500, 1_500),
    ],
)
def test_retry_after_closes_a_gate(present: int | None, leased_at: int, until: int, closed_until: int | None) -> None:
    before = () if present is None else (Gate(RETRY_AFTER_GATE, Instant(present)),)
    after = close_for_retry_after((PASSED, *before), Instant(until), Instant(leased_at), NOW)
    expected = () if closed_until is None else (Gate(RETRY_AFTER_GATE, Instant(closed_until)),)
    assert after == (PASSED, *expected)


def test_refusal_says_until_when_and_why() -> None:
    shown = str(QueueGated("jobs", 1_767_225_600_000_000, "20 failures within 60s"))
    assert shown.startswith("queue 'jobs' gives no leases until 2026-01-01 00:00:00 UTC (20 failures within 60s)")
    assert "for now" in str(QueueGated("jobs", None, "why"))
