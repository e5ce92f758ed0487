"""What packages on top of the broker use of it: `core`, `submit`, and ways to run a flow. All else is private."""

import asyncio
import re
from pathlib import Path

import pytest

from redrive import AsyncBroker
from redrive.broker.api.base import BrokerBase
from redrive.broker.async_api.base import AsyncBrokerBase
from redrive.broker.flow import run_query
from redrive.contract.item_calls import LeaseItems
from redrive.contract.queries import GetQueue
from redrive.errors import QueueNotFound
from redrive.testing import FakeClock, memory_broker

ROOT = Path(__file__).parents[2]
INNER = {"run_flow", "run_flow_in_thread", "run_flow_to_end", "submit"}
PRIVATE_USE = re.compile(r"\w*broker(?:\([^()]*\))?\._[a-z]\w*", re.IGNORECASE)
"""A private attribute of what is called a broker, or is made by a class or function of that name."""
FILES = [
    path
    for folder in ("src", "tests", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ROOT / "src/redrive/broker" not in path.parents and path != Path(__file__)
]


def test_inner_interface_is_the_same_on_both_faces() -> None:
    for base in (BrokerBase, AsyncBrokerBase):
        assert {name for name in vars(base) if not name.startswith("_")} == INNER


def test_no_other_package_uses_a_private_attribute_of_a_broker() -> None:
    assert len(FILES) > 600
    found = {str(path.relative_to(ROOT)): PRIVATE_USE.findall(path.read_text()) for path in FILES}
    assert {name: uses for name, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    "source", ["broker._core", "self._broker._take(step)", "Broker(core)._ahead", "await request.broker._in_thread(f)"]
)
def test_private_use_is_found(source: str) -> None:
    assert PRIVATE_USE.search(source)


def test_flow_is_run_in_every_way_on_both_faces() -> None:
    with memory_broker(FakeClock()) as broker:
        queue, awaited = broker.create_queue("jobs"), AsyncBroker(broker.core)
        for name in INNER - {"submit"}:
            assert getattr(broker, name)(run_query(GetQueue("jobs"))) == queue
            assert asyncio.run(getattr(awaited, name)(run_query(GetQueue("jobs")))) == queue


def test_call_is_submitted_and_its_refusal_raised() -> None:
    with memory_broker(FakeClock()) as broker:
        broker.create_queue("jobs")
        receipt, awaited = broker.put("jobs", 1), AsyncBroker(broker.core)
        assert [lease.id for lease in asyncio.run(awaited.submit(LeaseItems("jobs", 1))).leases] == [receipt.id]
        assert len(broker.submit(LeaseItems("jobs", 1)).leases) == 0
        with pytest.raises(QueueNotFound):
            broker.submit(LeaseItems("absent", 1))
        with pytest.raises(QueueNotFound):
            asyncio.run(awaited.submit(LeaseItems("absent", 1)))
