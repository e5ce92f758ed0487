"""External queues: a command lists what there is, and each object that is new becomes an item of the queue.

An object is known by its key, for as long as the queue remembers idempotency keys. So many processes may list the same
source. Before the work, `take` claims an object where it comes from, once: that it was claimed is registered, and holds
when a worker dies, and when somebody brings a dead letter back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from redrive.broker import workers
from redrive.broker.broker import Broker
from redrive.broker.exchange import Completed, End
from redrive.broker.items import new_item
from redrive.clock import Instant
from redrive.config.commands import complete
from redrive.config.config import ExternalOptions
from redrive.errors import Closed, IdempotencyConflict, InvalidInput, RedriveError
from redrive.model.duration import DAY, format_duration
from redrive.model.limits import MAX_LABEL_CHARS
from redrive.model.payload import JSON
from redrive.model.program import Program
from redrive.store import NewItem
from redrive.telemetry import events
from redrive.worker.commands import TRY_LATER, Command, end_of, tail
from redrive.worker.program import MAX_OUTPUT_BYTES, Ran, Run
from redrive.worker.runner import Job

KEY_HEADER = "external-key"
"""The header of an item that has the key of its object."""
MAX_LISTED = 10_000
"""Objects of one listing; the rest is not looked at."""
TAKEN_TIMEOUT = 30 * DAY
"""How long it is known that an object was claimed."""
_ASKED = b"asked"
"""What is registered while `take` runs. Once an object is claimed, it is an empty value."""
_BATCH = 1_000
_log = events.logger("redrive.external")


class ListingInvalid(Exception):
    """What a command printed is no list of objects."""


class Poller:
    """Lists one external queue again and again, in a thread of its own, from `start` to `close`."""

    def __init__(self, broker: Broker, queue: str, options: ExternalOptions) -> None:
        self._broker = broker
        self._queue = queue
        self._options = options
        self._list = complete(options.list)[0]
        self._end = threading.Event()
        self._run: Run | None = None
        self._thread = threading.Thread(target=self._poll_on, name=f"redrive-{queue}", daemon=True)

    def start(self) -> None:
        """Begin, at once."""
        self._thread.start()

    def close(self) -> None:
        """Stop. A listing that runs is ended."""
        self._end.set()
        if (run := self._run) is not None:
            run.stop()
        if self._thread.is_alive():
            self._thread.join()

    def poll(self) -> int:
        """List once. Gives how many objects were new. What goes wrong is told in the log: the next may be better."""
        try:
            return self._put(self._listed())
        except Closed:
            self._end.set()
        except (OSError, ListingInvalid, RedriveError) as error:
            _log.warning("external_not_listed", queue=self._queue, error=str(error))
        return 0

    def _poll_on(self) -> None:
        clock = self._broker._core.clock
        while not self._end.is_set():
            until = Instant(clock.now() + self._options.poll)
            self.poll()
            while not self._end.is_set() and clock.now() < until:
                clock.wait(self._end, until)

    def _listed(self) -> list[NewItem]:
        variables = {"REDRIVE_QUEUE": self._queue, "REDRIVE_NAMESPACE": self._broker._core.store.namespace}
        self._run = run = Run(self._list, b"", variables, keep_output=True)
        if self._end.is_set():  # whoever closed this did not see it
            run.stop()
        ran = run.wait()
        if ran.is_stopped:
            return []
        if ran.is_late:
            raise ListingInvalid(f"the command ran for longer than {format_duration(self._list.timeout or 0)}")
        if not ran.exit.is_clean:
            raise ListingInvalid(f"the command ended with {ran.exit}: {tail(ran.errors)[-500:]}")
        if not ran.is_whole:
            raise ListingInvalid(f"the command printed more than {MAX_OUTPUT_BYTES:,} bytes")
        items, problem = items_from(ran.output, self._options.key)
        if problem is not None:
            _log.warning("external_objects_refused", queue=self._queue, error=problem)
        return items

    def _put(self, items: Sequence[NewItem]) -> int:
        new = 0
        for begin in range(0, len(items), _BATCH):
            batch = items[begin : begin + _BATCH]
            try:
                new += sum(not receipt.duplicate for receipt in self._broker.put_many(self._queue, batch))
            except (InvalidInput, IdempotencyConflict):
                new += sum(map(self._put_one, batch))
        return new

    def _put_one(self, item: NewItem) -> bool:
        """Whether it is new. One that looks otherwise than the first time is still the same object."""
        try:
            return not self._broker.put_many(self._queue, [item])[0].duplicate
        except IdempotencyConflict:
            return False
        except InvalidInput as error:
            _log.warning("external_objects_refused", queue=self._queue, error=str(error))
            return False


def items_from(output: bytes, key: str) -> tuple[list[NewItem], str | None]:
    """The items of a listing, an array of objects or an object on each line; and what is wrong with one of the others.

    Each object once. Raises `ListingInvalid` where it is no listing at all.
    """
    items: dict[str, NewItem] = {}
    problem = None
    for place, raw in enumerate(_objects(output)):
        if place == MAX_LISTED:
            problem = problem or f"there are more than {MAX_LISTED:,} objects; the rest was not looked at"
            break
        name, wrong = _key_of(raw, key)
        if wrong is not None:
            problem = problem or f"object {place + 1} {wrong}"
        else:
            item = new_item(raw, content_type=JSON, headers={KEY_HEADER: name}, idempotency_key=name)
            items.setdefault(name, item)
    return list(items.values()), problem


def _objects(output: bytes) -> Iterator[bytes]:
    text = output.strip()
    try:
        if text.startswith(b"["):
            yield from map(bytes, msgspec.json.decode(text, type=list[msgspec.Raw]))
        else:
            for line in text.splitlines():
                if line.strip():
                    yield bytes(msgspec.json.decode(line, type=msgspec.Raw))
    except (ValueError, RecursionError) as error:  # also for texts that are not UTF-8
        raise ListingInvalid(
            f"what the command printed is neither a JSON array nor an object a line: {error}"
        ) from None


def _key_of(raw: bytes, key: str) -> tuple[str, str | None]:
    try:
        value: Any = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:  # also for texts that are not UTF-8
        raise ListingInvalid(f"what the command printed is not JSON: {error}") from None
    if not isinstance(value, dict):
        return "", "is no object"
    found = value.get(key)
    if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
        return "", f"has no text or number under '{key}'; name the key that tells objects apart with key ="
    name = str(found)
    if len(name) > MAX_LABEL_CHARS or "\0" in name:
        return "", f"has a key that is longer than {MAX_LABEL_CHARS} characters, or has a NUL in it"
    return name, None


def claiming(
    broker: Broker, queue: str, take: Program, release_delay: int
) -> Callable[[Job, Callable[[Program], Ran]], End | None]:
    """What claims an item where it comes from before it is run: exit 0 to go on; 75 to be asked again later.

    Any other exit code says that somebody else has it, and the item is done without being run; unless it was asked
    before, and nobody knows how that ended. Then it may have been claimed for this very item: rather twice than never.
    """
    command = Command(f"{queue}.take", take, release_delay)

    def register(name: str, value: bytes) -> None:
        broker._run(workers.register(workers.TAKEN, name, value, timeout=TAKEN_TIMEOUT // 1_000_000))

    def claim(job: Job, run: Callable[[Program], Ran]) -> End | None:
        key = job.lease.headers.get(KEY_HEADER, job.lease.id)
        name = f"{queue}/{blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
        found = broker._run(workers.registrations(workers.TAKEN, name))
        if found and found[0].value != _ASKED:
            return None
        if not found:
            register(name, _ASKED)
        ran = run(take)
        if ran.is_late or ran.exit.signal is not None:
            return end_of(command, job, ran)
        if ran.exit.is_clean or (found and ran.exit.exit_code != TRY_LATER):
            register(name, b"")
            return None
        if not found:
            broker._run(workers.unregister(workers.TAKEN, name))
        if ran.exit.exit_code == TRY_LATER:
            return end_of(command, job, ran)
        _log.info("external_taken_elsewhere", item=job.lease.id, queue=queue, error=tail(ran.errors)[-500:] or None)
        return Completed()

    return claim
