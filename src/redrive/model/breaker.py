"""Circuit breakers: after too many failures of one kind, items of that kind wait until a probe succeeds.

The rules of a queue's breakers, the state of those that are not closed, and the transitions between states. Pure
functions: `redrive.broker.flows.breakers` counts, reads and writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.errors import InvalidInput, InvalidSetting, short_repr
from redrive.model.caller_input import checking_input, exact_str, table
from redrive.model.classify import ErrorClass
from redrive.model.duration import DAY, HOUR, MINUTE, SECOND, Duration, format_duration, parse_duration
from redrive.model.failure import Failure
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.model.ids import ItemId
from redrive.model.item import WAITING_STATUSES, Item, Lease, Status
from redrive.model.text import format_instant, pluralize, suggest

QUEUE = "queue"
"""The kind of a breaker that counts all failures of its queue."""
FINGERPRINT = "fingerprint"
"""The key of the rule for each fingerprint; the kind of such a breaker is `fingerprint:` and its digits."""
RULE_KEYS = (QUEUE, FINGERPRINT, *(each.value for each in ErrorClass))
"""The keys of the table of rules."""
MAX_FINGERPRINT_BREAKERS = 100
"""The maximum number of fingerprint breakers of one queue that are not closed."""
MAX_COUNTED_FAILURES = 10_000
"""The maximum number of failures of one queue that are counted within a window."""
MAX_PROBES = 100
MAX_BREAKERS = 200
"""The maximum number of breakers of all kinds of one queue that are not closed."""
LONGEST_WINDOW = HOUR
LONGEST_OPEN_FOR = 10 * MINUTE
"""The upper bound for doubling `open_for` while probes fail."""
MAX_REASON_BYTES = 500
"""The maximum length of a reason; short, because the reasons of all breakers are read with their queue."""
_FINGERPRINT_KIND = re.compile(rf"{FINGERPRINT}:[0-9a-f]{{1,64}}")
_HOLDER = "breaker"
_HOLDER_NAME = re.compile(
    rf"{_HOLDER}:(?P<queue>.+):(?:{'|'.join(each.value for each in ErrorClass)}|{_FINGERPRINT_KIND.pattern})"
)
# The names of the parts of a rule in other programs.
_FOREIGN_NAMES = {
    "fail_max": "failures", "failure_threshold": "failures", "threshold": "failures", "interval": "window",
    "reset_timeout": "open_for", "recovery_timeout": "open_for", "timeout": "open_for", "rate": "share",
    "success_threshold": "probes",
}  # fmt: skip


class BreakerRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The conditions under which a breaker opens (`failures`, `share`, or either if both are given) and closes."""

    failures: int | None = None
    """The number of failures within the window that opens the breaker; 20 unless a share is given."""
    window: Duration = MINUTE
    share: float | None = None
    """The share of failures of this kind among deliveries that ended in the window, if those are `minimum` or more."""
    minimum: int = 20
    open_for: Duration = 30 * SECOND
    """The time from the opening to the first probe; doubled up to 10 minutes each time that a probe fails."""
    probes: int = 1
    """The number of items that are leased before the rest follows."""

    @property
    def failures_limit(self) -> int | None:
        """`failures` with its default."""
        return 20 if self.failures is None and self.share is None else self.failures

    def failures_to_open(self, ended: int) -> int:
        """Return the least number of failures of one kind that can open a breaker after `ended` deliveries."""
        limits = [] if self.share is None else [max(1, math.ceil(self.share * max(self.minimum, ended)))]
        return min(limits if self.failures_limit is None else [*limits, self.failures_limit])

    def opening_reason(self, failures: int, ended: int) -> str | None:
        """Return why a breaker opens after `failures` of its kind among `ended` deliveries; None if it does not."""
        within = format_duration(self.window)
        if self.failures_limit is not None and failures >= self.failures_limit:
            return f"{pluralize(failures, 'failure')} within {within}"
        if self.share is not None and ended >= self.minimum and failures >= self.share * ended:
            return f"{failures:,} of {ended:,} deliveries failed within {within}"
        return None


DEFAULT_RULE = BreakerRule()


