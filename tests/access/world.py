"""A namespace with two of everything: what is the caller's own, and what is not. For tests of who may do what."""

from __future__ import annotations

from typing import Any

import msgspec

from redrive import AsyncBroker, Broker, Verb, WorkerInfo, connect
from redrive.auth.caller import Caller, KnownLeases
from redrive.auth.principal import Principal, Role
from redrive.auth.result_filter import filter_results
from redrive.auth.store_call_authorization import authorize_calls
from redrive.broker.core import Core
from redrive.clock import Instant
from redrive.contract import Call, Query
from redrive.contract.admin_calls import Register, StartOperation
from redrive.model.filter import Filter
from redrive.model.item import Status
from redrive.server.validation.dispatch import validate_call
from redrive.testing import FakeClock

NAMESPACE = "default"
OWN, FOREIGN = "own", "foreign"
OWN_QUEUES = ("own-*",)
SECRET = "swordfish"
"""What is in every payload, header, result and key, and nobody without the right to it may see."""


class Side:
    """What there is in the queues of one side: those of a caller, or those that are not."""

    def __init__(self, broker: Broker, side: str) -> None:
        self.side = side
        self.queue = f"{side}-jobs"
        self.dead_queue = f"{side}-dead"
        self.third_queue = f"{side}-third"
        for name in (self.dead_queue, self.third_queue):
            broker.create_queue(name)
        broker.create_queue(self.queue, dead_queue=self.dead_queue, keep_completed="1d")
        self.active_id = self.put(broker, "active")
        (self.lease,) = broker.lease(self.queue, worker="ann/1")
        self.token = self.lease.token
        self.done_id = self.put(broker, "done")
        (lease,) = broker.lease(self.queue)
        broker.complete(lease, result={"result": f"{SECRET} {side}"}, keep_result="1d")
        self.gone_id = broker.put(self.third_queue, side).id
        (lease,) = broker.lease(self.third_queue)
        broker.complete(lease, result={"result": f"{SECRET} {side}"}, keep_result="1d")
        self.id = self.put(broker, "pending")
        dead_id = self.put(broker, "dead")
        broker.bury_items(dead_id)
        self.letter_id = broker.get(dead_id).id
        call = broker.submit
        paused = {"actor": "world", "paused": True}
        self.operation: str = call(StartOperation(verb=Verb.ARCHIVE, where=Filter(queue=self.dead_queue), **paused)).id
        archived = Filter(queue=self.dead_queue, status=Status.ARCHIVED)
        self.purge: str = call(StartOperation(verb=Verb.PURGE, where=archived, **paused)).id
        worker = WorkerInfo(f"{side}-worker", "host", 1, (self.queue,), (), {}, Instant(0), 1)
        call(Register("worker", worker.name, msgspec.json.encode(worker)))
        call(Register("schedule", f"{self.queue}/task", b"{}"))
        call(Register("managed", self.queue, b"{}"))
        call(Register("poll", self.queue, b"{}"))

    def put(self, broker: Broker, what: str) -> str:
        key = f"{SECRET}-{self.side}-{what}"
        said = f"{SECRET} {self.side}"
        return broker.put(self.queue, {"key": said}, headers={"header": said}, idempotency_key=key).id


class World:
    """A store with both sides, in memory where no other is given."""

    def __init__(self, core: Core | None = None) -> None:
        self.clock = FakeClock()
        self.broker = connect("memory://", clock=self.clock, maintenance=False) if core is None else Broker(core)
        self.awaited = AsyncBroker(self.broker.core)
        self.sides = {side: Side(self.broker, side) for side in (OWN, FOREIGN)}

    def caller(self, principal: Principal, namespace: str = NAMESPACE) -> Caller:
        """Somebody who calls, without a lease that this server knows of."""
        return Caller(principal, namespace, self.broker.core, KnownLeases())

    def authorize(self, principal: Principal, *calls: Call | Query, namespace: str = NAMESPACE) -> list[Any]:
        """Each call of a remote client, checked, or its refusal."""
        now = self.broker.core.clock.now()
        flow = authorize_calls(self.caller(principal, namespace), calls, lambda call: validate_call(call, now))
        return self.broker.run_flow(flow)

    def shown(self, principal: Principal, call: Call | Query, result: Any) -> Any:
        """The result of a call as that principal sees it."""
        return self.broker.run_flow(filter_results(self.caller(principal), (call,), (result,)))[0]

    def close(self) -> None:
        self.broker.close()


def everywhere(*roles: Role) -> Principal:
    """Whoever has these roles, and is let into every queue."""
    return Principal("ann", frozenset(roles))


def limited(*roles: Role) -> Principal:
    """The same, in queues of his own only."""
    return Principal("ann", frozenset(roles), queues=OWN_QUEUES)


def in_another_namespace(*roles: Role) -> Principal:
    """The same, elsewhere."""
    return Principal("ann", frozenset(roles), namespaces=("another",))
