"""Find the items that match a filter, in order, a bounded number per call.

Items are ordered by position: the number of the death if the filter asks for dead letters or archived items, else the
number of the id. The most selective condition chooses the index to scan; each candidate is then checked by
`redrive.model.filter.matches`, and by queries for search terms and operations.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from redrive.model.classify import ErrorClass
from redrive.model.death import Cause, DeadReason
from redrive.model.filter import MAX_EXAMINED, Filter, FilterSubject, matches, meets_headers
from redrive.model.ids import MAX_NUMBER, NUMBERS_PER_MICROSECOND, ids_with_prefix, make_id
from redrive.model.item import Counters, Status
from redrive.model.search_terms import SearchQuery, parse_query
from redrive.stores.relational.holder_index import held_numbers
from redrive.stores.relational.item_rows import ItemRow, find_all, resolve
from redrive.stores.relational.records import decode_headers
from redrive.stores.relational.search_scope import SearchScope
from redrive.stores.relational.session import Executor
from redrive.stores.rules.damage import read_value

_T = TypeVar("_T")
_FEW_QUEUES = 100
"""Maximum number of queues whose scans by fingerprint are merged; with more, all dead letters are scanned."""

_LETTER = """
    l.death_no, l.item_no, l.queue, l.section, l.died_at, l.reason, l.fingerprint, l.error_type, l.error_class,
    l.deliveries, l.attempts, l.failures, l.losses, i.id_suffix, i.origin_queue, i.headers"""
_LETTERS = f"""
    SELECT {_LETTER} FROM redrive_dead_letter AS l INDEXED BY redrive_dead_letter_{{index}}
        CROSS JOIN redrive_item AS i ON i.item_no = l.item_no
    WHERE {{condition}} AND l.death_no BETWEEN ? AND ? ORDER BY l.death_no {{direction}}"""
_BY_SECTION = ("section", "l.section = ?")
_BY_QUEUE = ("queue", "l.queue = ? AND l.section = ?")
_BY_ERROR = ("error", "l.section = ? AND l.error_name = ?")
_BY_FINGERPRINT = ("fingerprint", "l.section = ? AND l.fingerprint = ? AND l.queue = ?")
_BY_WORDS = f"""
    SELECT w.rowid, {_LETTER} FROM redrive_search AS w LEFT JOIN redrive_dead_letter AS l ON l.death_no = w.rowid
        LEFT JOIN redrive_item AS i ON i.item_no = l.item_no
    WHERE {{condition}} AND w.rowid BETWEEN ? AND ? ORDER BY w.rowid {{direction}}"""
_BY_NUMBER = f"""
    SELECT {_LETTER} FROM redrive_dead_letter AS l CROSS JOIN redrive_item AS i ON i.item_no = l.item_no
    WHERE l.death_no IN carray(?)"""
_QUEUES_OF = """
    WITH RECURSIVE each(queue) AS (
        SELECT (SELECT min(queue) FROM redrive_dead_letter WHERE section = ?1 AND fingerprint = ?2)
        UNION ALL
        SELECT (SELECT min(queue) FROM redrive_dead_letter
            WHERE section = ?1 AND fingerprint = ?2 AND queue > each.queue)
        FROM each WHERE each.queue IS NOT NULL)
    SELECT queue FROM each WHERE queue IS NOT NULL LIMIT ?3"""

_ITEM = "i.item_no, i.queue, i.put_at, i.origin_queue, i.headers"
_ITEMS = f"SELECT {_ITEM} FROM redrive_item AS i WHERE i.item_no BETWEEN ? AND ? ORDER BY i.item_no {{direction}}"
_PLACED = f"""
    SELECT {_ITEM} FROM redrive_{{table}} AS p CROSS JOIN redrive_item AS i ON i.item_no = p.item_no
    WHERE p.item_no BETWEEN ? AND ? ORDER BY p.item_no {{direction}}"""
_PLACES = {Status.ACTIVE: "lease", Status.FAILED: "scheduled", Status.COMPLETED: "finished", Status.MOVING: "moving"}
_LISTED = f"SELECT {_ITEM} FROM redrive_item AS i WHERE i.item_no IN carray(?)"

_WITH_PREFIX = "SELECT item_no FROM redrive_item WHERE item_no BETWEEN ? AND ? AND id_suffix BETWEEN ? AND ? LIMIT ?"
_HAS_WORDS = "SELECT 1 FROM redrive_search AS w WHERE {condition} AND w.rowid = ?"
_OPERATION = "SELECT number FROM redrive_operation WHERE namespace = ? AND id = ?"
_CHANGED = """
    SELECT coalesce(h.item_no, o.item_no) FROM redrive_operation_item AS o
    LEFT JOIN redrive_former_id AS h ON h.old_item_no = o.item_no
    WHERE o.operation = ? LIMIT ?"""
_WAS_CHANGED = """
    SELECT EXISTS (SELECT 1 FROM redrive_operation_item WHERE operation = ?1 AND item_no = ?2) OR EXISTS (
        SELECT 1 FROM redrive_former_id AS h
        CROSS JOIN redrive_operation_item AS o ON o.operation = ?1 AND o.item_no = h.old_item_no
        WHERE h.item_no = ?2)"""


class Candidate(NamedTuple):
    """An item that a walk found."""

    position: int
    item_no: int
    facts: FilterSubject | None
    """None if the index already showed that it does not match."""
    death_no: int | None = None
    """The number of its death, if it is a dead letter or archived; the key of its search terms."""


class FoundItems(NamedTuple):
    """A part of the matches of a filter."""

    numbers: list[int]
    """The item_no of each item."""
    position: int | None
    """The position to resume after. None if nothing was examined."""
    exhausted: bool
    """True if there are no more matches."""


def select(
    executor: Executor,
    scope: SearchScope,
    where: Filter,
    *,
    limit: int,
    after: int | None = None,
    up_to: int | None = None,
    newest: bool = False,
    examine: int = MAX_EXAMINED,
) -> FoundItems:
    """Return the next items that match, after a position and up to another one. Raises QueueNotFound."""
    numbers: list[int] = []
    last, examined = after, 0
    check = _looked_up(executor, scope, where)
    with contextlib.closing(walk(executor, scope, where, after=after, up_to=up_to, newest=newest)) as candidates:
        for candidate in candidates:
            full = len(numbers) == limit
            met = candidate.facts is not None and matches(where, candidate.facts) and check(candidate)
            if examined == examine or (full and met):
                return FoundItems(numbers, last, exhausted=False)
            examined += 1
            if met:
                numbers.append(candidate.item_no)
            if not full:
                last = candidate.position
    return FoundItems(numbers, last, exhausted=True)


def walk(
    executor: Executor,
    scope: SearchScope,
    where: Filter,
    *,
    after: int | None = None,
    up_to: int | None = None,
    newest: bool = False,
) -> Generator[Candidate, None, None]:
    """Return candidates in order, lazily. All matches are among them. The caller closes an iterator that is not
    exhausted."""
    queue = None if where.queue is None else scope.key_of(where.queue)
    low, high = 0, MAX_NUMBER if up_to is None else up_to
    if after is not None:
        low, high = (low, min(high, after - 1)) if newest else (after + 1, high)
    if where.since is not None and _ends_with_time(where) and executor.sequence_is_time_ordered:
        low = max(low, min(where.since * NUMBERS_PER_MICROSECOND, MAX_NUMBER))
    course = _SearchPlan(executor, scope, where, queue, low, high, newest)
    if where.ids is not None:
        listed = (resolve(executor, id) for id in where.ids)
        return course.listed({item_no for item_no in listed if item_no is not None})
    known = None
    if where.operation is not None:
        known = _changed_by(executor, scope, where.operation)
    elif where.id_prefix is not None:
        known = _with_prefix(executor, where.id_prefix)
    elif where.held_by is not None:
        known = held_numbers(executor, scope.namespace, scope.section, where.held_by, MAX_EXAMINED + 1)
    if known is not None and len(known) <= MAX_EXAMINED:
        return course.listed(set(known))
    return course.dead_letters() if where.is_for_dead_letters else course.items()


def _ends_with_time(where: Filter) -> bool:
    """Return whether no match has a position before `since`. Active and moving items may have died long after their
    put."""
    return where.is_for_dead_letters or where.status in (Status.PENDING, Status.FAILED, Status.COMPLETED)


class _SearchPlan(NamedTuple):
    """A scan to be started."""

    executor: Executor
    scope: SearchScope
    where: Filter
    queue: int | None
    low: int
    high: int
    newest: bool

    def listed(self, numbers: set[int]) -> Generator[Candidate, None, None]:
        """Yield items by their numbers."""
        rows = self.executor.execute(_LISTED, (self.executor.table(numbers),)).fetchall()
        met = [
            each
            for each in self._met(rows, for_letters=self.where.is_for_dead_letters).values()
            if self._is_within(each)
        ]
        yield from sorted(met, key=lambda candidate: candidate.position, reverse=self.newest)

    def _is_within(self, candidate: Candidate) -> bool:
        return self.low <= candidate.position <= self.high

    def dead_letters(self) -> Generator[Candidate, None, None]:
        """Yield dead letters or archived items, in the order of their deaths."""
        where = self.where
        section = self.scope.section if where.status is Status.DEAD else -self.scope.section
        if where.fingerprint is not None and (queues := self._queues_of(section, where.fingerprint)) is not None:
            walks = [self._rows(_BY_FINGERPRINT, section, where.fingerprint, queue) for queue in queues]
            rows = heapq.merge(*walks, key=lambda row: row[0], reverse=self.newest)
            yield from self._each(rows, *walks)
        elif where.words is not None and (asked := _asked(where.words)):
            yield from self._by_words(asked, section)
        elif where.error_type is not None:
            _, _, name = where.error_type.rpartition(".")
            yield from self._each(self._rows(_BY_ERROR, section, name))
        elif self.queue is not None:
            yield from self._each(self._rows(_BY_QUEUE, self.queue, section))
        else:
            yield from self._each(self._rows(_BY_SECTION, section))

    def items(self) -> Generator[Candidate, None, None]:
        """Yield items of any other status, or of all, in the order of their ids."""
        table = None if self.where.status is None else _PLACES.get(self.where.status)
        statement = _ITEMS if table is None else _PLACED
        statement = statement.format(table=table, direction=self._direction)
        with contextlib.closing(self.executor.stream(statement, (self.low, self.high))) as rows:
            for some in _in_portions(rows):
                # Their state needs more statements: skip items with other headers first.
                met = self._met([row for row in some if self._has_headers(row[4])], for_letters=False)
                for item_no, *_ in some:
                    yield met.get(item_no) or Candidate(item_no, item_no, None)

    def _has_headers(self, headers: str | None) -> bool:
        if self.where.headers is None:
            return True
        return headers is not None and meets_headers(self.where, _read(decode_headers, headers) or {})

    @property
    def _direction(self) -> str:
        return "DESC" if self.newest else ""

    def _queues_of(self, section: int, fingerprint: str) -> list[int] | None:
        """Return the queues to be scanned for a fingerprint; None if they are too many."""
        if self.queue is not None:
            return [self.queue]
        found = self.executor.execute(_QUEUES_OF, (section, fingerprint, _FEW_QUEUES + 1)).fetchall()
        return [queue for (queue,) in found] if len(found) <= _FEW_QUEUES else None

    def _rows(self, by: tuple[str, str], *values: object) -> Generator[tuple[Any, ...], None, None]:
        index, condition = by
        statement = _LETTERS.format(index=index, condition=condition, direction=self._direction)
        with contextlib.closing(self.executor.stream(statement, (*values, self.low, self.high))) as rows:
            yield from rows

    def _each(
        self, rows: Iterable[tuple[Any, ...]], *walks: Generator[tuple[Any, ...], None, None]
    ) -> Generator[Candidate, None, None]:
        try:
            for some in _in_portions(rows):
                item_rows = find_all(self.executor, [row[1] for row in some]) if self._asks_for_places else {}
                for row in some:
                    yield Candidate(row[0], row[1], self._dead_letter(item_rows.get(row[1]), *row), row[0])
        finally:
            for each in walks:
                each.close()

    def _by_words(self, asked: SearchQuery, section: int) -> Generator[Candidate, None, None]:
        """Yield matches of the search index. It has terms of all namespaces, and of removed letters until the next
        retention."""
        words = self.executor.search_index
        statement = _BY_WORDS.format(condition=words.condition, direction=self._direction)
        with contextlib.closing(self.executor.stream(statement, (*words.asked(asked), self.low, self.high))) as rows:
            for some in _in_portions(rows):
                meant = {death_no: row for death_no, *row in some if row[3] == section and row[13] is not None}
                asked_for = [row[1] for row in meant.values()] if self._asks_for_places else []
                item_rows = find_all(self.executor, asked_for) if asked_for else {}
                for death_no, _, item_no, *_ in some:
                    facts = self._dead_letter(item_rows.get(item_no), *meant[death_no]) if death_no in meant else None
                    yield Candidate(death_no, item_no, facts, death_no)

    @property
    def _asks_for_places(self) -> bool:
        """True if some conditions are not in the index of dead letters."""
        names = ("min_redrives", "max_redrives", "held", "held_by", "dropped")
        return any(getattr(self.where, name) is not None for name in names)

    def _dead_letter(
        self, item_row: ItemRow | None,
        death_no: int, item_no: int, queue: int, section: int, died_at: Any, reason: str, fingerprint: str,
        error_type: str, error_class: str, deliveries: int, attempts: int, failures: int, losses: int, id_suffix: int,
        origin_queue: str | None, headers: str | None,
    ) -> FilterSubject | None:  # fmt: skip
        name = self.scope.names.get(queue)
        if name is None or self.queue not in (None, queue):
            return None
        redrives, held_by = (0, ()) if item_row is None else (item_row.redrives, item_row.held_by)
        return FilterSubject(
            make_id(item_no, id_suffix),
            Status.DEAD if section > 0 else Status.ARCHIVED,
            section > 0,
            name,
            origin_queue or name,
            died_at,
            Counters(deliveries, attempts, failures, losses, redrives),
            held_by,
            _read(DeadReason, reason) if reason else None,  # an archived item that was no dead letter has none
            Cause(fingerprint, "", error_type, _read(ErrorClass, error_class) or ErrorClass.PERMANENT)
            if reason
            else None,
            None if headers is None or self.where.headers is None else _read(decode_headers, headers),
            item_row is not None and item_row.dropped_at is not None,
        )

    def _met(self, rows: Iterable[tuple[Any, ...]], *, for_letters: bool) -> dict[int, Candidate]:
        """Return candidates of any status by number; with `for_letters`, only dead letters and archived items."""
        own = [row for row in rows if row[1] in self.scope.names and self.queue in (None, row[1])]
        item_rows = find_all(self.executor, [row[0] for row in own])
        numbers = self.executor.table(
            [item_row.death_no for item_row in item_rows.values() if item_row.death_no is not None]
        )
        letters = {row[0]: row for row in self.executor.execute(_BY_NUMBER, (numbers,)).fetchall()}
        met: dict[int, Candidate] = {}
        for row in own:
            item_row = item_rows[row[0]]
            if item_row.death_no is not None:
                facts = self._dead_letter(item_row, *letters[item_row.death_no])
                assert facts is not None
                facts = msgspec.structs.replace(facts, status=item_row.status)
                met[item_row.item_no] = Candidate(
                    item_row.death_no if for_letters else item_row.item_no, item_row.item_no, facts, item_row.death_no
                )
            elif not for_letters:
                met[item_row.item_no] = self._item(item_row, row)
        return met

    def _item(self, item_row: ItemRow, row: tuple[Any, ...]) -> Candidate:
        """Return the candidate for an item that is not a dead letter."""
        item_no, queue, put_at, origin_queue, headers = row
        name = self.scope.names[queue]
        decoded = None if headers is None or self.where.headers is None else _read(decode_headers, headers)
        facts = FilterSubject(
            item_row.id, item_row.status, False, name, origin_queue or name, put_at, item_row.counters,
            item_row.held_by, headers=decoded,
        )  # fmt: skip
        return Candidate(item_no, item_no, facts)


def _read(decode: Callable[[Any], _T], raw: object) -> _T | None:
    return read_value(decode, raw, None, tuple)


def _in_portions(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows in growing portions: a small limit is reached early, and many rows are checked together."""
    rest, size = iter(rows), 16
    while some := list(islice(rest, size)):
        yield some
        size = min(2 * size, 512)


