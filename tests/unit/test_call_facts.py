"""What each call and query states of itself: no fact is missing, and none is at odds with its fields."""

import re
import typing
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redrive import store
from redrive.clock import Instant
from redrive.contract import Call, Query
from redrive.contract.admin_calls import Register
from redrive.contract.base import Rank, StoreCall, StoreQuery, in_commit_order, result_type
from redrive.contract.item_calls import Complete, LeaseItems, NewItem, Put, Settle
from redrive.contract.maintenance_calls import Promote
from redrive.model.death import DeadReason
from redrive.model.failure import Failure
from redrive.model.ids import ItemId, Token
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.stores.rules import queues
from redrive.stores.rules.dispatch import CALL_RULES, QUERY_RULES

CALLS, QUERIES = typing.get_args(Call), typing.get_args(Query)
ID = ItemId("0" * 32)
TOKEN = Token(ID + "7" * 16)
SAMPLES: dict[Any, Any] = {tuple[ItemId, ...]: (ID,), tuple[Token, ...]: (TOKEN,), ItemId: ID, Token: TOKEN}
OTHER_IDS = {("CloseMove", "source_ids"), ("ListOpenMoves", "after"), ("GetResult", "id")}
"""Fields with ids that the call looks up elsewhere than among the items."""
BESIDE_OTHERS = {
    "Put", "Register", "Unregister", "Complete", "Settle", "ReturnLease", "Extend", "Reply", "Promote", "LeaseItems",
}  # fmt: skip
TAKE_SPACE = {"CreateQueue", "Put", "Register", "Import", "Receive", "Complete", "Reply"}


def missing(kind: type[Any]) -> list[str]:
    """The facts that a call or query lacks."""
    lacks = []
    if not typing.get_args(kind.__dict__.get("__orig_bases__", (None,))[0]):
        lacks.append("result type")
    if issubclass(kind, StoreCall) and not isinstance(getattr(kind, "rank", None), Rank):
        lacks.append("rank")
    return lacks + [f"item_ids of {name}" for name in _unnamed_ids(kind)]


def _unnamed_ids(kind: type[Any]) -> list[str]:
    """Fields with ids of items, or a token, that `item_ids` passes over."""
    hints = typing.get_type_hints(kind)
    found = []
    for field in msgspec.structs.fields(kind):
        members = {hints[field.name], *typing.get_args(hints[field.name])}
        sample = next((value for type_, value in SAMPLES.items() if type_ in members), None)
        if sample is not None and (kind.__name__, field.name) not in OTHER_IDS:
            empty = {name: None for name in kind.__struct_fields__}
            if ID not in kind(**{**empty, field.name: sample}).item_ids:
                found.append(field.name)
    return found


def wrong_rules(rules: dict[type[Any], Callable[..., Any]]) -> list[type[Any]]:
    """Calls whose rule is written for another one. A rule that is an expression is written for none."""
    taken = {kind: [*typing.get_type_hints(rule).values()][1:2] for kind, rule in rules.items()}
    return [kind for kind, (*types,) in taken.items() if types and types != [kind]]


@pytest.mark.parametrize("kind", [*CALLS, *QUERIES], ids=lambda kind: kind.__name__)
def test_no_fact_is_missing(kind: type[Any]) -> None:
    assert missing(kind) == []


def test_every_call_and_query_is_in_its_union() -> None:
    modules = ("admin_calls", "item_calls", "maintenance_calls", "queries")
    found = {
        kind for kind in _subclasses(StoreCall) | _subclasses(StoreQuery) if kind.__module__.split(".")[-1] in modules
    }
    assert {kind for kind in found if kind.__name__ != "TokenCall"} == {*CALLS, *QUERIES}


def _subclasses(kind: type[Any]) -> set[type[Any]]:
    return {each for child in kind.__subclasses__() for each in (child, *_subclasses(child))}


