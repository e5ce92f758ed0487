"""The index of dead letters: one row for each dead letter and each archived item, its search terms, and group counts.

`row.letter` is the number allocated at the death. It is stored with the item; whatever changes it comes before
`insert_row`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.model.classify import names_of
from redrive.model.duration import HOUR
from redrive.model.group import Group, hour_of
from redrive.model.ids import make_id
from redrive.model.item import Death
from redrive.model.payload import JSON
from redrive.model.search_terms import MAX_INDEXED_CHARS, search_terms_of
from redrive.stores.relational.batch import Batch, GroupChange, Stage, UnindexedLetter
from redrive.stores.relational.find import SearchScope
from redrive.stores.relational.item_details import DeadLetterDetails, item_details
from redrive.stores.relational.item_rows import ItemRow
from redrive.stores.relational.session import Executor

_GROUP = "SELECT count, first_at, last_at FROM redrive_group WHERE queue = ? AND fingerprint = ?"
_WRITE = """
    INSERT INTO redrive_group (queue, fingerprint, count, first_at, last_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (queue, fingerprint) DO UPDATE
    SET count = excluded.count, first_at = excluded.first_at, last_at = excluded.last_at"""
_REMOVE = "DELETE FROM redrive_group WHERE queue = ? AND fingerprint = ?"
_SHRINK = "UPDATE redrive_group SET count = count + ?3 WHERE queue = ?1 AND fingerprint = ?2"
_EMPTY = f"{_REMOVE} AND count = 0"
_HOUR = """
    INSERT INTO redrive_group_hour AS there (queue, fingerprint, hour, count) VALUES (?, ?, ?, ?)
    ON CONFLICT (queue, fingerprint, hour) DO UPDATE SET count = there.count + excluded.count"""
_EMPTY_HOUR = "DELETE FROM redrive_group_hour WHERE queue = ? AND fingerprint = ? AND hour = ? AND count = 0"

_OF_QUEUE = "queue = ?1"
_OF_NAMESPACE = "queue IN (SELECT key FROM redrive_queue WHERE namespace = ?1)"
_LARGEST = """
    SELECT fingerprint, sum(count), min(first_at), max(last_at) FROM redrive_group WHERE {queues}
    GROUP BY fingerprint ORDER BY sum(count) DESC, max(last_at) DESC, fingerprint LIMIT ?2"""
_SHARES = "SELECT fingerprint, queue, count FROM redrive_group WHERE {queues}"
_HOURS = "SELECT hour, count FROM redrive_group_hour WHERE queue = ? AND fingerprint = ?"
_NEWEST = "SELECT max(d) FROM redrive_letter WHERE shelf = ? AND fingerprint = ? AND queue = ?"
_ID = "SELECT i.n, i.tail FROM redrive_letter AS l CROSS JOIN redrive_item AS i ON i.n = l.n WHERE l.d = ?"
_LAST_DEATH = "SELECT data FROM redrive_death WHERE n = ? ORDER BY key DESC LIMIT 1"
_COUNT = "SELECT coalesce(sum(count), 0) FROM redrive_group WHERE {queues}"

_decode_death = msgspec.json.Decoder(Death).decode
_Share = tuple[int, int]
"""A queue by its key, and how many of a group lie in it."""


def count_in_group(batch: Batch, queue: int, fingerprint: str, died_at: Instant, by: int) -> None:
    """A dead letter came to a group, or left it."""
    count_many_in_group(batch, queue, fingerprint, hour_of(died_at), by, died_at, died_at)


def count_many_in_group(
    batch: Batch, queue: int, fingerprint: str, hour: Instant, by: int, first_at: Instant, last_at: Instant
) -> None:
    """Many dead letters that died in one hour, between these instants, came to a group or left it."""
    group = batch.groups.get((queue, fingerprint))
    if group is None:
        found = batch.look(_GROUP, (queue, fingerprint)).fetchone() or (0, 0, 0)
        group = batch.groups[queue, fingerprint] = GroupChange(*found)
    if by > 0:
        group.grew = True
        # Its first death is the first one since it was last empty.
        group.first_at = min(group.first_at, first_at) if group.count else first_at
        group.last_at = max(group.last_at, last_at) if group.count else last_at
    group.count += by
    group.hours[hour] = group.hours.get(hour, 0) + by


def write_groups(batch: Batch) -> None:
    """Write what was gathered: one row for each group, and one for each hour in which its letters died."""
    left: list[tuple[int, str, Instant]] = []
    shrunk: list[tuple[int, str]] = []
    for (queue, fingerprint), group in sorted(batch.groups.items()):  # who waits for another, waits in this order
        if not group.grew:
            batch.write(_SHRINK, (queue, fingerprint, sum(group.hours.values())))
            shrunk.append((queue, fingerprint))
        elif group.count:
            batch.write(_WRITE, (queue, fingerprint, group.count, group.first_at, group.last_at))
        else:
            batch.write(_REMOVE, (queue, fingerprint))
        for hour, by in group.hours.items():
            if by:
                batch.write(_HOUR, (queue, fingerprint, hour, by))
            if by < 0:
                left.append((queue, fingerprint, hour))
    for of_group in shrunk:  # rows of a kind are written together: first all changes, then these
        batch.write(_EMPTY, of_group)
    for of_hour in left:
        batch.write(_EMPTY_HOUR, of_hour)
    batch.groups.clear()


def count_dead_letters(executor: Executor, namespace: str, queue: int | None, fingerprint: str | None) -> int:
    """How many dead letters there are, without a look at any."""
    statement = _COUNT.format(queues=_OF_NAMESPACE if queue is None else _OF_QUEUE)
    values: tuple[object, ...] = (namespace if queue is None else queue,)
    if fingerprint is not None:
        statement, values = f"{statement} AND fingerprint = ?2", (*values, fingerprint)
    counted: int = executor.execute(statement, values).get
    return counted


def largest_groups(executor: Executor, scope: SearchScope, queue: int | None, limit: int) -> tuple[Group, ...]:
    """The largest groups of a queue, or of all."""
    queues, asked = (_OF_NAMESPACE, scope.namespace) if queue is None else (_OF_QUEUE, queue)
    found = executor.execute(_LARGEST.format(queues=queues), (asked, limit)).fetchall()
    shares: dict[str, list[_Share]] = {fingerprint: [] for fingerprint, *_ in found}
    for fingerprint, key, size in executor.execute(_SHARES.format(queues=queues), (asked,)):
        if fingerprint in shares:
            shares[fingerprint].append((key, size))
    return tuple(_read_group(executor, scope, shares[each[0]], *each) for each in found)


def _read_group(
    executor: Executor,
    scope: SearchScope,
    shares: list[_Share],
    fingerprint: str,
    total: int,
    first_at: Instant,
    last_at: Instant,
) -> Group:
    shares.sort(key=lambda share: (-share[1], scope.names[share[0]]))
    hours: dict[Instant, int] = {}
    newest = 0
    for queue, _ in shares:
        for hour, died in executor.execute(_HOURS, (queue, fingerprint)):
            hours[hour] = hours.get(hour, 0) + died
        newest = max(newest, executor.execute(_NEWEST, (scope.shelf, fingerprint, queue)).get or 0)
    n, tail = executor.execute(_ID, (newest,)).get
    cause = _decode_death(executor.execute(_LAST_DEATH, (n,)).get).cause
    return Group(
        fingerprint,
        cause.group_title,
        cause.error_type,
        cause.error_class,
        total,
        first_at,
        last_at,
        {scope.names[queue]: size for queue, size in shares},
        dict(sorted(hours.items())),
        make_id(n, tail),
    )


_LETTER = """
    INSERT INTO redrive_letter (d, n, queue, shelf, died_at, reason, fingerprint, error_name, error_type, error_class,
        deliveries, attempts, failures, losses)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_TAKE_OFF = "DELETE FROM redrive_letter WHERE d = ?"
_SHELVE = "UPDATE redrive_letter SET shelf = ? WHERE d = ?"
_CARRY = "UPDATE redrive_letter SET n = ?, queue = ? WHERE d = ?"
_CONTENTS = f"SELECT n, substr(payload, 1, {MAX_INDEXED_CHARS}), content_type FROM redrive_item WHERE n IN carray(?)"
_WORDS = "INSERT INTO redrive_words (rowid, words) VALUES (?, ?)"
_WORDLESS = "INSERT INTO redrive_wordless (d) VALUES (?)"
_SHELVE_ALL = "UPDATE redrive_letter SET shelf = -shelf WHERE d IN carray(?)"
_COUNTED = f"""
    SELECT queue, fingerprint, died_at - died_at % {HOUR} AS hour, count(*), min(died_at), max(died_at)
    FROM redrive_letter WHERE d IN carray(?) AND shelf > 0 GROUP BY queue, fingerprint, hour"""


def add_dead_letter(batch: Batch, place: ItemRow, death: Death, text: str, *, archived: bool = False) -> None:
    """It is a dead letter of this death, or archived. `text` is what it is found by, beside error type and payload."""
    assert place.letter is None
    d, cause, counters = batch.draw(), death.cause, death.counters
    place.letter, place.particulars = d, None
    batch.write(
        _LETTER,
        (
            d,
            place.n,
            place.queue,
            -batch.namespace_key if archived else batch.namespace_key,
            death.at,
            death.reason.value,
            cause.fingerprint,
            names_of(cause.error_type)[-1],
            cause.error_type,
            cause.error_class.value,
            counters.deliveries,
            counters.attempts,
            counters.failures,
            counters.losses,
        ),
    )
    if batch.by_key[place.queue].settings.search:
        batch.unworded[d] = UnindexedLetter(place.n, cause.error_type, text)
    if not archived:
        _count_letter(batch, place.queue, cause.fingerprint, death.at, 1)


def remove_dead_letter(batch: Batch, place: ItemRow) -> None:
    """It is a dead letter, or archived, no longer: brought back, completed or removed."""
    if place.letter is None:
        return
    queue, shelf, fingerprint, died_at = _details(batch, place)
    batch.write(_TAKE_OFF, (place.letter,), Stage.DELETE_ITEM)
    if batch.unworded.pop(place.letter, None) is None:
        batch.write(_WORDLESS, (place.letter,))
    place.letter = None
    if shelf > 0:
        _count_letter(batch, queue, fingerprint, died_at, -1)


def archive_dead_letter(batch: Batch, place: ItemRow) -> None:
    """It is archived: a dead letter no longer, but found under the same cause, and restored with it."""
    _, shelf, fingerprint, died_at = _details(batch, place)
    batch.write(_SHELVE, (-shelf, place.letter))
    _count_letter(batch, place.queue, fingerprint, died_at, -1)


def restore_dead_letter(batch: Batch, place: ItemRow) -> None:
    """It was archived, and is a dead letter again."""
    _, shelf, fingerprint, died_at = _details(batch, place)
    batch.write(_SHELVE, (-shelf, place.letter))
    _count_letter(batch, place.queue, fingerprint, died_at, 1)


def move_dead_letter(batch: Batch, place: ItemRow, from_queue: int) -> None:
    """It was moved: the letter follows. `place` has its new number and queue."""
    if place.letter is None:
        return
    _, shelf, fingerprint, died_at = _details(batch, place)
    batch.write(_CARRY, (place.n, place.queue, place.letter))
    if unworded := batch.unworded.get(place.letter):
        batch.unworded[place.letter] = unworded._replace(n=place.n)
    if shelf > 0:
        _count_letter(batch, from_queue, fingerprint, died_at, -1)
        _count_letter(batch, place.queue, fingerprint, died_at, 1)


def remove_dead_letters(batch: Batch, letters: Any) -> None:
    """Many are dead letters, or archived, no longer. `letters` is a list that a statement can read."""
    if batch.unworded:  # some of them may be among those
        write_search_terms(batch)
    _count_letters(batch, letters, -1)
    batch.execute("DELETE FROM redrive_letter WHERE d IN carray(?)", (letters,))
    batch.execute("INSERT INTO redrive_wordless (d) SELECT value FROM carray(?)", (letters,))


def archive_dead_letters(batch: Batch, letters: Any) -> None:
    """Many dead letters are archived."""
    _count_letters(batch, letters, -1)
    batch.execute(_SHELVE_ALL, (letters,))


def restore_dead_letters(batch: Batch, letters: Any) -> None:
    """Many were archived, and are dead letters again."""
    batch.execute(_SHELVE_ALL, (letters,))
    _count_letters(batch, letters, 1)


def write_search_terms(batch: Batch) -> None:
    """Write the words of all letters that are new, together: many at once are much cheaper."""
    unworded, stored = batch.unworded, batch.words.stored
    contents = batch.execute(_CONTENTS, (batch.table([each.n for each in unworded.values()]),)).fetchall()
    # SQLite says NULL for a part of a payload that is empty.
    by_number = {n: (payload or b"", content_type or JSON) for n, payload, content_type in contents}
    for d, (n, error_type, text) in unworded.items():
        batch.write(_WORDS, (d, stored(search_terms_of(error_type, text, *by_number[n]))))
    unworded.clear()


def _details(batch: Batch, place: ItemRow) -> DeadLetterDetails:
    letter = item_details(batch, place).letter
    assert letter is not None
    return letter


def _count_letter(batch: Batch, queue: int, fingerprint: str, died_at: Instant, delta: int) -> None:
    batch.count_delta(queue, "dead_letters", delta)
    count_in_group(batch, queue, fingerprint, died_at, delta)


def _count_letters(batch: Batch, letters: Any, sign: int) -> None:
    for queue, fingerprint, hour, count, first_at, last_at in batch.execute(_COUNTED, (letters,)).fetchall():
        batch.count_delta(queue, "dead_letters", sign * count)
        count_many_in_group(batch, queue, fingerprint, hour, sign * count, first_at, last_at)
