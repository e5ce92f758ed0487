"""External queues: a command lists the objects of another system, and each new object becomes an item of the queue.

An object is put with its name and version as idempotency key, which the queue keeps for `idempotency_timeout`. So
several processes may list the same source. An object whose item exists is not put again, for any length of time; one
whose item an operator removed is put again. Before the work, `take` claims an object in its system, once: the claim is
registered, and holds if the worker dies and if a dead letter is redriven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from redrive.broker.background_thread import BackgroundThread
from redrive.broker.broker import Broker
from redrive.broker.flows import external_polls, registrations
from redrive.broker.worker_session import Completed, Outcome
from redrive.clock import Instant
from redrive.config.config import ExternalOptions
from redrive.config.known_objects import KEY_HEADER, KnownObjects, digest
from redrive.config.listed_objects import ListingInvalid, items_from
from redrive.config.worker_tables import resolve_program
from redrive.contract.admin_calls import Registration
from redrive.contract.item_calls import NewItem
from redrive.errors import Closed, IdempotencyConflict, InvalidInput, QueueFull, RedriveError
from redrive.model.duration import DAY, SECOND, format_duration
from redrive.model.ids import ItemId
from redrive.model.item import Receipt
from redrive.model.redact import redact_text
from redrive.telemetry import events
from redrive.worker.command_outcome import TRY_LATER, CommandHandler, outcome_of, tail
from redrive.worker.command_process import MAX_OUTPUT_BYTES, CommandProcess, CommandResult, CommandSpec, NotStarted
from redrive.worker.runner import Job
from redrive.worker.worker import worker_name

LOOK = SECOND
"""The interval at which a poller checks for a request to list the queue now."""
TAKEN_TIMEOUT = 30 * DAY
"""The time for which the claim of an object stays registered."""
_ASKED = b"asked"
"""The value that is registered while `take` runs. Once an object is claimed, the value is empty."""
NOT_RUN = (126, 127)
"""The exit codes of a shell, `env` and similar programs if a command cannot be executed or is not found."""
MAX_ERROR_CHARS = 1_000
"""The length to which the registered error of a listing is cut."""
_BATCH = 1_000
_log = events.logger("redrive.external")


class _Done(msgspec.Struct):
    """The results of putting the objects of a listing."""

    new: int = 0
    known: dict[str | None, ItemId] = {}
    """Objects that were put before: the key, and the item."""
    problem: str | None = None
    """The problem of the first object that was refused."""
    full: str | None = None
    """The error if the queue is full: the other objects wait for another listing."""

    def add(self, key: str | None, receipt: Receipt) -> None:
        """Record that an object was put, now or before."""
        if receipt.duplicate:
            self.known[key] = receipt.id
        else:
            self.new += 1


class Poller(BackgroundThread):
    """A thread that lists one external queue at an interval, from `start` to `close`."""

    def __init__(self, broker: Broker, queue: str, options: ExternalOptions) -> None:
        super().__init__(queue)
        self._broker = broker
        self._queue = queue
        self._options = options
        self._list = resolve_program(options.list)[0]
        self._known = KnownObjects(broker, queue)
        self._name = worker_name()
        self._listing: CommandProcess | None = None
        self._problem: str | None = None
        """The problem of an object in the last listing."""

    def close(self) -> None:
        """Stop, and end a listing that runs."""
        self._end.set()
        if (run := self._listing) is not None:
            run.stop()
        super().close()

    def poll(self) -> int:
        """List once. Return the number of objects that were put. Failures are logged and registered with the listing,
        not raised: the next listing may succeed."""
        begun_at = self._broker.core.clock.now()
        items: Sequence[NewItem] = ()
        new, problem = 0, None
        try:
            items, problem = self._listed()
            done = self._put(items)
            new, problem = done.new, problem or done.problem
            self._tell(problem)
            if done.full is not None:
                problem = problem or done.full
                _log.warning("external_poll_failed", queue=self._queue, error=done.full)
        except Closed:
            self._end.set()
        except (OSError, ListingInvalid, RedriveError) as error:
            problem = str(error)
            _log.warning("external_poll_failed", queue=self._queue, error=problem)
        if not self._end.is_set():
            self._record(begun_at, len(items), new, problem)
        return new

    def _run(self) -> None:
        clock = self._broker.core.clock
        request, due_at = self._request(()), clock.now()
        while not self._end.is_set():
            asked, request = request, self._request(request)
            if clock.now() >= due_at or request != asked:
                due_at = Instant(clock.now() + self._options.poll)
                self.poll()
            clock.wait(self._end, min(due_at, Instant(clock.now() + LOOK)))

    def _request(self, last: tuple[Registration, ...]) -> tuple[Registration, ...]:
        """Return the last request to list the queue now, or `last` if the store cannot be read."""
        try:
            return self._broker.run_flow(external_polls.requested(self._queue))
        except Closed:
            self._end.set()
        except RedriveError:  # the next poll reads it
            pass
        return last

    def _record(self, at: Instant, objects: int, new: int, problem: str | None) -> None:
        error = None if problem is None else redact_text(problem)[:MAX_ERROR_CHARS]
        with suppress(RedriveError):  # the next listing is recorded again
            self._broker.run_flow(
                external_polls.record(self._queue, lambda before: before.after(at, objects, new, error, self._name))
            )

    def _tell(self, problem: str | None) -> None:
        """Log the problem of an object, unless the last listing had the same."""
        if problem is not None and problem != self._problem:
            _log.warning("external_objects_rejected", queue=self._queue, error=problem)
        self._problem = problem

    def _listed(self) -> tuple[list[NewItem], str | None]:
        """Run the command. Return the items, and the problem of the first object that is skipped."""
        variables = {"REDRIVE_QUEUE": self._queue, "REDRIVE_NAMESPACE": self._broker.core.store.namespace}
        self._listing = run = CommandProcess(self._list, b"", variables, keep_output=True)
        if self._end.is_set():  # `close` ran before there was a process to stop
            run.stop()
        ran = run.wait()
        if ran.is_stopped:
            return [], None
        if ran.timed_out:
            raise ListingInvalid(f"the command ran for longer than {format_duration(self._list.timeout or 0)}")
        if ran.exit_unknown:
            raise ListingInvalid("the command is gone, and its exit code is unknown")
        if not ran.exit.is_clean:
            raise ListingInvalid(f"the command ended with {ran.exit}: {tail(ran.errors)[-500:]}")
        if not ran.is_complete:
            raise ListingInvalid(f"the command printed more than {MAX_OUTPUT_BYTES:,} bytes")
        return items_from(ran.output, self._options.key, self._options.version)

    def _put(self, items: Sequence[NewItem]) -> _Done:
        """Put the objects without an item that are new, or whose item an operator removed."""
        left_alone = self._known.with_items() if items else set()
        wanted = {item.idempotency_key: item for item in items if item.idempotency_key not in left_alone}
        done = _Done()
        if not wanted:
            return done
        before = self._known.put_again()
        for key, item in wanted.items():
            if (name := digest(key or "")) in before:
                wanted[key] = self._known.put_after(item, before[name])
        self._put_all(wanted, done)
        removed = self._known.removed() if done.known else frozenset()
        again = {key: id for key, id in done.known.items() if id in removed}
        for item in items:
            if (id := again.get(item.idempotency_key)) is not None:
                self._known.remember(item, id)
                wanted[item.idempotency_key] = self._known.put_after(item, id)
        self._put_all({key: wanted[key] for key in again}, done)
        return done

    def _put_all(self, items: Mapping[str | None, NewItem], done: _Done) -> None:
        """Put items in batches, by the keys of their objects."""
        pairs = list(items.items())
        for begin in range(0, len(pairs), _BATCH):
            batch = pairs[begin : begin + _BATCH]
            try:
                receipts = self._broker.put_many(self._queue, [item for _, item in batch])
            except (InvalidInput, IdempotencyConflict, QueueFull):  # a batch is put as a whole, or not at all
                for key, item in batch:
                    if done.full is None:
                        self._put_one(key, item, done)
                continue
            for (key, _), receipt in zip(batch, receipts, strict=True):
                done.add(key, receipt)

    def _put_one(self, key: str | None, item: NewItem, done: _Done) -> None:
        """Put one item. An object with the same key and another payload is still the same object."""
        try:
            done.add(key, self._broker.put_many(self._queue, [item])[0])
        except IdempotencyConflict as conflict:
            done.known[key] = ItemId(conflict.id)
        except InvalidInput as error:
            done.problem = done.problem or str(error)
        except QueueFull as full:
            done.full = str(full)


def claim_command(
    broker: Broker, queue: str, take: CommandSpec, release_delay: int
) -> Callable[[Job, Callable[[CommandSpec], CommandResult]], Outcome | None]:
    """Return a function that claims an item in its system before it is run: exit 0 continues; 75 asks again later.

    With 126 and 127 the command did not run, and the item fails. Any other exit code means that another client has the
    object, and the item is completed without being run; except if an earlier call of the command has an unknown result.
    Then that call may have claimed the object for this item, which is run: at least once, rather than never.
    """
    command = CommandHandler(f"{queue}.claim", take, release_delay)

    def register(name: str, value: bytes) -> None:
        broker.run_flow(registrations.register(registrations.CLAIMED, name, value, timeout=TAKEN_TIMEOUT // 1_000_000))

    def claim(job: Job, run: Callable[[CommandSpec], CommandResult]) -> Outcome | None:
        key = job.lease.headers.get(KEY_HEADER, job.lease.id)
        name = f"{queue}/{digest(key)}"
        found = broker.run_flow(registrations.list_registrations(registrations.CLAIMED, name))
        if found and found[0].value != _ASKED:
            return None
        if not found:
            register(name, _ASKED)
        try:
            ran = run(take)
        except NotStarted:
            if not found:  # the command did not start, so nothing can be claimed
                broker.run_flow(registrations.unregister(registrations.CLAIMED, name))
            raise
        code = ran.exit.exit_code
        if ran.timed_out or code is None or code in NOT_RUN:  # a script may have claimed it before it failed
            return outcome_of(command, job, ran)
        if code == 0 or (found and code != TRY_LATER):
            register(name, b"")
            return None
        if not found:
            broker.run_flow(registrations.unregister(registrations.CLAIMED, name))
        if code == TRY_LATER:
            return outcome_of(command, job, ran)
        _log.info("external_claimed_elsewhere", item=job.lease.id, queue=queue, error=tail(ran.errors)[-500:] or None)
        return Completed()

    return claim
