from typing import Any, get_args

import pytest

from redrive.contract import Call
from redrive.contract.admin_calls import AuditNote, CreateQueue, Hold, Register
from redrive.contract.item_calls import Extend, LeaseByIds, LeaseItems, NewItem, Put, ReturnLease
from redrive.model.failure import Failure
from redrive.model.ids import ItemId, Token
from redrive.model.judge import RetryVerdict
from redrive.model.queue import QueueSettings

KEYED = NewItem(b"a", "x", idempotency_key="k")
PLAIN = NewItem(b"a", "x")
FAILED = NewItem(b"a", "x", idempotency_key="k", failure=Failure("E", "boom"), verdict=RetryVerdict())

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
    LeaseByIds((ItemId("0" * 32),)),
    ReturnLease(Token("0" * 48)),
    Hold((ItemId("0" * 32),), "ann", queue_version=("jobs", 3)),
    Register("worker", "w", b"x", version=3),
    Register("worker", "w", b"x", puts=(Put("jobs", (KEYED,)),)),
    Register("worker", "w", b"x", audit=AuditNote("ann", "register_worker")),
]
NAMED_SAFE = {
    "CreateQueue", "SetPaused", "SetSourceQueue", "Put", "Register", "Import", "Receive", "Hold", "Unhold", "Extend",
    "StepOperation", "Promote", "ApplyRetention", "FinishMove", "CloseMove",
}  # fmt: skip
NAMED_UNSAFE = {
    "UpdateQueue", "SetBreakers", "DeleteQueue", "Unregister", "Complete", "Settle", "ReturnLease", "ManualChange",
    "StartOperation", "SetOperation", "Expire", "LeaseByIds", "LeaseItems", "Reply",
}  # fmt: skip


@pytest.mark.parametrize("call", SAFE, ids=repr)
def test_call_that_changes_nothing_the_second_time_is_safe(call: Call) -> None:
    assert call.is_repeatable


@pytest.mark.parametrize("call", UNSAFE, ids=repr)
def test_call_that_would_be_done_twice_is_not(call: Call) -> None:
    assert not call.is_repeatable


def test_put_relies_on_keys_unless_it_has_the_ids_of_another_store() -> None:
    by_source = NewItem(b"a", "x", idempotency_key="k", source_id=ItemId("0" * 32))
    puts = {"keys": (PLAIN, KEYED), "plain": (PLAIN,), "sources": (by_source,)}
    assert [queue for queue, items in puts.items() if Put(queue, items).relies_on_keys] == ["keys"]


def test_somebody_has_thought_of_every_call() -> None:
    assert {kind.__name__ for kind in get_args(Call)} == NAMED_SAFE | NAMED_UNSAFE
