"""The settings of a queue as people write them, mistakes included: the text says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.errors import InvalidSetting
from redrive.model.classify import ErrorClass, ErrorRule
from redrive.model.queue import OnDead
from redrive.model.queue_options import parse_settings


@pytest.mark.parametrize("value", ["forget", "Keep", "", None, 7, ["keep"], "\ud800"], ids=ascii)
def test_bad_on_dead_is_refused_with_what_there_is(value: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"^on_dead must be keep or drop, not "):
        parse_settings({"on_dead": value})


def test_on_dead_is_a_text_or_the_value_itself() -> None:
    assert parse_settings({"on_dead": "drop"}).on_dead is OnDead.DROP
    assert parse_settings({"on_dead": OnDead.KEEP}).on_dead is OnDead.KEEP


@pytest.mark.parametrize(
    ("name", "meant"),
    [("max_atempts", "max_attempts"), ("dead_letter_queue", "dead_queue"), ("visibility_timeout", "lease_timeout")],
)
def test_mistaken_setting_is_answered_with_the_one_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"^{name} is not a setting of a queue \(did you mean {meant}\?\); there"):
        parse_settings({name: 1})


def test_setting_that_is_like_no_other_is_answered_with_all_of_them() -> None:
    with pytest.raises(InvalidSetting, match=r"^colour is not a setting of a queue; there are lease_timeout, "):
        parse_settings({"colour": 1})


@pytest.mark.parametrize(
    "empty", [{}, {"type": None}, {"status_codes": []}, {"contains": [], "status_codes": []}], ids=str
)
def test_error_rule_without_a_condition_is_refused(empty: dict[str, Any]) -> None:
    good = {"error_class": "network", "type": "Boom"}
    with pytest.raises(
        InvalidSetting, match=r"^error_rules\[1\] has no condition .*; give type, status_codes or contains$"
    ):
        parse_settings({"error_rules": [good, {"error_class": "network", **empty}]})


def test_error_rule_with_any_condition_is_taken() -> None:
    conditions: list[dict[str, Any]] = [{"type": "Boom"}, {"status_codes": [503]}, {"contains": ["no seats"]}]
    settings = parse_settings({"error_rules": [{"error_class": "network", **condition} for condition in conditions]})
    assert [rule.error_class for rule in settings.error_rules] == [ErrorClass.NETWORK] * 3
    assert not ErrorRule(ErrorClass.NETWORK).has_condition
