"""Two stores that know each other: the one under test, and one in memory, both ways."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from redrive import Broker
from redrive.model.item import Item
from redrive.store import ListMoves, ListOpenMoves, Receive
from redrive.testing.conformance.suite import OpenBroker, Suite


class Pair(NamedTuple):
    """Two stores that know each other. Items die in the first one."""

    source: Broker
    target: Broker

    @property
    def source_name(self) -> str:
        """What the second one calls the first."""
        return self.source._core.store.name

    @property
    def target_name(self) -> str:
        """What the first one calls the second."""
        return self.target._core.store.name

    def there(self, queue: str) -> str:
        """The address of a queue in the second store."""
        return f"{queue}@{self.target_name}"

    def furnish(self, **settings: Any) -> None:
        """A dead queue in the second store, and a queue in the first whose dead go there."""
        self.target.create_queue("morgue")
        self.source.create_queue("jobs", dead_queue=self.there("morgue"), **settings)

    def receive(self) -> list[Any]:
        """Only the second step of every move."""
        moves = self.source._core.store.read(ListMoves())
        calls = [Receive(move.passage.to.partition("@")[0], move, self.source_name) for move in moves]
        return self.target._core.store.commit(calls).results

    def left_open(self) -> int:
        """What the second store has received and the first may still have."""
        return len(self.target._core.store.read(ListOpenMoves(self.source_name)))


class PairSuite(Suite):
    """A store under test and one in memory, each once as the one that items leave."""

    @pytest.fixture(params=["to memory", "from memory"])
    def pair(self, request: pytest.FixtureRequest, open_broker: OpenBroker) -> Pair:
        """Two stores that know each other."""
        here = open_broker(name="here", stores={"there": "memory://"})
        there = here.at("there")
        return Pair(here, there) if request.param == "to memory" else Pair(there, here)


def only(broker: Broker, **conditions: Any) -> Item:
    """The one item that is found."""
    (item,) = broker.find(**conditions).items
    return item