class BreakerState(StrEnum):
    """The state of a breaker, which decides what is leased. A closed breaker is not stored."""

    OPEN = "open"
    """Nothing is leased."""
    HALF_OPEN = "half_open"
    """Only its probes are leased."""
    CLOSING = "closing"
    """Everything may be leased: the items that it held are being released."""


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """A breaker that is not closed."""

    kind: str
    """`queue`, an error class, or `fingerprint:` and a fingerprint."""
    opened_at: Instant
    until: Instant
    """The instant of its next probes."""
    reason: str
    open_for: Duration
    probing_from: Instant
    """The instant at which its first probe was due."""
    mark: int = 0
    """A number of the feed; entries about the end of its probes have larger numbers."""
    opened_by: str | None = None
    """The operator who opened it; None if it opened automatically."""
    probes: tuple[ItemId, ...] = ()
    """The items that were released as probes. The probes of a queue's breaker are in its gate."""
    probing_since: Instant | None = None
    """The instant at which the probes were chosen."""
    is_closing: bool = False

    def state(self, now: Instant) -> BreakerState:
        """Return its state at an instant."""
        if self.is_closing:
            return BreakerState.CLOSING
        return BreakerState.OPEN if now < self.until else BreakerState.HALF_OPEN

    @property
    def holds(self) -> bool:
        """True if it holds items; a queue's breaker is a gate instead."""
        return self.kind != QUEUE

    def holder(self, queue: str) -> str:
        """Return the name under which it holds items of its queue."""
        return f"{_HOLDER}:{queue}:{self.kind}"

    def matches(self, failure: Failure | None) -> bool:
        """Return whether a failure is of its kind."""
        return failure is not None and (self.kind == QUEUE or self.kind in failure_kinds(failure))

    def counts(self, entry: FeedEntry) -> bool:
        """Return whether an entry of the feed reports a failure of its kind."""
        return entry.error_class is not None and self.kind in (QUEUE, *entry_kinds(entry))

    @property
    def probed_since(self) -> Instant:
        """The instant from which the ends of its probes count; those of earlier deliveries do not."""
        return self.probing_since or self.until

    def is_probe(self, lease: Lease) -> bool:
        """Return whether a delivery is one of its probes."""
        if self.is_closing:
            return False
        return lease.id in self.probes if self.holds else lease.leased_at >= self.probing_from


class BreakerStatus(msgspec.Struct, frozen=True):
    """The public status of a breaker that is not closed."""

    queue: str
    kind: str
    state: BreakerState
    opened_at: Instant
    reason: str
    next_probe_at: Instant
    """The instant of the next probes; in the past while it is half-open."""
    waiting: int
    """The number of items that wait for it."""
    opened_by: str | None = None

    def __str__(self) -> str:
        waits = f"{pluralize(self.waiting, 'item')} waiting" if self.waiting else "nothing waits"
        probe = f", next probe {format_instant(self.next_probe_at)}" if self.state is BreakerState.OPEN else ""
        state = "open since" if self.state is BreakerState.OPEN else f"{self.state.replace('_', '-')}, opened"
        return (
            f"breaker {self.kind} of {self.queue}: {state} {format_instant(self.opened_at)} ({self.reason}); "
            f"{waits}{probe}"
        )


def failure_kinds(failure: Failure) -> tuple[str, str]:
    """Return the kinds of breakers that count a failure, without that of the queue."""
    return failure.error_class.value, fingerprint_kind(failure.fingerprint)


def entry_kinds(entry: FeedEntry) -> tuple[str, str]:
    """Return the same kinds for an entry of the feed that reports a failure."""
    return str(entry.error_class), fingerprint_kind(entry.fingerprint or "")


def fingerprint_kind(fingerprint: str) -> str:
    """Return the kind of the breaker for a fingerprint."""
    return f"{FINGERPRINT}:{fingerprint}"


def queue_of_holder(holder: str) -> str | None:
    """Return the queue whose breaker holds items under that name; None if it is not the name of a breaker."""
    found = _HOLDER_NAME.fullmatch(holder)
    return None if found is None else found["queue"]


def rule_key(kind: str) -> str:
    """Return the key of the rule for a kind: `queue`, `fingerprint`, or an error class."""
    return FINGERPRINT if kind.startswith(f"{FINGERPRINT}:") else kind


def check_kind(kind: object) -> str:
    """Return the kind of breaker that a caller names. Raise InvalidInput if it is not valid."""
    with checking_input("kind"):
        text = exact_str(kind) if isinstance(kind, str) else ""
    if (text in RULE_KEYS and text != FINGERPRINT) or _FINGERPRINT_KIND.fullmatch(text):
        return text
    kinds = tuple(key for key in RULE_KEYS if key != FINGERPRINT)
    meant = f"{suggest(text, kinds, {})}; there are {', '.join(kinds)} and {FINGERPRINT}:DIGITS"
    raise InvalidInput(f"{short_repr(kind, 60)} is no kind of breaker{meant}")


def open_breaker(
    kind: str,
    rule: BreakerRule,
    reason: str,
    now: Instant,
    *,
    mark: int = 0,
    open_for: Duration | None = None,
    opened_by: str | None = None,
) -> Breaker:
    """Return a breaker that opens now, for `open_for` or the time in its rule."""
    duration = rule.open_for if open_for is None else open_for
    until = Instant(now + duration)
    return Breaker(kind, now, until, reason, duration, until, mark, opened_by)


def reopen(breaker: Breaker, now: Instant, running: tuple[ItemId, ...] = ()) -> Breaker:
    """Return the breaker after a failed probe: open for twice as long. Probes that still run (`running`) stay probes.

    A failure of those before it is half-open again has no effect: they are probes again then.
    """
    open_for = min(2 * breaker.open_for, max(LONGEST_OPEN_FOR, breaker.open_for))
    until = Instant(now + open_for)
    return msgspec.structs.replace(breaker, until=until, open_for=open_for, probes=running, probing_since=None)


