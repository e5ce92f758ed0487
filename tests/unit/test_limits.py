"""Names, keys, priorities and instants within their bounds pass; others are refused with what to do."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from redrive.errors import InvalidDuration, InvalidInput, InvalidName
from redrive.model.duration import MAX_DURATION, SECOND
from redrive.model.limits import check_instant, check_label, check_name, check_priority


@pytest.mark.parametrize("name", ["a", "emails", "emails-dead", "a.b_c:d-1", "_x", "9", "x" * 128])
def test_good_names_pass(name: str) -> None:
    assert check_name("queue", name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 129, "a b", "a\n", "a\0", "a@b", "a/b", "-a", ".", ":a", "é", "a\ud800", None, 5, b"a"]
)
def test_bad_names_are_refused(name: object) -> None:
    with pytest.raises(InvalidName, match=r"^queue "):
        check_name("queue", name)


@pytest.mark.parametrize("key", ["k", "é 😀 /@", "x" * 256])
def test_good_keys_pass(key: str) -> None:
    assert check_label("idempotency key", key) == key


@pytest.mark.parametrize("key", ["", "x" * 257, "a\0", "\ud800", None, 7])
def test_bad_keys_are_refused(key: object) -> None:
    with pytest.raises(InvalidName, match=r"^idempotency key "):
        check_label("idempotency key", key)


@pytest.mark.parametrize("priority", [-1, 10, True, 5.0, "5", None])
def test_priorities_are_whole_numbers_from_0_to_9(priority: object) -> None:
    assert check_priority(0) == 0
    assert check_priority(9) == 9
    with pytest.raises(InvalidInput, match="from 0 to 9") as refusal:
        check_priority(priority)
    assert refusal.value.code == "invalid_input"  # an argument of a put, no setting of a queue


@pytest.mark.parametrize("instant", [-1, 2**53, True, 1.5, "now"])
def test_instants_outside_the_range_are_refused(instant: object) -> None:
    with pytest.raises(InvalidDuration, match=r"^ready_at "):
        check_instant("ready_at", instant)


def test_the_longest_delay_from_now_is_an_instant_that_can_be_stored() -> None:
    now = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp()) * SECOND
    assert check_instant("ready_at", now + MAX_DURATION) == now + MAX_DURATION
