"""The base of all methods of `Broker`: the driver of flows in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from redrive.broker.core import Core
from redrive.broker.flow import Flow, raise_if_refused, run
from redrive.contract import Call, Query

_T = TypeVar("_T")
_Given = TypeVarTuple("_Given")


class BrokerBase:
    """The driver of flows in the calling thread. `AsyncBrokerBase` has the same methods.

    Its public methods are for packages that are built on the broker: docs/internals/ARCHITECTURE.md.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        """The argument of flows: the store and everything around it."""

    def submit(self, call: Call) -> Any:
        """Commit one call, without a flow, and return its result. Raises if it was refused."""
        return raise_if_refused(self.core.committer.commit((call,))[0])

    def run_flow(self, flow: Flow[_T]) -> _T:
        """Drive a flow to its end in this thread."""
        return run(self.core, flow)

    run_flow_in_thread = run_flow
    """The same as `run_flow`: a blocking caller already has its thread."""

    run_flow_to_end = run_flow
    """The same as `run_flow`: a blocking call is not cancelled."""

    def _read_ahead(self, query: Query) -> Any:
        return self.core.read(query)

    def _in_thread(self, work: Callable[[*_Given], _T], *given: *_Given) -> _T:
        return work(*given)
