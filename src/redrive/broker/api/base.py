"""What all methods of `Broker` share: how a flow is run."""

from __future__ import annotations

from typing import TypeVar

from redrive.broker.core import Core
from redrive.broker.flow import Flow, run

_T = TypeVar("_T")


class BrokerBase:
    """Runs flows in the calling thread."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def _run(self, flow: Flow[_T]) -> _T:
        return run(self._core, flow)

    _finish = _run
    """A call that blocks is not cancelled."""
