"""The rules of a queue once more, naively: lists and sums, from docs/concepts/item-lifecycle.md, not from `redrive`.

It knows no index, no batch and no judge. What it cannot know (which of two leases that ran out at one instant is swept
first) it leaves open: such items have equal places.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SECOND = 1_000_000
NEVER = 10**18


@dataclass(frozen=True)
class Retry:
    """How often and when what failed is tried again; of a queue, or of an item."""

    tries: int = 0
    delay: str = "fixed"
    base: int = 0

    def given(self) -> dict[str, Any]:
        """As `create_queue` and `put` take it."""
        return {"attempts": self.tries, "delay": self.delay, "base": self.base}

    def seconds(self, failures: int) -> int:
        return self.base * {"fixed": 1, "linear": failures, "exponential": 2 ** (failures - 1)}[self.delay]


@dataclass
class Settings:
    lease_timeout: int = 60
    max_attempts: int | None = None
    max_losses: int = 5
    retry: Retry = Retry()
    dead_queue: str | None = None
    drop: bool = False
    expire_timeout: int | None = None
    idempotency_timeout: float | str = 20.5
    max_size: int | None = None
    keep_completed: float = 0
    keep_dead: float | None = None
    archive_after: float | None = None
    keep_archived: float | None = None
    keep_dropped: float = 0

    def given(self) -> dict[str, Any]:
        """As `create_queue` takes them."""
        return {
            "lease_timeout": self.lease_timeout,
            "max_attempts": self.max_attempts,
            "max_losses": self.max_losses,
            "retry": self.retry.given(),
            "dead_queue": self.dead_queue,
            "on_dead": "drop" if self.drop else "keep",
            "expire_timeout": self.expire_timeout,
            "idempotency_timeout": self.idempotency_timeout,
            "max_size": self.max_size,
            "keep_completed": self.keep_completed,
            "keep_dead": self.keep_dead,
            "archive_after": self.archive_after,
            "keep_archived": self.keep_archived,
            "keep_dropped": self.keep_dropped,
        }


@dataclass(frozen=True)
class Redrive:
    """What an undo needs: where a dead letter was, whether it was dead there, and how it stood right after."""

    queue: str
    was_dead: bool
    deliveries: int
    rows: int
    operation: str | None = None


@dataclass
class Twin:
    """An item as the naive rules see it."""

    id: str
    value: int
    queue: str
    priority: int
    ready_at: int
    place: tuple[int, int]
    expires_at: int = NEVER
    own_expiry: int | None = None
    own_attempts: int | None = None
    own_losses: int | None = None
    own_retry: Retry | None = None
    holders: dict[str, bool] = field(default_factory=dict)
    """By name, whether the hold lasts."""
    status: str | None = "pending"
    before_archive: str = ""
    aside_at: int = NEVER
    """When it was archived or dropped."""
    dropped: bool = False
    key_aside: tuple[int, float | str] | None = None
    """The value and the time of its key, while that is free because it was dropped."""
    put_to: str = ""
    deadline: int = NEVER
    deliveries: int = 0
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    redrives: int = 0
    key: str | None = None
    reason: str | None = None
    ended_at: int = NEVER
    rows: int = 0
    died_in: list[str] = field(default_factory=list)
    died_at: int = NEVER
    was_dead: bool = False
    """Leased although it is dead."""
    in_dead_queue: bool = False
    """It lies in a dead queue because it died."""
    at_death: tuple[str, int, int, int] = ("", 0, 0, 0)
    """Of its last death: the reason, attempts, failures and losses."""
    brought_back: bool = False
    """A person made work of it after its last death."""
    redrive: Redrive | None = None
    """The last one."""

    @property
    def held_by(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return tuple(self.holders), tuple(name for name, lasts in self.holders.items() if lasts)

    def keep_lasting_holders(self) -> None:
        self.holders = {name: True for name, lasts in self.holders.items() if lasts}

    @property
    def counters(self) -> tuple[int, ...]:
        return (self.deliveries, self.attempts, self.failures, self.losses, self.redrives)

    @property
    def order(self) -> tuple[int, int, tuple[int, int]]:
        return (-self.priority, self.ready_at, self.place)


class Naive:
    """A namespace."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.settings: dict[str, Settings] = {}
        self.paused: set[str] = set()
        self.gates: dict[str, tuple[int, int | None]] = {}
        """By queue: until when it gives nothing, and how many leases after that; None: any number."""
        self.items: list[Twin] = []
        self.keys: dict[tuple[str, str], tuple[Twin, int, float | str]] = {}
        """The item, its value, and until when the key is known; "item": with the item."""
        self.deaths: Counter[str] = Counter()
        self.totals: Counter[tuple[str, str]] = Counter()
        """By queue and name, as in ("jobs", "put")."""
        self._draws = 0

    def tail(self, rank: int = 0) -> tuple[int, int]:
        self._draws += 1
        return (self._draws, rank)

    def size(self, queue: str) -> int:
        return sum(t.queue == queue and t.status in ("pending", "failed", "active") for t in self.items)

    def is_full(self, queue: str) -> bool:
        most = self.settings[queue].max_size
        return most is not None and self.size(queue) + 1 > most

    def obstacle(self, twin: Twin, queue: str, *, room: bool = False) -> str | None:
        """What keeps a person from bringing an item back as one more in a queue, where there may be `room` anyway."""
        if twin.status != "dead" and twin.queue == queue:
            return None
        if self.is_full(queue) and not room:
            return "full"
        other, _ = self.known(queue, twin.key) or (twin, 0)
        at_work = other.queue == queue and other.status in ("pending", "failed", "active")
        return "conflict" if other is not twin and at_work else None

    def known(self, queue: str, key: str | None) -> tuple[Twin, int] | None:
        twin, value, until = self.keys.get((queue, key or ""), (None, 0, 0))
        if twin is None:
            return None
        is_over = twin.status in (None, "completed") if isinstance(until, str) else self.now >= until
        return None if is_over else (twin, value)

    def put(self, twin: Twin, key: str | None) -> None:
        timeout = self.settings[twin.queue].expire_timeout if twin.own_expiry is None else twin.own_expiry
        if timeout is not None:
            twin.expires_at = self.now + timeout * SECOND
        self.items.append(twin)
        self.totals[twin.queue, "put"] += 1
        twin.key = key
        if key is not None:
            timeout = self.settings[twin.queue].idempotency_timeout
            until = timeout if isinstance(timeout, str) else self.now + timeout * SECOND
            self.keys[twin.queue, key] = (twin, twin.value, until)
        twin.put_to = twin.queue

    def drop(self, twin: Twin) -> None:
        """A person drops an item: its key is free unless it was completed, and it is in the archive for a time."""
        twin.deadline = NEVER
        twin.status = "dead" if twin.was_dead else "pending" if twin.status == "active" else twin.status
        twin.was_dead = False
        owner, value, until = self.keys.get((twin.put_to, twin.key or ""), (None, 0, 0))
        completed = "completed" in (twin.status, twin.before_archive if twin.status == "archived" else "")
        if owner is twin and (not completed or isinstance(until, str)):
            twin.key_aside = None if completed else (value, until)
            del self.keys[twin.put_to, twin.key or ""]
        if not self.settings[twin.queue].keep_dropped:
            twin.status = None
            return
        if twin.status != "archived":
            twin.before_archive, twin.status = twin.status or "", "archived"
        twin.dropped, twin.aside_at = True, self.now
        twin.rows += 1

    def restore_obstacle(self, twin: Twin) -> str | None:
        """What keeps an archived item from being restored."""
        if twin.before_archive in ("pending", "failed") and self.is_full(twin.queue):
            return "full"
        other, _ = self.known(twin.put_to, twin.key) or (twin, 0)
        is_taken = other is not twin and other.status != "archived" and twin.before_archive != "completed"
        return "conflict" if twin.dropped and is_taken else None

    def restore(self, twin: Twin) -> None:
        """Out of the archive."""
        if twin.dropped and twin.key_aside and self.known(twin.put_to, twin.key) is None:
            value, until = twin.key_aside
            if isinstance(until, str) or self.now < until:
                self.keys[twin.put_to, twin.key or ""] = (twin, value, until)
                twin.key_aside = None
        twin.rows += twin.dropped or not self.was_letter(twin)
        twin.status, twin.dropped = twin.before_archive, False

    def gets_failure(self, queue: str, key: str | None) -> Twin | None:
        """Whom a failure is added to that is put under a key; None where it is an item of its own."""
        twin, _ = self.known(queue, key) or (None, 0)
        return None if twin is None or twin.status in (None, "completed") else twin

    def add_failure(self, twin: Twin, queue: str) -> None:
        """One more failure was put to a queue under the key of an item, wherever that is."""
        self.totals[queue, "failed"] += 1
        twin.rows += 1
        twin.failures += twin.status != "active"

    def is_shut(self, queue: str) -> bool:
        """Whether its gate lets nothing through."""
        until, left = self.gates.get(queue, (0, None))
        return self.now < until or left == 0

    def eligible(self, queue: str) -> list[Twin]:
        """What may be leased, in order, once everything that fell due or ran out has been seen to."""
        if queue in self.paused or self.is_shut(queue):
            return []
        ready = [
            t
            for t in self.items
            if t.queue == queue and t.status == "pending" and not t.holders and t.ready_at <= self.now < t.expires_at
        ]
        return sorted(ready, key=lambda t: t.order)[: self.gates.get(queue, (0, None))[1]]

    def lease(self, twin: Twin, timeout: int | None) -> None:
        seconds = self.settings[twin.queue].lease_timeout if timeout is None else timeout
        until, left = self.gates.get(twin.queue, (0, None))
        if left is not None:
            self.gates[twin.queue] = (until, left - 1)
        twin.was_dead = twin.status == "dead"
        twin.status, twin.deadline = "active", self.now + seconds * SECOND
        twin.deliveries += 1
        twin.attempts += 1

    def refusal(self, twin: Twin, include_dead: bool) -> str | None:
        """What keeps an item from being leased by its id."""
        if twin.status in (None, "active"):
            return twin.status or "gone"
        if twin.status not in (("pending", "failed", "dead") if include_dead else ("pending", "failed")):
            return "status"
        if twin.holders:
            return "held"
        if twin.status != "dead" and twin.expires_at <= self.now:
            return "status"
        if twin.queue in self.paused:
            return "paused"
        if self.is_shut(twin.queue):
            return "gated"
        return "conflict" if twin.status == "dead" and self.obstacle(twin, twin.queue, room=True) else None

    def give_back(self, twin: Twin) -> None:
        """It never ran."""
        twin.status = "dead" if twin.was_dead else "pending"
        twin.was_dead, twin.deadline = False, NEVER
        twin.attempts = max(0, twin.attempts - 1)

    def upkeep(self, queue: str | None = None) -> None:
        """Promote and sweep, one queue or all."""
        place = self.tail()
        for twin in list(self.items):
            if queue is not None and twin.queue != queue:
                continue
            if twin.status == "active" and twin.deadline <= self.now:
                twin.losses += 1
                self.end(twin, "lost", place=place)
            elif twin.status in ("pending", "failed") and twin.expires_at <= self.now:
                self.die(twin, "expired", place=place)
            elif twin.status == "failed" and twin.ready_at <= self.now and not twin.holders:
                twin.status = "pending"

    def clean(self) -> None:
        """Retention: what completed or died long ago goes."""
        for twin in self.items:
            settings = self.settings[twin.queue]
            if twin.status == "completed" and self.now >= twin.ended_at + settings.keep_completed * SECOND:
                twin.status = None
            is_dead = twin.status == "dead" or (twin.status in ("pending", "failed") and self.is_dead_letter(twin))
            if is_dead and self.is_past(twin, settings.archive_after):
                self.archive(twin)
            elif is_dead and self.is_past(twin, settings.keep_dead):
                twin.status = None
            self.clean_archived(twin, settings)

    def clean_archived(self, twin: Twin, settings: Settings) -> None:
        keep = settings.keep_dropped if twin.dropped else settings.keep_archived
        since = twin.aside_at
        if not twin.dropped and self.was_letter(twin):
            since = twin.died_at
        elif not twin.dropped and twin.before_archive == "completed":
            since = twin.ended_at
        if twin.status == "archived" and keep is not None and self.now >= since + keep * SECOND:
            twin.status = None

    def is_past(self, twin: Twin, age: float | None) -> bool:
        return age is not None and self.now >= twin.died_at + age * SECOND

    def archive(self, twin: Twin) -> None:
        """Of what is no dead letter, the history has it. A key that ends with its completed item is not known again."""
        owner, _, until = self.keys.get((twin.put_to, twin.key or ""), (None, 0, 0))
        if owner is twin and twin.status == "completed" and isinstance(until, str):
            del self.keys[twin.put_to, twin.key or ""]
        twin.before_archive, twin.status, twin.aside_at = twin.status or "", "archived", self.now
        twin.rows += not self.was_letter(twin)
        self.totals[twin.queue, "archived"] += 1

    def was_letter(self, twin: Twin) -> bool:
        """Whether it was archived as a dead letter."""
        waits = twin.before_archive in ("pending", "failed")
        return twin.before_archive == "dead" or (waits and self.is_dead_letter(twin))

    def is_dead_letter(self, twin: Twin) -> bool:
        return twin.status == "dead" or twin.was_dead or twin.in_dead_queue

    def end(
        self, twin: Twin, how: str, *, delay: int = 0, final: bool = False, place: tuple[int, int] | None = None
    ) -> None:
        """A delivery ended by failure, loss or a counted release; the counters include it."""
        twin.deadline = NEVER
        self.totals[twin.queue, "failed"] += how == "fail"
        if twin.was_dead:
            twin.status, twin.was_dead = "dead", False
            twin.rows += 1
            return
        reason = self.cause(twin, how, final)
        if reason is not None:
            self.die(twin, reason, place=place)
            return
        twin.rows += 1
        if how == "fail":
            twin.status, delay = "failed", self.retry(twin).seconds(twin.failures)
        else:
            twin.status = "pending"
        twin.ready_at = self.now + delay * SECOND
        twin.place = place or self.tail()

    def retry(self, twin: Twin) -> Retry:
        return self.settings[twin.queue].retry if twin.own_retry is None else twin.own_retry

    def cause(self, twin: Twin, how: str, final: bool) -> str | None:
        settings, retry = self.settings[twin.queue], self.retry(twin)
        most = settings.max_attempts if twin.own_attempts is None else twin.own_attempts
        losses = settings.max_losses if twin.own_losses is None else twin.own_losses
        if most is None:
            most = retry.tries if retry.tries > 5 else 5
        if how == "bury":
            return "buried"
        if final:
            return "final_error"
        if self.now >= twin.expires_at:
            return "expired"
        if how == "lost" and losses != 0 and twin.losses >= losses:
            return "worker_lost"
        if most != 0 and twin.attempts >= most:
            return "max_attempts"
        if how == "fail" and (twin.failures >= retry.tries or retry.delay == "never"):
            return "retries_exhausted"
        return None

    def die(self, twin: Twin, reason: str, *, place: tuple[int, int] | None = None) -> None:
        settings = self.settings[twin.queue]
        twin.rows += 1
        twin.died_in.append(twin.queue)
        self.deaths[reason] += 1
        self.totals[twin.queue, "dead"] += 1
        self.totals[twin.queue, "exhausted"] += reason in ("retries_exhausted", "max_attempts")
        twin.died_at = twin.ended_at = self.now
        twin.deadline = NEVER
        twin.at_death = (reason, twin.attempts, twin.failures, twin.losses)
        twin.brought_back, twin.in_dead_queue = False, settings.dead_queue is not None
        twin.keep_lasting_holders()
        if settings.dead_queue is not None:
            twin.queue, twin.status = settings.dead_queue, "pending"
            twin.attempts = twin.failures = twin.losses = 0
            twin.expires_at, twin.ready_at, twin.place = NEVER, self.now, place or self.tail()
        elif settings.drop:
            twin.status = None
        else:
            twin.status, twin.reason = "dead", reason

    def complete(self, twin: Twin) -> None:
        keep = self.settings[twin.queue].keep_completed
        self.totals[twin.queue, "completed"] += 1
        twin.status = "completed" if keep else None
        twin.ended_at, twin.deadline, twin.reason, twin.holders = self.now, NEVER, None, {}
        twin.was_dead = twin.in_dead_queue = False

    def again(self, twin: Twin, queue: str, *, redriven: bool = False, operation: str | None = None) -> None:
        """A person brings an item back. One that is retried where it lies in a dead queue stays a dead letter."""
        was_dead = twin.status == "dead" or twin.was_dead
        twin.redrive = None
        if redriven or was_dead:
            twin.redrive = Redrive(twin.queue, was_dead, twin.deliveries, twin.rows + 1, operation)
            twin.in_dead_queue, twin.brought_back = False, True
        twin.queue, twin.status, twin.reason, twin.was_dead = queue, "pending", None, False
        twin.keep_lasting_holders()
        self.totals[queue, "redriven"] += 1
        twin.attempts = twin.failures = twin.losses = 0
        twin.redrives += 1
        twin.rows += 1
        twin.ready_at, twin.place, twin.deadline = self.now, self.tail(), NEVER
        timeout = self.settings[queue].expire_timeout if twin.own_expiry is None else twin.own_expiry
        if timeout is None or self.is_dead_letter(twin):
            twin.expires_at = NEVER
        else:
            twin.expires_at = self.now + timeout * SECOND
