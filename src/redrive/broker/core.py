"""The core that `Broker` and `AsyncBroker` share: the store, the committer, the waiters, and the cached settings."""

from __future__ import annotations

import getpass
import os
import random
import socket
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from redrive.broker.breaker_monitor import BreakerMonitor
from redrive.broker.committer import Committer
from redrive.broker.flow import Flow, run_query
from redrive.broker.flows.breaker_verdicts import held_verdict
from redrive.broker.flows.moves import MoveBackoff
from redrive.broker.instrumentation import BrokerMetrics, collect_metrics
from redrive.broker.maintenance import MaintenanceThread
from redrive.broker.notifier import Notifier
from redrive.broker.redaction import Redaction
from redrive.broker.signal_shield import shielded
from redrive.broker.store_registry import StoreRegistry
from redrive.clock import Instant
from redrive.contract import Call, Query
from redrive.contract.item_calls import Put
from redrive.contract.queries import GetQueue
from redrive.contract.replies import REPLY_TO
from redrive.errors import Closed, InvalidInput
from redrive.model.caller_input import checking_input
from redrive.model.death import DeadReason
from redrive.model.duration import DAY, SECOND
from redrive.model.failure import Failure
from redrive.model.gate import RETRY_AFTER_GATE, Gate, set_gate
from redrive.model.item import NO_OVERRIDES, Counters, Item, Lease, Overrides, Receipt, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, Verdict, check_custom_verdict, count_outcome, dead_verdict, judge
from redrive.model.limits import check_address, check_label, split_address
from redrive.model.queue import Queue
from redrive.model.retry_policy import MAX_FUNCTION_DELAY, DelayFunction
from redrive.store import Store
from redrive.telemetry import events
from redrive.telemetry.metrics import Metrics

_log = events.logger("redrive.broker")


