"""After close: everything is refused in the same way, and nothing is opened again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive import Broker
from redrive.errors import Closed
from redrive.store import GetQueue, ListQueues, NextDue
from redrive.testing.conformance.direct import Direct, DirectSuite, put

USES: dict[str, Callable[[Broker], Any]] = {
    "put": lambda broker: broker.put("jobs", 1),
    "put_many": lambda broker: broker.put_many("jobs", [1, 2]),
    "lease": lambda broker: broker.lease("jobs"),
    "lease, waiting": lambda broker: broker.lease("jobs", wait="1h"),
    "get": lambda broker: broker.get("0" * 32),
    "stats": lambda broker: broker.stats("jobs"),
    "queues": lambda broker: broker.list_queues(),
    "create_queue": lambda broker: broker.create_queue("mails"),
    "hold": lambda broker: broker.hold(["0" * 32], "somebody"),
    "retry": lambda broker: broker.retry("0" * 32),
    "step": lambda broker: broker.step(),
}


class CloseConformance(DirectSuite):
    """A broker and a store that were closed."""

    @pytest.mark.parametrize("use", USES.values(), ids=USES)
    def test_closed_broker_refuses(self, broker: Broker, use: Callable[[Broker], Any]) -> None:
        broker.create_queue("jobs")
        broker.close()
        with pytest.raises(Closed):
            use(broker)

    def test_settle_after_close_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        (lease,) = broker.lease("jobs")
        broker.close()
        for use in (broker.complete, broker.extend, broker.release, broker.bury):
            with pytest.raises(Closed):
                use(lease)
        with pytest.raises(Closed):
            broker.fail(lease, "boom")

    def test_closing_twice_is_no_error(self, broker: Broker) -> None:
        broker.close()
        broker.close()

    def test_closed_store_serves_nothing(self, direct: Direct) -> None:
        direct.queue()
        direct.read(GetQueue("jobs"))
        direct.store.changed()
        direct.store.close()
        direct.store.close()
        with pytest.raises(Closed):
            direct.commit(put(b"a"))
        for query in (NextDue(), ListQueues(), GetQueue("jobs")):
            with pytest.raises(Closed):
                direct.read(query)
        with pytest.raises(Closed):
            direct.store.changed()

    def test_store_that_was_closed_before_its_first_use_serves_nothing(self, direct: Direct) -> None:
        direct.store.close()
        with pytest.raises(Closed):
            direct.read(ListQueues())
        with pytest.raises(Closed):
            direct.store.changed()
        with pytest.raises(Closed):
            direct.commit(put(b"a"))
