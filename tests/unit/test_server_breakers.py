"""What a server refuses to set as breakers and gates."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.clock import Instant
from redrive.contract.admin_calls import SetBreakers
from redrive.contract.item_calls import Settle
from redrive.errors import InvalidInput
from redrive.model.breaker import MAX_BREAKERS, MAX_FINGERPRINT_BREAKERS, MAX_PROBES, MAX_REASON_BYTES, Breaker
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.model.ids import ItemId, Token
from redrive.model.item import Status
from redrive.model.judge import OutcomeKind, RetryVerdict
from redrive.model.limits import MAX_INSTANT, MAX_LABEL_CHARS
from redrive.server.validation.dispatch import validate_call

NOW = Instant(1_767_225_600_000_000)
ID = ItemId("0" * 32)


def breaker(kind: str = "network", **changes: Any) -> Breaker:
    """A breaker that could be set."""
    fields: dict[str, Any] = {
        "opened_at": NOW,
        "until": NOW,
        "reason": "20 failures",
        "open_for": 1,
        "probing_from": NOW,
    }
    return Breaker(kind=kind, **fields | changes)


def call(*breakers: Breaker, **changes: Any) -> SetBreakers:
    """A call with these breakers."""
    fields: dict[str, Any] = {"version": 1, "actor": "ada"}
    return SetBreakers("jobs", breakers, **fields | changes)


def gate(**changes: Any) -> dict[str, Any]:
    """A gate to be set, as options of `call`."""
    fields: dict[str, Any] = {"name": BREAKER_GATE, "until": NOW}
    return {"gate": Gate(**fields | changes)}


GOOD = [
    call(),
    call(breaker("queue"), breaker("network"), breaker("fingerprint:0123abcd", probes=(ID,), opened_by="ada")),
    call(*(breaker(f"fingerprint:{n}") for n in range(MAX_FINGERPRINT_BREAKERS))),
    call(former_gate=Gate(BREAKER_GATE, NOW)),
    call(**gate(allowance=MAX_PROBES, leased=(ID,))),
    call(note="why"),
]
BAD = [
    call(breaker("nonsense")),
    call(breaker("")),
    call(breaker("fingerprint:" + "x" * MAX_LABEL_CHARS)),
    call(breaker("queue"), breaker("queue")),
    call(*(breaker(f"fingerprint:{n}") for n in range(MAX_FINGERPRINT_BREAKERS + 1))),
    call(*[breaker()] * (MAX_BREAKERS + 1)),
    call(breaker(until=Instant(MAX_INSTANT + 1))),
    call(breaker(opened_at=Instant(-1))),
    call(breaker(open_for=-1)),
    call(breaker(probes=(ID,) * (MAX_PROBES + 1))),
    call(breaker(probes=("no id",))),
    call(breaker(opened_by="a\0b")),
    call(actor="a\0b"),
    call(version=-1),
    call(**gate(name="retry_after")),
    call(**gate(until=Instant(MAX_INSTANT + 1))),
    call(**gate(allowance=-1)),
    call(**gate(allowance=MAX_PROBES + 1)),
    call(**gate(leased=("no id",))),
    call(former_gate=Gate("retry_after", NOW)),
]


@pytest.mark.parametrize("given", GOOD, ids=range(len(GOOD)))
def test_call_that_a_broker_makes_is_accepted(given: SetBreakers) -> None:
    assert validate_call(given, NOW) == given


@pytest.mark.parametrize("given", BAD, ids=range(len(BAD)))
def test_call_that_no_broker_makes_is_refused(given: SetBreakers) -> None:
    with pytest.raises(InvalidInput):
        validate_call(given, NOW)


def test_texts_are_cut_to_what_stores_hold() -> None:
    checked = validate_call(call(breaker(reason="\0" + "x" * 10**6), note="y" * 10**6), NOW)
    assert len(checked.breakers[0].reason) <= MAX_REASON_BYTES
    assert len(checked.note) < 100_000


@pytest.mark.parametrize("until", [-1, MAX_INSTANT + 1])
def test_instant_that_no_store_holds_closes_nothing(until: int) -> None:
    verdict = RetryVerdict(0, Status.FAILED)
    given = Settle(Token("0" * 48), OutcomeKind.FAILED, verdict, 1, close_until=Instant(until))
    with pytest.raises(InvalidInput):
        validate_call(given, NOW)
