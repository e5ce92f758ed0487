"""docs/reference/settings.md is true: every setting, its default, its range, and what an item may override."""

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.unit import settings_reference

from redrive import new_item
from redrive.errors import InvalidDuration, InvalidSetting
from redrive.model import failure, limits, payload
from redrive.model.breaker import RULE_KEYS, BreakerRule
from redrive.model.classify import ErrorRule
from redrive.model.duration import parse_duration
from redrive.model.feed import FeedKind
from redrive.model.item import Overrides
from redrive.model.queue import WITH_ITEM, QueueSettings
from redrive.model.queue_options import parse_settings
from redrive.model.redact_rules import RedactRules
from redrive.model.retry_policy import RetryPolicy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
DURATION = re.compile(r"[0-9.]+(ms|s|m|h|d)")


def table(heading: str) -> list[list[str]]:
    """The body rows of the table under a heading."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def names(heading: str) -> list[str]:
    return [row[0].strip("`") for row in table(heading)]


def value(text: str) -> Any:
    """What a cell says: a duration in microseconds, a number, or a word."""
    text = text.strip("`")
    if DURATION.fullmatch(text):
        return parse_duration(text)
    return int(text.replace(",", "")) if text[0].isdigit() else text


SETTINGS = {row[0].strip("`"): row[1:] for row in table("Of a queue")}
RANGES = {
    name: row[1].partition(", or ")[0].split(" to ") for name, row in SETTINGS.items() if re.match(r"`[0-9.]", row[1])
}
WORDS = {name: row[1].partition(", or ")[2].strip("`") for name, row in SETTINGS.items() if ", or " in row[1]}


def test_tables_of_the_page_are_those_that_are_generated() -> None:
    assert settings_reference.text() == PAGE.read_text(), "run python -m tests.unit.settings_reference"


def test_every_setting_is_listed_in_the_order_of_the_code() -> None:
    assert list(SETTINGS) == list(QueueSettings.__struct_fields__)


def test_every_link_of_the_tables_is_used() -> None:
    page = PAGE.read_text()
    assert [phrase for phrase, target in settings_reference.LINKS.items() if f"[{phrase}]({target})" not in page] == []


@pytest.mark.parametrize("name", SETTINGS)
def test_default_is_the_one_in_the_code(name: str) -> None:
    default = getattr(QueueSettings(), name)
    written = SETTINGS[name][0]
    if written == "unset":
        assert default is None
    elif written == "none":
        assert default in ((), {}, RetryPolicy(), RedactRules())
    elif written.startswith("all but "):
        assert set(FeedKind) - set(default) == set(re.findall(r"`(\w+)`", written))
    elif isinstance(default, bool):
        assert written.strip("`") == str(default).lower()
    else:
        assert value(written) == default


@pytest.mark.parametrize("name", RANGES)
def test_range_ends_where_the_page_says(name: str) -> None:
    smallest, largest = map(value, RANGES[name])
    is_duration = DURATION.fullmatch(RANGES[name][0].strip("`")) is not None
    as_written: Callable[[int], Any] = (lambda n: timedelta(microseconds=n)) if is_duration else (lambda n: n)
    for inside in (smallest, largest):
        assert getattr(parse_settings({name: as_written(inside)}), name) == inside
    for outside in (smallest - 1, largest + 1):
        with pytest.raises((InvalidSetting, InvalidDuration)):
            parse_settings({name: as_written(outside)})


def test_words_of_the_page_are_settings() -> None:
    of_durations = {name: word for name, word in WORDS.items() if name in RANGES}
    assert of_durations == {"idempotency_timeout": WITH_ITEM}
    for name, word in of_durations.items():
        assert getattr(parse_settings({name: word}), name) == word


def test_settings_without_a_range_in_numbers_are_those_that_have_none() -> None:
    listed = {
        "retry",
        "retry_after",
        "final_errors",
        "error_rules",
        "dead_queue",
        "on_dead",
        "search",
        "feed",
        "breakers",
        "redact",
    }
    assert SETTINGS.keys() - RANGES.keys() == listed


def test_item_options_are_those_that_an_item_may_override() -> None:
    documented = {row[2].strip("`") for row in SETTINGS.values() if row[2].startswith("`")}
    options = set(inspect.signature(new_item).parameters)
    assert documented == set(Overrides.__struct_fields__) | (options & set(SETTINGS))
    assert documented <= options


def test_every_key_of_retry_and_of_error_rules_is_listed() -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_settings({"retry": {"no such key": 1}})
    assert sorted(names("retry")) == sorted(str(refused.value).split("known are ")[1].split(", "))
    assert names("error_rules") == list(ErrorRule.__struct_fields__)


def test_every_key_of_a_breaker_is_listed_with_its_default_and_range() -> None:
    rows = {row[0].strip("`"): row[1:3] for row in table("breakers")}
    assert list(rows) == list(BreakerRule.__struct_fields__)
    section = PAGE.read_text().split("\n## breakers\n")[1].split("| key |")[0]
    assert {*RULE_KEYS} == {*re.findall(r"`(\w+)`", section)}
    for key in ("window", "minimum", "open_for", "probes"):
        assert value(rows[key][0]) == getattr(BreakerRule(), key)
    assert (rows["failures"][0].split(",")[0], rows["share"][0]) == (str(BreakerRule().failures_limit), "none")
    for key in ("failures", "window", "minimum", "open_for", "probes"):
        ends = [end.strip("`") for end in rows[key][1].split(" to ")]
        for end in ends:
            assert getattr(_breaker(key, value(end)), key) == value(end)
        for outside in (value(ends[0]) - 1, value(ends[1]) + 1):
            with pytest.raises((InvalidSetting, InvalidDuration)):
                _breaker(key, outside)


def _breaker(key: str, number: int) -> BreakerRule:
    is_duration = key in ("window", "open_for")
    written = timedelta(microseconds=number) if is_duration else number
    return parse_settings({"breakers": {"queue": {key: written}}}).breakers["queue"]


def test_every_rule_for_redaction_is_listed() -> None:
    section = PAGE.read_text().split("\n### Rules of a queue\n")[1]
    assert re.findall(r"^\| `(\w+)` \|", section.split("\n## ")[0], re.M) == list(RedactRules.__struct_fields__)


def test_limits_are_those_in_the_code() -> None:
    expected = {
        "names": limits.MAX_NAME_CHARS,
        "idempotency keys": limits.MAX_LABEL_CHARS,
        "headers": limits.MAX_HEADERS_BYTES,
        "`retry` of an item": limits.MAX_ITEM_RETRY_BYTES,
        "depth": payload.MAX_DEPTH,
        "digits": payload.MAX_INTEGER_DIGITS,
        "payload": limits.MAX_STORABLE_BYTES,
        "items of one": limits.MAX_BATCH,
        "history": limits.HISTORY_FIRST + limits.HISTORY_LAST,
        "text of": failure.MAX_TEXT_BYTES,
        "traceback of": failure.MAX_TRACEBACK_BYTES,
        "variables of": failure.MAX_LOCALS_BYTES,
        "calls that wait": limits.MAX_WAITING_CALLS,
    }
    written = dict(table("Limits"))
    for beginning, limit in expected.items():
        (found,) = (text for name, text in written.items() if name.startswith(beginning))
        number = re.match(r"[0-9,]+", found)
        assert number is not None
        assert int(number[0].replace(",", "")) == limit, beginning
