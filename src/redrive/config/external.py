"""External queues: a command lists what there is, and each object that is new becomes an item of the queue.

An object is known by its key, for as long as the queue remembers idempotency keys. So many processes may list the same
source. Before the work, `take` claims an object where it comes from, once: that it was claimed is registered, and holds
when a worker dies, and when somebody brings a dead letter back.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

from redrive.broker import workers
from redrive.broker.broker import Broker
from redrive.broker.exchange import Completed, End
from redrive.broker.items import new_item
from redrive.clock import ticks
from redrive.config.commands import complete
from redrive.config.config import ExternalOptions
from redrive.errors import Closed, IdempotencyConflict, InvalidInput, QueueFull, RedriveError
from redrive.model.duration import DAY, format_duration
from redrive.model.limits import MAX_LABEL_CHARS
from redrive.model.payload import JSON
from redrive.model.program import Program
from redrive.store import NewItem
from redrive.telemetry import events
from redrive.worker.command_ends import TRY_LATER, Command, end_of, tail
from redrive.worker.run import MAX_OUTPUT_BYTES, NotStarted, Ran, Run
from redrive.worker.runner import Job

KEY_HEADER = "external-key"
"""The header of an item that has the key of its object."""
MAX_LISTED = 10_000
"""Objects of one listing; the rest is not looked at."""
TAKEN_TIMEOUT = 30 * DAY
"""How long it is known that an object was claimed."""
_ASKED = b"asked"
"""What is registered while `take` runs. Once an object is claimed, it is an empty value."""
NOT_RUN = (126, 127)
"""What a shell exits with, and `env` and the like, where the command cannot be run or is not there."""
_BATCH = 1_000
_SIGN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{},]', re.DOTALL)
"""A text of JSON, or what may divide an array."""
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
        self._problem: str | None = None
        """What was wrong with an object of the last listing."""
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
            items, wrong = self._listed()
            new, refused = self._put(items)
            self._tell(wrong or refused)
            return new
        except Closed:
            self._end.set()
        except (OSError, ListingInvalid, RedriveError) as error:
            _log.warning("external_not_listed", queue=self._queue, error=str(error))
        return 0

    def _poll_on(self) -> None:
        for _ in ticks(self._broker._core.clock, self._options.poll, self._end):
            self.poll()

    def _tell(self, problem: str | None) -> None:
        """Tell what is wrong with an object, but not with each listing that it is in."""
        if problem is not None and problem != self._problem:
            _log.warning("external_objects_refused", queue=self._queue, error=problem)
        self._problem = problem

    def _listed(self) -> tuple[list[NewItem], str | None]:
        """What there is, and what is wrong with an object that is left out."""
        variables = {"REDRIVE_QUEUE": self._queue, "REDRIVE_NAMESPACE": self._broker._core.store.namespace}
        self._run = run = Run(self._list, b"", variables, keep_output=True)
        if self._end.is_set():  # whoever closed this did not see it
            run.stop()
        ran = run.wait()
        if ran.is_stopped:
            return [], None
        if ran.is_late:
            raise ListingInvalid(f"the command ran for longer than {format_duration(self._list.timeout or 0)}")
        if ran.has_vanished:
            raise ListingInvalid("the command is gone, and nobody saw how it ended")
        if not ran.exit.is_clean:
            raise ListingInvalid(f"the command ended with {ran.exit}: {tail(ran.errors)[-500:]}")
        if not ran.is_whole:
            raise ListingInvalid(f"the command printed more than {MAX_OUTPUT_BYTES:,} bytes")
        return items_from(ran.output, self._options.key)

    def _put(self, items: Sequence[NewItem]) -> tuple[int, str | None]:
        """How many are new, and what is wrong with one that was refused. Where the queue is full, the rest has to wait
        for another listing."""
        new, problem = 0, None
        for begin in range(0, len(items), _BATCH):
            batch = items[begin : begin + _BATCH]
            try:
                new += sum(not receipt.duplicate for receipt in self._broker.put_many(self._queue, batch))
                continue
            except (InvalidInput, IdempotencyConflict, QueueFull):
                pass  # all of a batch are put or none, so that each is put by itself
            for item in batch:
                try:
                    new += self._is_new(item)
                except InvalidInput as error:
                    problem = problem or str(error)
                except QueueFull as full:
                    _log.warning("external_not_listed", queue=self._queue, error=str(full))
                    return new, problem
        return new, problem

    def _is_new(self, item: NewItem) -> bool:
        """Put one. One that looks otherwise than the first time is still the same object."""
        try:
            return not self._broker.put_many(self._queue, [item])[0].duplicate
        except IdempotencyConflict:
            return False


def items_from(output: bytes, key: str) -> tuple[list[NewItem], str | None]:
    """The items of a listing, an array of objects or an object on each line; and what is wrong with one of the others.

    Each object once. Raises `ListingInvalid` where it is no listing at all.
    """
    items: dict[str, NewItem] = {}
    problem, read = None, 0
    texts = list(islice(_texts(output.strip()), MAX_LISTED + 1))
    for place, text in enumerate(texts[:MAX_LISTED]):
        value, wrong = _value_of(text)
        name = ""
        if wrong is None:
            read += 1
            name, wrong = _key_of(value, key)
        if wrong is not None:
            problem = problem or f"object {place + 1} {wrong}"
        elif name not in items:
            items[name] = new_item(text, content_type=JSON, headers={KEY_HEADER: name}, idempotency_key=name)
    if texts and not read:
        raise _no_listing(problem)
    if len(texts) > MAX_LISTED:
        problem = problem or f"there are more than {MAX_LISTED:,} objects; the rest was not looked at"
    return list(items.values()), problem


def _texts(output: bytes) -> Iterator[bytes]:
    """The elements of an array, or else the lines, as they were printed. They are told apart without being read, so
    that whatever is in one of them concerns no other."""
    if not output.startswith(b"["):
        yield from filter(None, map(bytes.strip, output.splitlines()))
        return
    depth, begin, end = 0, 1, None
    for sign in _SIGN.finditer(output):
        match sign[0]:
            case b"[" | b"{":
                depth += 1
            case b"]" | b"}":
                depth -= 1
            case b"," if depth == 1:
                yield output[begin : sign.start()].strip()
                begin = sign.end()
        if depth == 0:
            end = sign.start()
            break
    if end is None or end + 1 < len(output):
        raise _no_listing("the array does not end where the output does")
    last = output[begin:end].strip()
    if last or begin > 1:
        yield last


def _value_of(text: bytes) -> tuple[Any, str | None]:
    """What an object says, or why it cannot be read. Raises `ListingInvalid` where it does not even look like one."""
    try:
        return msgspec.json.decode(text), None
    except (ValueError, RecursionError) as error:  # also for texts that are not UTF-8
        if not (text.startswith(b"{") and text.endswith(b"}")):
            raise _no_listing(error) from None
        return None, f"cannot be read: {error}"


def _no_listing(problem: object) -> ListingInvalid:
    return ListingInvalid(f"what the command printed is neither a JSON array nor an object a line: {problem}")


def _key_of(value: Any, key: str) -> tuple[str, str | None]:
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

    With 126 and 127 it could not be asked, and the item fails. Any other exit code says that somebody else has it, and
    the item is done without being run; unless it was asked before, and nobody knows how that ended. Then it may have
    been claimed for this very item: rather twice than never.
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
        try:
            ran = run(take)
        except NotStarted:
            if not found:  # nobody was asked
                broker._run(workers.unregister(workers.TAKEN, name))
            raise
        code = ran.exit.exit_code
        if ran.is_late or code is None or code in NOT_RUN:  # a script may have claimed it before it came to that
            return end_of(command, job, ran)
        if code == 0 or (found and code != TRY_LATER):
            register(name, b"")
            return None
        if not found:
            broker._run(workers.unregister(workers.TAKEN, name))
        if code == TRY_LATER:
            return end_of(command, job, ran)
        _log.info("external_taken_elsewhere", item=job.lease.id, queue=queue, error=tail(ran.errors)[-500:] or None)
        return Completed()

    return claim
