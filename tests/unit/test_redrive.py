"""Redrives with a payload that was mended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from redrive import Broker, Settled
from redrive.errors import InvalidInput, InvalidPayload, ItemNotFound
from redrive.testing import memory_broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with memory_broker() as broker:
        broker.create_queue("jobs", max_payload_size=100)
        yield broker


def dead(broker: Broker, value: Any, **options: Any) -> str:
    id = broker.put("jobs", value, **options).id
    broker.fail(broker.lease("jobs")[0], "no")
    return id


def leased(broker: Broker) -> Any:
    (lease,) = broker.lease("jobs")
    return lease


@pytest.mark.parametrize(
    ("value", "changes", "mended"),
    [
        ({"a": 1, "b": 2}, {"edit": {"a": None, "c": {"d": 3}}}, {"b": 2, "c": {"d": 3}}),
        ({"a": 1}, {"edit": lambda value: {**value, "a": 2}}, {"a": 2}),
        ({"a": 1}, {"payload": None}, None),
        ({"a": 1}, {"payload": {"b": 1}}, {"b": 1}),
        (b"abc", {"edit": bytes.upper}, b"ABC"),
        (b"abc", {"payload": {"now": "json"}}, {"now": "json"}),
        ({"password": "x"}, {"edit": {"n": 1}}, {"password": "x", "n": 1}),
    ],
)
def test_payload_is_mended(broker: Broker, value: Any, changes: dict[str, Any], mended: Any) -> None:
    settled = broker.redrive(dead(broker, value), note="mended", **changes)
    assert settled.status == "pending"
    assert leased(broker).value == mended


def test_content_type_stays_where_it_fits(broker: Broker) -> None:
    broker.redrive(dead(broker, b"old", content_type="image/png"), payload=b"new")
    lease = leased(broker)
    assert (lease.payload, lease.content_type) == (b"new", "image/png")


def test_headers_are_mended(broker: Broker) -> None:
    broker.redrive(dead(broker, 1, headers={"a": "1", "b": "2"}), edit_headers={"a": None, "c": "3"})
    lease = leased(broker)
    assert (lease.value, lease.headers) == (1, {"b": "2", "c": "3"})
    broker.complete(lease)
    broker.redrive(dead(broker, 1, headers={"a": "1"}), headers={})
    assert leased(broker).headers == {}


def test_several_are_mended_each_for_itself(broker: Broker) -> None:
    ids = [dead(broker, {"n": 1}), dead(broker, b"bytes"), "0" * 32, dead(broker, {"n": 2})]
    results = broker.redrive(ids, edit={"fixed": True})
    assert [type(result) for result in results] == [Settled, InvalidPayload, ItemNotFound, Settled]
    assert [lease.value for lease in broker.lease("jobs", limit=9)] == [
        {"n": 1, "fixed": True},
        {"n": 2, "fixed": True},
    ]


def test_function_that_raises_leaves_the_item_dead(broker: Broker) -> None:
    ids = [dead(broker, 1), dead(broker, 0)]
    with pytest.raises(InvalidPayload, match="could not be edited: ZeroDivisionError") as refusal:
        broker.redrive(ids[1], edit=lambda value: 1 // value)
    assert isinstance(refusal.value.__cause__, ZeroDivisionError)
    assert broker.stats("jobs").dead == 2


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"payload": 1, "edit": {}}, "payload replaces"),
        ({"headers": {}, "edit_headers": {}}, "headers replaces"),
        ({"edit": 7}, "edit is a function"),
        ({"edit": object}, "cannot hold"),
        ({"edit_headers": lambda headers: headers["none"]}, "headers could not be edited: KeyError"),
        ({"headers": {"a": 1}}, "header 'a'"),
        ({"to": "a b"}, "queue 'a b'"),
        ({"note": 7}, "note is a text"),
    ],
)
def test_mistakes_are_refused(broker: Broker, changes: dict[str, Any], problem: str) -> None:
    id = dead(broker, 1)
    if changes.get("edit") is object:
        changes = {"edit": lambda value: object()}
    with pytest.raises(InvalidInput, match=problem):
        broker.redrive(id, **changes)
    assert broker.get(id).status == "dead"
