"""Causes: what an item died of, in a title and a fingerprint that stay the same from one death to the next."""

from __future__ import annotations

import pytest

from redrive.model.classify import ErrorClass
from redrive.model.death import Cause, DeadReason, cause_of
from redrive.model.failure import MAX_TITLE_CHARS, Failure


def test_failure_is_the_cause() -> None:
    failure = Failure("shop.Boom", "order 17 not found\nsecond line", None, ErrorClass.VALIDATION, "abc")
    cause = cause_of(DeadReason.FINAL_ERROR, failure, "a note")
    assert cause == Cause("abc", "Boom: order 17 not found", "shop.Boom", ErrorClass.VALIDATION)
    assert cause.group_title == "Boom: order <n> not found"


def test_number_in_the_name_of_a_type_is_part_of_the_name() -> None:
    cause = cause_of(DeadReason.FINAL_ERROR, Failure("ExitCode3", "3 of 5 went wrong", fingerprint="abc"))
    assert cause.group_title == "ExitCode3: <n> of <n> went wrong"


def test_note_is_the_cause_where_nothing_failed() -> None:
    first, second = (cause_of(DeadReason.BURIED, None, f"order {n} is fraud\nmore") for n in (1, 2))
    assert (first.title, first.error_type) == ("order 1 is fraud", "")
    assert first.group_title == second.group_title == "order <n> is fraud"
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("reason", DeadReason)
def test_reason_is_the_cause_where_nothing_else_is_known(reason: DeadReason) -> None:
    cause = cause_of(reason, None)
    assert cause.title
    assert cause == cause_of(reason, None, "") == cause_of(reason, None, None)


def test_causes_of_different_reasons_differ() -> None:
    fingerprints = {cause_of(reason, None, note).fingerprint for reason in DeadReason for note in (None, "note")}
    assert len(fingerprints) == 2 * len(DeadReason)


def test_what_kills_its_workers_or_cannot_be_read_is_poison() -> None:
    poison = {reason for reason in DeadReason if cause_of(reason, None).error_class is ErrorClass.POISON}
    assert poison == {DeadReason.WORKER_LOST, DeadReason.UNDECODABLE}


def test_title_is_one_short_line() -> None:
    cause = cause_of(DeadReason.BURIED, None, "  long " * 1_000 + "\nmore")
    assert len(cause.title) <= MAX_TITLE_CHARS
    assert "\n" not in cause.title
    assert cause.title.endswith("…")