class _Bare(StoreCall, frozen=True):  # type: ignore[type-arg]  # that is the mistake
    token: Token
    ids: tuple[ItemId, ...] | None = None


class _BareQuery(StoreQuery[None], frozen=True):
    id: ItemId


def test_omissions_are_found() -> None:
    assert missing(_Bare) == ["result type", "rank", "item_ids of token", "item_ids of ids"]
    assert missing(_BareQuery) == ["item_ids of id"]
    with pytest.raises((KeyError, ValueError)):
        result_type(_Bare)


def test_ranks_are_in_the_order_that_the_contract_says() -> None:
    assert store.__doc__ is not None
    told = re.search(r"by kind in this order: (.*?);", store.__doc__.replace("\n  ", " "))
    assert told is not None
    assert told[1].split(", ") == [rank.name.lower().replace("_", " ") for rank in sorted(Rank)]


def test_calls_take_effect_by_rank_and_then_in_the_order_of_the_batch() -> None:
    put, lease = Put("jobs", ()), LeaseItems("jobs", 1)
    assert in_commit_order([lease, Promote(), put, lease, put]) == [2, 4, 1, 0, 3]


def test_every_call_and_query_has_its_rule() -> None:
    assert set(CALL_RULES) == set(CALLS)
    assert set(QUERY_RULES) == set(QUERIES)
    assert wrong_rules(CALL_RULES) == wrong_rules(QUERY_RULES) == []
    assert wrong_rules({**CALL_RULES, Put: queues.create_queue}) == [Put]


SOURCED = NewItem(b"a", "x", source_id=ID)
FAILED = NewItem(b"a", "x", failure=Failure("E", "boom"), verdict=RetryVerdict())
PLAIN = Put("jobs", (NewItem(b"a", "x"),))
ALONE: list[Any] = [
    Put("jobs", (SOURCED,)),
    Put("jobs", (FAILED,)),
    Complete(TOKEN, puts=(PLAIN, Put("jobs", (SOURCED,)))),
    Register("worker", "w", b"x", version=3),
    Register("worker", "w", b"x", puts=(PLAIN,)),
    Settle(TOKEN, OutcomeKind.FAILED, Dead(DeadReason.FINAL_ERROR), 1),
    Settle(TOKEN, OutcomeKind.FAILED, RetryVerdict(), 1, close_until=Instant(7)),
]
BESIDE: list[Any] = [
    PLAIN,
    Complete(TOKEN, puts=(PLAIN,)),
    Register("worker", "w", b"x"),
    Settle(TOKEN, OutcomeKind.FAILED, RetryVerdict(), 1),
]


@pytest.mark.parametrize("call", ALONE, ids=repr)
def test_call_that_reads_more_than_it_locks_runs_alone(call: Call) -> None:
    assert not call.runs_beside_others


@pytest.mark.parametrize("call", BESIDE, ids=repr)
def test_call_that_touches_only_what_it_locks_runs_beside_others(call: Call) -> None:
    assert call.runs_beside_others


def test_other_calls_run_alone_and_take_no_space() -> None:
    assert {kind.__name__ for kind in CALLS if _may(kind, "runs_beside_others")} == BESIDE_OTHERS
    assert {
        kind.__name__ for kind in CALLS if _may(kind, "takes_space") or "puts" in kind.__struct_fields__
    } == TAKE_SPACE
    assert Complete(TOKEN, puts=(PLAIN,)).takes_space
    assert not Complete(TOKEN).takes_space


def _may(kind: type[Any], fact: str) -> bool:
    """Whether the answer can be another one than that of the base."""
    return getattr(kind, fact) is not getattr(StoreCall, fact)


def test_puts_of_a_call_are_itself_or_those_it_brings() -> None:
    assert PLAIN.puts == (PLAIN,)
    assert (
        Complete(TOKEN, puts=(PLAIN, PLAIN)).puts == Register("a", "b", b"", puts=(PLAIN, PLAIN)).puts == (PLAIN,) * 2
    )
    assert Promote().puts == ()