def _asked(words: str) -> SearchQuery | None:
    """Return the parsed search; None if it has no term."""
    query = parse_query(words)
    return query if any(query) else None


def _looked_up(executor: Executor, scope: SearchScope, where: Filter) -> Callable[[Candidate], bool]:
    """Return a check of the conditions that are not facts of the item: words and operations."""
    others = (where.ids, where.operation, where.id_prefix, where.held_by, where.fingerprint)
    # Without other conditions, the candidates came from the search index.
    by_words = where.is_for_dead_letters and all(other is None for other in others)
    asked = None if where.words is None or by_words else _asked(where.words)
    has_words = _HAS_WORDS.format(condition=executor.search_index.condition)
    operation = None if where.operation is None else _operation(executor, scope, where.operation)

    def check(candidate: Candidate) -> bool:
        if where.words is not None and (candidate.facts is None or candidate.facts.cause is None):
            return False
        if asked and not executor.execute(has_words, (*executor.search_index.asked(asked), candidate.death_no)).get:
            return False
        return where.operation is None or bool(executor.execute(_WAS_CHANGED, (operation, candidate.item_no)).get)

    return check


def _operation(executor: Executor, scope: SearchScope, id: str) -> int | None:
    number: int | None = executor.execute(_OPERATION, (scope.section, id)).get
    return number


def _changed_by(executor: Executor, scope: SearchScope, id: str) -> list[int]:
    """Return current numbers of items that an operation changed; at most one more than a call examines."""
    operation = _operation(executor, scope, id)
    return [item_no for (item_no,) in executor.execute(_CHANGED, (operation, MAX_EXAMINED + 1))]


def _with_prefix(executor: Executor, prefix: str) -> list[int]:
    """Return numbers of items whose ids start with `prefix`; at most one more than a call examines.

    No index has them, as it would make every put more expensive: the database compares a number in each row.
    """
    numbers, suffixes = ids_with_prefix(prefix)
    if not numbers or not suffixes:
        return []
    bounds = (numbers.start, numbers.stop - 1, suffixes.start, suffixes.stop - 1, MAX_EXAMINED + 1)
    return [item_no for (item_no,) in executor.execute(_WITH_PREFIX, bounds)]