class Core:
    """One open store and everything around it. `Broker` and `AsyncBroker` call it, and keep no other state."""

    def __init__(
        self,
        store: Store,
        *,
        actor: str | None = None,
        backoffs: Mapping[str, DelayFunction] | None = None,
        maintenance: bool = True,
        redaction: Redaction | None = None,
        stores: StoreRegistry | None = None,
    ) -> None:
        self.store = store
        self.clock = store.clock
        self.notify = Notifier(store)
        self.breakers = BreakerMonitor()
        self.committer = Committer(store, self.notify.notify_arrivals, self._watch_failures)
        self.redaction = redaction or Redaction()
        self._actor = check_label("actor", _default_actor() if actor is None else actor)
        self._backoffs = {name: _cut_with_warning(name, function) for name, function in (backoffs or {}).items()}
        self._queues: dict[str, Queue] = {}
        self._with_maintenance = maintenance
        self._maintenance: MaintenanceThread | None = None
        self._closing = threading.Lock()
        self._closed = False
        self.meter: BrokerMetrics | None = None
        """The metrics; None until they are first requested."""
        self.trials = MoveBackoff()
        self.stores = stores or StoreRegistry()
        self.stores.add(self)
        _OPEN.add(self)
        self._start()

    def read(self, query: Query) -> Any:
        """Answer one query in this thread."""
        return shielded(self._read, query)

    def _read(self, query: Query) -> Any:
        if self._closed:
            raise Closed
        self.committer.revive_after_fork()
        return self.store.read(query)

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        """Put inside a transaction of the caller."""
        if self._closed:
            raise Closed
        if any(REPLY_TO in (item.headers or ()) for item in put.items):
            raise InvalidInput("an item that names a queue for replies cannot be put in a transaction of yours")
        self.committer.revive_after_fork()
        return self.store.put_in_transaction(connection, put)

    def actor(self, actor: str | None) -> str:
        """Return the actor of a change: the given one, or that of the broker."""
        return self._actor if actor is None else check_label("actor", actor)

    def queue(self, name: str) -> Flow[Queue]:
        """Return a queue from the cache, or read it. The store refuses verdicts that were judged by stale settings."""
        queue = self._queues.get(name)
        return queue if queue is not None else self.cache_queue((yield from run_query(GetQueue(name))))

    def cache_queue(self, queue: Queue) -> Queue:
        """Cache the newest known state of a queue."""
        self._queues[queue.name] = queue
        return queue

    def is_gated(self, name: str) -> bool:
        """Return whether a gate of the cached queue is closed now."""
        queue, now = self._queues.get(name), self.clock.now()
        return queue is not None and any(now < gate.until for gate in queue.gates)

    def close_gate(self, name: str, until: Instant) -> None:
        """Record in the cache that a delivery of this process has closed the gate of a queue."""
        queue = self._queues.get(name)
        if queue is not None:
            gates = set_gate(queue.gates, RETRY_AFTER_GATE, Gate(RETRY_AFTER_GATE, until))
            self.cache_queue(msgspec.structs.replace(queue, gates=gates))

    def add_backoff(self, name: str, function: DelayFunction) -> None:
        """Register a delay function of this program, which retry policies may name."""
        self._backoffs[name] = _cut_with_warning(name, function)

    def evict_queue(self, name: str) -> None:
        """Remove a deleted queue from the cache."""
        self._queues.pop(name, None)

    def judge(
        self,
        queue: Queue,
        outcome_kind: OutcomeKind,
        counters: Counters,
        *,
        failure: Failure | None = None,
        overrides: Overrides = NO_OVERRIDES,
        expired: bool = False,
        delay: int = 0,
        dead_reason: DeadReason | None = None,
    ) -> Verdict:
        """Judge by the settings of a queue, with this program's delay functions and a fresh jitter.

        The counters are those before this outcome.
        """
        verdict = judge(
            queue.settings,
            outcome_kind,
            count_outcome(counters, outcome_kind),
            failure=failure,
            overrides=overrides,
            expired=expired,
            delay=delay,
            jitter=random.random(),
            backoffs=self._backoffs,
            dead_reason=dead_reason,
        )
        return held_verdict(queue, verdict, failure) if outcome_kind.is_failure else verdict

    def judge_delivery(
        self,
        queue: Queue,
        outcome_kind: OutcomeKind,
        item: Lease | Item,
        *,
        failure: Failure | None = None,
        delay: int = 0,
    ) -> Verdict:
        """Judge the outcome of a delivery, or of a manual change of an item that is not leased."""
        return self.judge(
            queue,
            outcome_kind,
            item.counters,
            failure=failure,
            overrides=item.overrides,
            expired=item.expire_deadline is not None and item.expire_deadline <= self.clock.now(),
            delay=delay,
            dead_reason=item.dead_reason,
        )

    def route_verdict(self, queue: Queue, verdict: Verdict | None, failure: Failure | None) -> Verdict | None:
        """Check a verdict of the program, and complete it: a death without a target goes to the queue's dead queue.

        A retry is held by the open breakers of its kind, like one that is judged.
        """
        if verdict is None:
            return None
        with checking_input("verdict"):
            brought = check_custom_verdict(verdict)
        if isinstance(brought, Dead) and brought.to is not None:
            brought = msgspec.structs.replace(brought, to=self.address("queue", brought.to))
        if isinstance(brought, Dead) and brought.to is None and not brought.drop:
            return dead_verdict(queue.settings, brought.reason, failure)
        return held_verdict(queue, brought, failure)

    def address(self, what: str, address: str) -> str:
        """Return an address in the form for the store: its own queues by name alone. Raises if the store is unknown."""
        address = check_address(what, address)
        queue, store = split_address(address)
        if store is None or store == self.store.name:
            return queue
        self.stores.check(store)
        return address

    @property
    def place(self) -> tuple[str, str]:
        """Where the queues of this broker are: the place of the store, and the namespace."""
        return self.store.place, self.store.namespace

    def start_moves(self, settled: Iterable[Any]) -> None:
        """Wake the movers if settled items are moving to another store."""
        if any(isinstance(each, Settled) and each.status is Status.MOVING for each in settled):
            self.wake_movers()

    def metrics(self) -> Metrics:
        """Return the metrics, which are counted from the first call on."""
        with self._closing:
            if self.meter is None:
                self.meter = self.committer.meter = collect_metrics(self)
            return self.meter.metrics

    @property
    def is_closed(self) -> bool:
        """True if it was closed."""
        return self._closed

    def wake_movers(self) -> None:
        """Wake the threads that move items to other stores."""
        if self._maintenance is not None:
            self._maintenance.departed()

    def wake_maintenance(self) -> None:
        """Wake the maintenance; without one in this process, another process does the work."""
        if self._maintenance is not None:
            self._maintenance.wake()

    def _watch_failures(self, calls: Sequence[Call], results: Sequence[Any]) -> None:
        """Let breakers be judged immediately after failures that may open one."""
        if self.breakers.counts.left and self.breakers.counts.has_tripped(calls, results):
            self.breakers.judged_at = None
            self.wake_maintenance()

    def close(self) -> None:
        """Finish accepted calls, wake all waiters and release the store."""
        shielded(self._close)

    def _close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self.stores.close(self)
        if self._maintenance is not None:
            self._maintenance.close()
        self.notify.close()
        self.committer.close()
        self.store.close()

    def _start(self) -> None:
        if self._with_maintenance:
            self._maintenance = MaintenanceThread(self)
            self._maintenance.start()

    def _after_fork(self) -> None:
        """Reset a forked child: its threads do not exist, locks may stay held, connections belong to the parent."""
        if self._closed:
            return
        self._closing = threading.Lock()
        if self.meter is not None:
            self.meter.reset()
        self.stores.after_fork()
        self.notify.after_fork()
        self.committer.after_fork(self._start)


def _default_actor() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"


def _cut_with_warning(name: str, function: DelayFunction) -> DelayFunction:
    """Return the delay function with a warning in the log where its answer is cut. What it raises is handled there."""

    def delay(n: int) -> Any:
        answer: Any = function(n)
        if (answer.total_seconds() if isinstance(answer, timedelta) else answer) > MAX_FUNCTION_DELAY // SECOND:
            _log.warning("delay_function_cut", function=name, days=MAX_FUNCTION_DELAY // DAY)
        return answer

    return delay


_OPEN: weakref.WeakSet[Core] = weakref.WeakSet()


def _revive_children() -> None:
    for core in tuple(_OPEN):
        core._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_revive_children)