def breaker_changes(before: tuple[Breaker, ...], after: tuple[Breaker, ...]) -> Iterator[tuple[bool, Breaker]]:
    """Yield the breakers that opened (True) or closed (False) between two states of a queue."""
    were_open = {breaker.kind for breaker in before if not breaker.is_closing}
    are_open = {breaker.kind for breaker in after if not breaker.is_closing}
    yield from ((True, breaker) for breaker in after if breaker.kind in are_open - were_open)
    yield from ((False, breaker) for breaker in before if breaker.kind in were_open - are_open)


def change_record(opened: bool, breaker: Breaker, note: str | None) -> tuple[FeedKind, str, str]:
    """Return the record of a change for the feed and the audit: the kind of entry, the verb, and the reason."""
    if opened:
        return FeedKind.BREAKER_OPENED, "open_breaker", breaker.reason
    return FeedKind.BREAKER_CLOSED, "close_breaker", note or f"opened for {breaker.reason}"


def breaker_gate(breaker: Breaker, rule: BreakerRule, leased: tuple[ItemId, ...] = ()) -> Gate:
    """Return the gate of a queue's breaker. Probes in `leased` are not leased a second time."""
    return Gate(BREAKER_GATE, breaker.until, rule.probes, leased)


class ProbeOutcome(StrEnum):
    """The outcome of a probe."""

    PASSED = "passed"
    FAILED = "failed"
    RUNNING = "running"
    WAITING = "waiting"
    """No worker has it: it was not leased yet, or its worker is lost or stopped."""
    GONE = "gone"
    """An operator changed it: it is neither leased, completed, pending nor failed."""


def probe_outcome(breaker: Breaker, item: Item) -> ProbeOutcome:
    """Return the outcome of a probe that still exists. A failure of another kind counts as passed."""
    if item.status is Status.ACTIVE:
        return ProbeOutcome.RUNNING
    if item.status is Status.COMPLETED:
        return ProbeOutcome.PASSED
    failures = (entry.failure for entry in reversed(item.history) if entry.at >= breaker.probed_since)
    failure = next(filter(None, failures), None)
    if failure is not None:
        return ProbeOutcome.FAILED if breaker.matches(failure) else ProbeOutcome.PASSED
    return ProbeOutcome.WAITING if item.status in WAITING_STATUSES else ProbeOutcome.GONE


def parse_breaker_rules(name: str, value: Any) -> dict[str, BreakerRule]:
    """Parse the breakers of a queue: a table from `queue`, `fingerprint` or an error class to a rule."""
    if not isinstance(value, Mapping):
        raise InvalidSetting(
            name, f"must be a table like {{network={{failures=20}}}}; kinds are {', '.join(RULE_KEYS)}"
        )
    return {_rule_key(name, key): _parse_rule(f"{name}.{key}", rule) for key, rule in value.items()}


def _rule_key(name: str, key: Any) -> str:
    if key not in RULE_KEYS:
        meant = f"{suggest(key, RULE_KEYS, {})}; there are {', '.join(RULE_KEYS)}"
        raise InvalidSetting(f"{name}.{key!s:.40}", f"is no kind of breaker{meant}")
    return str(key)


def _parse_rule(name: str, value: Any) -> BreakerRule:
    if isinstance(value, BreakerRule):
        value = {
            **msgspec.structs.asdict(value),
            "window": format_duration(value.window),
            "open_for": format_duration(value.open_for),
        }
    if not isinstance(value, Mapping):
        raise InvalidSetting(name, f"must be a table with some of {', '.join(BreakerRule.__struct_fields__)}")
    given = {str(key): each for key, each in table(name, value, 100).items() if each is not None}
    for key in given:
        if key not in BreakerRule.__struct_fields__:
            known = BreakerRule.__struct_fields__
            meant = f"{suggest(key, known, _FOREIGN_NAMES)}; there are {', '.join(known)}"
            raise InvalidSetting(f"{name}.{key:.40}", f"is not part of a breaker's rule{meant}")
    return BreakerRule(**{key: _PARSERS[key](f"{name}.{key}", each) for key, each in given.items()})


def _whole(largest: int) -> Any:
    def parse(name: str, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= largest:
            raise InvalidSetting(name, f"must be a whole number from 1 to {largest:,}, not {short_repr(value, 40)}")
        return value

    return parse


def _duration(largest: Duration) -> Any:
    def parse(name: str, value: Any) -> Duration:
        duration = parse_duration(value, name)
        if not SECOND <= duration <= largest:
            raise InvalidSetting(
                name, f"must be from 1s to {format_duration(largest)}, not {format_duration(duration)}"
            )
        return duration

    return parse


def _share(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 < value <= 1:
        percent = "; 50 % is 0.5" if type(value) in (int, float) and 1 < value <= 100 else ""
        raise InvalidSetting(name, f"must be a number above 0 and up to 1, not {short_repr(value, 40)}{percent}")
    return float(value)


_PARSERS = {
    "failures": _whole(MAX_COUNTED_FAILURES),
    "window": _duration(LONGEST_WINDOW),
    "share": _share,
    "minimum": _whole(MAX_COUNTED_FAILURES),
    "open_for": _duration(DAY),
    "probes": _whole(MAX_PROBES),
}
