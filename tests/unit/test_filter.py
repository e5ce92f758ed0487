"""Filters: every condition is looked at, alone and with others; cursors are those of their search."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive.clock import Instant
from redrive.errors import InvalidInput
from redrive.model.classify import ErrorClass
from redrive.model.death import Cause, DeadReason
from redrive.model.filter import Filter, FilterSubject, Order, make_cursor, matches, parse_cursor
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Status

DEAD = FilterSubject(
    id=ItemId("ab" * 16),
    status=Status.DEAD,
    is_dead_letter=True,
    queue="morgue",
    origin_queue="jobs",
    at=Instant(1_000),
    counters=Counters(deliveries=7, attempts=3, failures=3, redrives=2),
    held_by=("ada", "cid"),
    reason=DeadReason.POLICY,
    cause=Cause("f" * 16, "Boom: x", "shop.errors.Boom", ErrorClass.NETWORK),
    headers={"tenant": "a", "zone": "x"},
)

# For each condition: what the item above meets, and what it does not.
CONDITIONS: dict[str, tuple[list[Any], list[Any]]] = {
    "status": ([Status.DEAD, None], [Status.PENDING, Status.ARCHIVED]),
    "queue": (["morgue"], ["jobs"]),
    "origin_queue": (["jobs"], ["morgue"]),
    "reason": ([DeadReason.POLICY], [DeadReason.BURIED]),
    "error_type": (["shop.errors.Boom", "shop.Boom", "Boom"], ["errors.Boom", "oom", "shop", ""]),
    "error_class": ([ErrorClass.NETWORK], [ErrorClass.POISON]),
    "fingerprint": (["f" * 16], ["e" * 16]),
    "since": ([1_000, 999], [1_001]),
    "until": ([1_001], [1_000, 999]),
    "min_attempts": ([0, 3], [4]),
    "min_redrives": ([0, 2], [3]),
    "max_redrives": ([2, 3], [1, 0]),
    "headers": ([{}, {"tenant": "a"}, {"zone": "x", "tenant": "a"}], [{"tenant": "b"}, {"tenant": "a", "more": ""}]),
    "held": ([True], [False]),
    "held_by": (["ada"], ["bob"]),
    "dropped": ([False, None], [True]),
    "id_prefix": (["", "ab", "ab" * 16], ["b", "AB", "ab" * 16 + "0"]),
}
NO_CONDITION = {"archived"}
"""What widens a filter."""
LOOKED_UP = {"words", "operation", "ids"}
"""What stores look up, as the docstring of `matches` says."""


def test_every_condition_is_looked_at_or_looked_up() -> None:
    assert CONDITIONS.keys() | LOOKED_UP | NO_CONDITION == set(Filter.__struct_fields__)
    assert not CONDITIONS.keys() & LOOKED_UP
    for name in LOOKED_UP:
        assert f"`{name}`" in (matches.__doc__ or "")


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in CONDITIONS for value in CONDITIONS[name][0]])
def test_condition_is_met(name: str, value: Any) -> None:
    assert matches(Filter(**{name: value}), DEAD)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in CONDITIONS for value in CONDITIONS[name][1]])
def test_condition_is_not_met(name: str, value: Any) -> None:
    assert not matches(Filter(**{name: value}), DEAD)


@pytest.mark.parametrize("name", CONDITIONS)
def test_all_conditions_must_be_met(name: str) -> None:
    everything = {each: met[0] for each, (met, _) in CONDITIONS.items()}
    assert matches(Filter(**everything), DEAD)
    assert not matches(Filter(**{**everything, name: CONDITIONS[name][1][0]}), DEAD)


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        (Filter(status=None), False),
        (Filter(status=None, queue="morgue"), False),
        (Filter(status=None, dropped=False), False),
        (Filter(status=Status.ARCHIVED), True),
        (Filter(status=None, archived=True), True),
        (Filter(status=None, dropped=True), True),
        (Filter(status=None, id_prefix="ab"), True),
        (Filter(status=None, ids=(DEAD.id,)), True),
        (Filter(status=None, operation="x"), True),
        (Filter(status=Status.ARCHIVED, dropped=False), False),
        (Filter(status=None, archived=True, dropped=False), False),
    ],
)
def test_archived_items_are_left_out_unless_they_are_asked_for(where: Filter, meant: bool) -> None:
    dropped = msgspec.structs.replace(DEAD, status=Status.ARCHIVED, is_dead_letter=False, is_dropped=True)
    assert matches(where, dropped) is meant


@pytest.mark.parametrize("status", [Status.PENDING, Status.FAILED, Status.ACTIVE])
def test_dead_means_every_dead_letter_whatever_its_status(status: Status) -> None:
    letter = msgspec.structs.replace(DEAD, status=status)
    assert matches(Filter(), letter)
    assert matches(Filter(status=status), letter)
    assert not matches(Filter(), msgspec.structs.replace(letter, is_dead_letter=False))


@pytest.mark.parametrize(
    "where", [Filter(status=None, fingerprint="f" * 16), Filter(status=None, error_type=""), Filter(headers={"a": ""})]
)
def test_what_did_not_die_has_no_cause_and_may_have_no_headers(where: Filter) -> None:
    assert not matches(where, msgspec.structs.replace(DEAD, cause=None, headers=None))


def test_filters_survive_json_and_leave_out_what_is_not_asked() -> None:
    where = Filter(queue="jobs", since=Instant(5), headers={"a": "b"}, status=None)
    encoded = msgspec.json.encode(where)
    assert msgspec.json.decode(encoded, type=Filter) == where
    assert set(msgspec.json.decode(encoded)) == {"queue", "since", "headers", "status"}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"colour": "red"}', type=Filter)


@pytest.mark.parametrize(
    ("where", "at_once"),
    [
        (Filter(), True),
        (Filter(queue="jobs"), True),
        (Filter(queue="jobs", fingerprint="f"), True),
        (Filter(status=None), False),
        (Filter(status=Status.ARCHIVED), False),
        (Filter(words="x"), False),
        (Filter(queue="jobs", max_redrives=0), False),
    ],
)
def test_only_dead_letters_by_queue_and_cause_are_counted_at_once(where: Filter, at_once: bool) -> None:
    assert where.has_stored_count is at_once


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("where", [Filter(), Filter(status=Status.ARCHIVED), Filter(status=None)])
@pytest.mark.parametrize("position", [0, 1, 2**63 - 1])
def test_cursor_leads_back_to_its_position(where: Filter, order: Order, position: int) -> None:
    assert parse_cursor(where, order, make_cursor(where, order, position)) == position
    assert parse_cursor(where, order, None) is None


def test_cursor_of_another_search_is_refused() -> None:
    searches = [
        (where, order) for where in (Filter(), Filter(status=Status.ARCHIVED), Filter(status=None)) for order in Order
    ]
    for search in searches:
        for other in searches:
            if other != search:
                with pytest.raises(InvalidInput, match="pass the cursor of the previous page"):
                    parse_cursor(*search, make_cursor(*other, 7))


@pytest.mark.parametrize(
    "cursor", ["", "0", "-1", "nonsense", "dead-newest-", "dead-newest-00000000000000zz", "é" * 99]
)
def test_text_that_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidInput):
        parse_cursor(Filter(), Order.NEWEST, cursor)
