"""Groups of dead letters."""

from __future__ import annotations

import pytest

from redrive.clock import Instant
from redrive.model.classify import ErrorClass
from redrive.model.duration import HOUR
from redrive.model.group import Group, hour_of
from redrive.model.ids import ItemId


@pytest.mark.parametrize("error_class", ErrorClass)
def test_every_class_of_errors_has_an_advice(error_class: ErrorClass) -> None:
    group = Group("f", "t", "", error_class, 1, Instant(0), Instant(0), {}, {}, ItemId("0" * 32))
    assert group.advice.endswith(".")


@pytest.mark.parametrize(("at", "hour"), [(0, 0), (HOUR - 1, 0), (HOUR, HOUR), (5 * HOUR + 1, 5 * HOUR)])
def test_hour_begins_where_it_begins(at: int, hour: int) -> None:
    assert hour_of(Instant(at)) == hour
