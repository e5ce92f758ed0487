"""The thread that runs maintenance: what it logs, and how it ends."""

from __future__ import annotations

import threading

import pytest

from redrive import connect
from redrive.broker.maintenance import MaintenanceThread
from redrive.clock import Instant
from redrive.errors import Closed


def test_broker_that_is_closed_while_items_depart_ends_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, moved = threading.Event(), threading.Event()

    def move(self: MaintenanceThread, now: Instant) -> None:
        if not first.is_set():
            first.set()
            return
        moved.set()
        raise Closed

    monkeypatch.setattr(MaintenanceThread, "_move", move)
    with connect("memory://") as broker:
        assert first.wait(60)
        thread = broker.core._maintenance
        assert thread is not None
        while not moved.is_set():  # it may not have come to its wait
            thread.departed()
            moved.wait(0.01)
    assert [record.getMessage() for record in caplog.records] == []
