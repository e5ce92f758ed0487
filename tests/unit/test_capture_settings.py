"""Settings of a capture queue: where they come from, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive.capture.capture_settings import CaptureSettings, resolve_settings, variable_of
from redrive.errors import InvalidSetting


def test_defaults() -> None:
    assert resolve_settings({}, None, {}) == CaptureSettings()
    assert CaptureSettings().max_size == 10_000


def test_argument_goes_before_variable_and_that_before_the_file() -> None:
    stored = msgspec.json.encode({"max_size": 300, "default_max_retries": 7, "retry_interval_seconds": 20})
    environ = {"REDRIVE_DLQ_MAX_SIZE": "200", "REDRIVE_DLQ_DEFAULT_MAX_RETRIES": "6"}
    found = resolve_settings({"max_size": 5}, stored, environ)
    assert (found.max_size, found.default_max_retries, found.retry_interval_seconds) == (5, 6, 20)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("max_size", "99", "must be a whole number from 100 to 100,000"),
        ("max_size", "many", "must be a whole number from 100 to 100,000"),
        ("default_max_retries", "11", "must be a whole number from 0 to 10"),
        ("retry_interval_seconds", "9", "must be a whole number from 10 to 3,600"),
        ("default_retry_policy", "sometimes", "must be one of never, linear, exponential, immediate"),
        ("enabled", "perhaps", "must be true or false"),
    ],
)
def test_wrong_variable_is_named_with_its_range(name: str, value: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem) as caught:
        resolve_settings({}, None, {variable_of(name): value})
    assert f"REDRIVE_DLQ_{name.upper()}" in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "problem"),
    [
        ("REDRIVE_DLQ_MAXSIZE", r"did you mean max_size\?"),
        ("REDRIVE_DLQ_COLOUR", "there are enabled, max_size, default_retry_policy"),
        ("REDRIVE_DLQ_", "names no setting of capture"),
    ],
)
def test_variable_that_names_no_setting_is_refused(variable: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem) as caught:
        resolve_settings({"max_size": 5}, None, {variable: "1", "REDRIVE_URL": "x"})
    assert variable in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("Off", False), ("yes", True)])
def test_switches_are_read_as_people_write_them(text: str, value: bool) -> None:
    assert resolve_settings({}, None, {"REDRIVE_DLQ_ENABLED": text}).enabled is value


@pytest.mark.parametrize("value", [-1, True, 1.5, "x"])
def test_argument_is_any_number_from_0_on(value: Any) -> None:
    with pytest.raises(InvalidSetting, match="max_size"):
        resolve_settings({"max_size": value}, None, {})
