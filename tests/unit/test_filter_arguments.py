"""Filters from what people write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive.broker.flows.inspection import build_filter, filter_from
from redrive.clock import Instant
from redrive.errors import InvalidInput
from redrive.model.classify import ErrorClass
from redrive.model.death import DeadReason
from redrive.model.duration import HOUR
from redrive.model.filter import MAX_IDS, Filter
from redrive.model.item import Status

NOW = Instant(1_800_000_000_000_000)
ID = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("status", "archived", Status.ARCHIVED),
        ("status", "any", None),
        ("status", None, None),
        ("reason", "expired", DeadReason.EXPIRED),
        ("error_class", "network", ErrorClass.NETWORK),
        ("since", "1h", NOW - HOUR),
        ("since", 3600, NOW - HOUR),
        ("until", timedelta(hours=1), NOW - HOUR),
        ("since", NOW - 5, NOW - 5),
        ("until", datetime(2026, 1, 1, tzinfo=UTC), 1_767_225_600_000_000),
        ("ids", ID, (ID,)),
        ("ids", [ID], (ID,)),
        ("id_prefix", "0123abcd", "0123abcd"),
        ("headers", {"a": "b"}, {"a": "b"}),
        ("held", False, False),
        ("words", "timeout conn*", "timeout conn*"),
        ("min_redrives", 1, 1),
    ],
)
def test_conditions_are_read_as_people_write_them(name: str, given: Any, meant: Any) -> None:
    assert getattr(filter_from({name: given}, NOW), name) == meant


@pytest.mark.parametrize(
    ("conditions", "problem"),
    [
        ({"stats": "dead"}, r"'stats' is not a condition \(did you mean status\?\); there are queue, status"),
        ({"status": "gone"}, "status must be one of pending, failed"),
        ({"status": "DEAD"}, r"any, not 'DEAD' \(did you mean dead\?\)"),
        ({"error_type": ValueError}, "give its name, 'ValueError'"),
        ({"since": 1_782_875_575}, "more than 30 years ago; write a Unix time as datetime"),
        ({"since": 1_782_875_575.5}, "more than 30 years ago; write a Unix time as datetime"),
        ({"min_attempts": "3"}, "min_attempts must be a whole number"),
        ({"reason": "bad luck"}, "reason must be one of"),
        ({"error_class": 3}, "error_class must be one of"),
        ({"queue": "a b"}, "queue 'a b'"),
        ({"words": "-- *"}, "words needs letters or digits"),
        ({"words": "a" * 600}, "words needs letters or digits, up to 512"),
        ({"since": "yesterday"}, "since 'yesterday' is not a duration"),
        ({"since": datetime(2026, 1, 1)}, "time zone"),
        ({"min_attempts": -1}, "min_attempts must be 0 to"),
        ({"held": "yes"}, "held is true or false"),
        ({"ids": 7}, "ids are a list of ids"),
        ({"ids": ["7f"]}, "item id '7f' .* the condition id_prefix '7f' finds"),
        ({"ids": ["Z"]}, "item id 'Z' .* pass it on as you received it"),
        ({"ids": [ID] * (MAX_IDS + 1)}, "more than 10,000 ids in one filter"),
        ({"id_prefix": "XYZ"}, "id_prefix is the first digits"),
        ({"headers": {"a": 1}}, "header 'a'"),
    ],
)
def test_mistakes_are_named(conditions: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        filter_from(conditions, NOW)


def test_filter_and_conditions_are_alternatives() -> None:
    assert build_filter(None, {}, NOW) == Filter()
    assert build_filter(None, {}, NOW, Status.PENDING).status is Status.PENDING
    assert build_filter(None, {"status": None}, NOW, Status.PENDING).status is None
    where = Filter(queue="jobs", since=Instant(5))
    assert build_filter(where, {}, NOW, Status.PENDING) == where
    with pytest.raises(InvalidInput, match=r"a Filter and conditions \(queue\)"):
        build_filter(where, {"queue": "jobs"}, NOW)
    with pytest.raises(InvalidInput, match="where is a Filter"):
        build_filter({"queue": "jobs"}, {}, NOW)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="queue 'a b'"):
        build_filter(Filter(queue="a b"), {}, NOW)


def test_every_condition_of_a_filter_is_known() -> None:
    assert filter_from({name: None for name in Filter.__struct_fields__}, NOW).status is None
