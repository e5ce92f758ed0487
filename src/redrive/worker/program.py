"""Programs that `redrive work module:name` can run: each gives the worker process its brokers and a worker.

An `App` is wrapped in one (`AppProgram`). Packages above this one bring others: a `LoopGroup` of mailboxes is one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from redrive.broker.broker import Broker
from redrive.errors import InvalidInput
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import WorkerLaunch


class RunnableWorker(Protocol):
    """A worker that a worker process runs, and stops when its supervisor asks. A `Worker` is one."""

    has_settled_all: bool
    """True if it has ended and holds no leases."""

    def run(self, *, until_idle: bool = False) -> None:
        """Work in this thread until `stop`, with heartbeat and registration. Installs no signal handlers."""
        ...

    def stop(self, *, at_once: bool = False) -> None:
        """Lease nothing more, finish what runs, and end. From any thread. A second call, or `at_once`: do not wait."""
        ...


class WorkerProgram(ABC):
    """An object in a module that `redrive work` runs with its supervisor."""

    CHANGE_OF_STORE: ClassVar[str]
    """Advice on how to run it on another store, as part of a sentence."""

    @property
    @abstractmethod
    def brokers(self) -> Sequence[Broker]:
        """The brokers that it leases from. They are open, and the process that runs it closes them."""

    @abstractmethod
    def make_worker(self, launch: WorkerLaunch, in_flight_log: InFlightLog | None) -> RunnableWorker:
        """Return the worker that the launch describes. Raises InvalidInput if an option is not for this program.

        in_flight_log: the worker records there what it runs, and leases under the name that the log has, so that what
        it held is settled if it is killed. None without a supervisor.
        """


def refuse_options(launch: WorkerLaunch, program: str, reasons: Mapping[str, str]) -> None:
    """Raise InvalidInput if the command line has one of these options, and say what to do instead."""
    for option, reason in reasons.items():
        if option in launch.options:
            raise InvalidInput(f"{option} is not for {program}: {reason}")
