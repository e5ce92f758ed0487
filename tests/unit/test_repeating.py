from typing import Any, get_args

import pytest

from redrive.client.idempotent_calls import are_safe_to_repeat
from redrive.model.failure import Failure
from redrive.model.ids import ItemId, Token
from redrive.model.judge import Again
from redrive.model.queue import QueueSettings
from redrive.store import Call, CreateQueue, Extend, LeaseItems, NewItem, Noted, Put, Register, Return

KEYED = NewItem(b"a", "x", idempotency_key="k")
PLAIN = NewItem(b"a", "x")
FAILED = NewItem(b"a", "x", idempotency_key="k", failure=Failure("E", "boom"), verdict=Again())

SAFE: list[Any] = [
    Put("jobs", (KEYED, KEYED)),
    Put("jobs", (NewItem(b"a", "x", source_id=ItemId("0" * 32)),)),
    CreateQueue("jobs", QueueSettings()),
    Extend(Token("0" * 48)),
    Register("worker", "w", b"x"),
]
UNSAFE: list[Any] = [
    Put("jobs", (KEYED, PLAIN)),
    Put("jobs", (FAILED,)),
    LeaseItems("jobs", 1),
    Return(Token("0" * 48)),
    Register("worker", "w", b"x", version=3),
    Register("worker", "w", b"x", puts=(Put("jobs", (KEYED,)),)),
    Register("worker", "w", b"x", noted=Noted("ann", "register_worker")),
]
NAMED_SAFE = {
    "CreateQueue", "SetPaused", "SetUsedBy", "Put", "Register", "Import", "Receive", "Hold", "Unhold", "Extend",
    "StepOperation", "Promote", "Clean", "FinishMove", "CloseMove",
}  # fmt: skip
NAMED_UNSAFE = {
    "UpdateQueue", "DeleteQueue", "Unregister", "Complete", "Settle", "Return", "Change", "StartOperation",
    "SetOperation", "Expire", "LeaseItems",
}  # fmt: skip


@pytest.mark.parametrize("call", SAFE, ids=repr)
def test_call_that_changes_nothing_the_second_time_is_safe(call: Call) -> None:
    assert are_safe_to_repeat([call])


@pytest.mark.parametrize("call", UNSAFE, ids=repr)
def test_call_that_would_be_done_twice_is_not(call: Call) -> None:
    assert not are_safe_to_repeat([call])


def test_one_that_is_not_safe_makes_a_batch_unsafe() -> None:
    assert are_safe_to_repeat(SAFE)
    assert not are_safe_to_repeat([*SAFE, UNSAFE[0]])


def test_somebody_has_thought_of_every_call() -> None:
    assert {kind.__name__ for kind in get_args(Call)} == NAMED_SAFE | NAMED_UNSAFE
