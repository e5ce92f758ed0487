"""Settlement of the leases of a worker that died or stopped too soon: items that it ran, and items that it only held.

What ran is lost, with what is known of the exit of the process: one loss, counted immediately. What did not run is
returned to its old place, and not counted; so are suspects that ran together, since any of them may have been the
cause: fewer of them run together the next time. If the store is unavailable, nothing is lost either: leases expire.
"""

from __future__ import annotations

import msgspec

from redrive.broker.broker import Broker
from redrive.broker.worker_session import (
    RETRYABLE_STORE_ERRORS,
    Lost,
    Outcome,
    Returned,
    WorkerSession,
    open_worker_session,
)
from redrive.errors import RedriveError
from redrive.model.item import Lease, Settled
from redrive.model.worker_info import TASK_HEADER
from redrive.telemetry import events, tracing
from redrive.worker.in_flight import InFlightItem, InFlightLog, WorkerExit
from redrive.worker.outcome_report import report
from redrive.worker.process_exit import loss
from redrive.worker.suspects import AMBIGUOUS, LAST_SHARED_SUSPICION, suspicion_of

MAX_ROUNDS = 100
"""Queries for held leases at most. Each returns as many leases as one transaction settles."""
STOPPED = "its worker was stopped while it ran"
_log = events.logger("redrive.worker")


class OrphanCounts(msgspec.Struct):
    """Counts of the leases of a dead worker, by how they were settled."""

    lost: int = 0
    returned: int = 0
    refused: int = 0
    """Leases that had expired, or that another process had settled."""


def settle_orphans(broker: Broker, in_flight_log: InFlightLog) -> OrphanCounts:
    """Settle the leases of a dead worker, by its in-flight log. Raises RedriveError if the store fails."""
    running = {each.token: each for each in in_flight_log.running()}
    is_shared = sum(not each.pid for each in running.values()) > 1
    worker_exit = in_flight_log.worker_exit
    session = open_worker_session(broker, in_flight_log.worker)
    left = OrphanCounts()
    for _ in range(MAX_ROUNDS):
        held = session.list_leases()
        if not held:
            break
        ends: list[tuple[Lease, Outcome]] = [
            (lease, _end(session, lease, running.get(lease.token), worker_exit, is_shared)) for lease in held
        ]
        settled = session.step(ends, {}).settled
        for (lease, end), result in zip(ends, settled, strict=True):
            if isinstance(result, RETRYABLE_STORE_ERRORS):
                raise result
            if isinstance(result, Settled) and isinstance(end, Lost):
                report(lease, end, result)
            left.lost += isinstance(result, Settled) and isinstance(end, Lost)
            left.returned += isinstance(result, Settled) and isinstance(end, Returned)
            left.refused += not isinstance(result, Settled)
        if not any(isinstance(result, Settled) for result in settled):
            break
    _log.info(
        "orphans_settled", worker=in_flight_log.worker, lost=left.lost, returned=left.returned, refused=left.refused
    )
    return left


def return_leases(broker: Broker, worker: str) -> bool:
    """Return the leases of a stopped worker to their queues, uncounted. Returns False if the store failed."""
    session = open_worker_session(broker, worker)
    try:
        held = session.list_leases()
        settled = session.step([(lease, Returned(STOPPED)) for lease in held], {}).settled
    except RedriveError as error:
        _log.warning("orphans_not_settled", error=str(error))
        return False
    return not any(isinstance(result, RETRYABLE_STORE_ERRORS) for result in settled)


def _end(
    session: WorkerSession,
    lease: Lease,
    running: InFlightItem | None,
    worker_exit: WorkerExit | None,
    is_shared: bool,
) -> Outcome:
    if running is None:
        return Returned()
    if worker_exit is not None and worker_exit.by_order:
        return Returned(STOPPED)
    if is_shared and not running.pid and 0 < suspicion_of(lease, session) <= LAST_SHARED_SUSPICION:
        return Returned(AMBIGUOUS)
    exit = None if worker_exit is None else worker_exit.exit
    return Lost(
        loss(
            exit,
            seconds=None if exit is None else max(0.0, (exit.at - running.began_at) / 1_000_000),
            task=lease.headers.get(TASK_HEADER),
            worker=lease.worker,
            because=worker_exit.because or None if worker_exit is not None else None,
            trace_id=tracing.trace_id(lease.headers),
        )
    )
