"""What the suites of tasks and workers stand on: an app on the store under test, and a worker for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redrive import App, Broker
from redrive.model.item import Item
from redrive.testing.conformance.suite import Suite
from redrive.worker.worker import Worker


def work(app: App, broker: Broker, **options: Any) -> Worker:
    """Run what there is to run."""
    worker = Worker(app, broker=broker, **{"concurrency": 4, **options})
    worker.run(until_idle=True)
    return worker


def only(broker: Broker, queue: str = "jobs") -> Item:
    """The one item of a queue, all of it."""
    (found,) = broker.find(queue=queue, status="any").items
    return broker.get(found.id)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, which a thread of the worker sees to."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class WorkerSuite(Suite):
    """The fixtures of suites that run workers."""

    @pytest.fixture
    def app(self, broker: Broker) -> Iterator[App]:
        """An app that puts to the broker of the test."""
        app = App()
        with app.using(broker):
            yield app
