"""Instants of callers: datetimes with a time zone, of any zone, within what stores can keep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

from redrive.broker.validation import to_instant
from redrive.errors import InvalidDuration, InvalidInput


class _Zone(tzinfo):
    """A time zone that has no offset, or whose offset raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        if self._error is not None:
            raise self._error
        return None


def test_instant_is_the_same_in_every_zone() -> None:
    at = datetime(2026, 7, 1, 3, 12, 55, 17, tzinfo=UTC)
    zones = [timezone(timedelta(hours=hours, minutes=45)) for hours in (-12, 0, 13)]
    assert {to_instant("at", at.astimezone(zone)) for zone in zones} == {1_782_875_575_000_017}


@pytest.mark.parametrize(
    "value",
    [
        datetime(1960, 1, 1, tzinfo=UTC),
        datetime(2255, 12, 31, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-14))),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    ],
)
def test_instant_that_no_store_can_keep_is_refused_as_it_was_given(value: datetime) -> None:
    with pytest.raises(InvalidDuration, match=rf"^expire_at '{value.year:04}-.*the years 1970 to 2254"):
        to_instant("expire_at", value)


@pytest.mark.parametrize("zone", [None, _Zone()])
def test_datetime_without_an_offset_is_refused(zone: tzinfo | None) -> None:
    with pytest.raises(InvalidDuration, match="is not a datetime with a time zone"):
        to_instant("at", datetime(2026, 1, 1, tzinfo=zone))


def test_zone_that_raises_is_reported() -> None:
    with pytest.raises(InvalidInput, match="at cannot be read: ValueError"):
        to_instant("at", datetime(2026, 1, 1, tzinfo=_Zone(ValueError("no such zone"))))
