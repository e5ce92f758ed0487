"""What all methods of `Broker` share: how a flow is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from redrive.broker.core import Core
from redrive.broker.flow import Flow, raise_if_refused, run
from redrive.contract import Call, Query

_T = TypeVar("_T")
_Given = TypeVarTuple("_Given")


class BrokerBase:
    """Runs flows in the calling thread. `AsyncBrokerBase` has the same methods."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def _call(self, call: Call) -> Any:
        return raise_if_refused(self._core.committer.commit((call,))[0])

    def _read_ahead(self, query: Query) -> Any:
        return self._core.read(query)

    def _run(self, flow: Flow[_T]) -> _T:
        return run(self._core, flow)

    _look = _run
    _finish = _run
    """A call that blocks is not cancelled."""

    def _in_thread(self, work: Callable[[*_Given], _T], *given: *_Given) -> _T:
        return work(*given)
