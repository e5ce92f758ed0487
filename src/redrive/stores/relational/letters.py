"""Letters: one row for each dead letter and each archived item, with the words and the group that it is found by.

`place.letter` is the number drawn at the death. It is laid with the item, so that the row is found from there; what
changes it comes before `lay`.
"""

from __future__ import annotations

from typing import Any

from redrive.clock import Instant
from redrive.model.classify import names_of
from redrive.model.duration import HOUR
from redrive.model.item import Death
from redrive.model.payload import JSON
from redrive.model.words import MAX_INDEXED_CHARS, words_of
from redrive.stores.relational import groups
from redrive.stores.relational.batch import Batch, Stage, Unworded
from redrive.stores.relational.particulars import LetterParticulars, particulars_of
from redrive.stores.relational.places import Place

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


def mark(batch: Batch, place: Place, death: Death, text: str, *, archived: bool = False) -> None:
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
        batch.unworded[d] = Unworded(place.n, cause.error_type, text)
    if not archived:
        _count(batch, place.queue, cause.fingerprint, death.at, 1)


def unmark(batch: Batch, place: Place) -> None:
    """It is a dead letter, or archived, no longer: brought back, completed or removed."""
    if place.letter is None:
        return
    queue, shelf, fingerprint, died_at = _particulars(batch, place)
    batch.write(_TAKE_OFF, (place.letter,), Stage.ERASE)
    if batch.unworded.pop(place.letter, None) is None:
        batch.write(_WORDLESS, (place.letter,))
    place.letter = None
    if shelf > 0:
        _count(batch, queue, fingerprint, died_at, -1)


def shelve(batch: Batch, place: Place) -> None:
    """It is archived: a dead letter no longer, but found under the same cause, and restored with it."""
    _, shelf, fingerprint, died_at = _particulars(batch, place)
    batch.write(_SHELVE, (-shelf, place.letter))
    _count(batch, place.queue, fingerprint, died_at, -1)


def unshelve(batch: Batch, place: Place) -> None:
    """It was archived, and is a dead letter again."""
    _, shelf, fingerprint, died_at = _particulars(batch, place)
    batch.write(_SHELVE, (-shelf, place.letter))
    _count(batch, place.queue, fingerprint, died_at, 1)


def carry(batch: Batch, place: Place, from_queue: int) -> None:
    """It was moved: the letter follows. `place` has its new number and queue."""
    if place.letter is None:
        return
    _, shelf, fingerprint, died_at = _particulars(batch, place)
    batch.write(_CARRY, (place.n, place.queue, place.letter))
    if unworded := batch.unworded.get(place.letter):
        batch.unworded[place.letter] = unworded._replace(n=place.n)
    if shelf > 0:
        _count(batch, from_queue, fingerprint, died_at, -1)
        _count(batch, place.queue, fingerprint, died_at, 1)


def unmark_all(batch: Batch, letters: Any) -> None:
    """Many are dead letters, or archived, no longer. `letters` is a list that a statement can read."""
    if batch.unworded:  # some of them may be among those
        write_words(batch)
    _count_all(batch, letters, -1)
    batch.execute("DELETE FROM redrive_letter WHERE d IN carray(?)", (letters,))
    batch.execute("INSERT INTO redrive_wordless (d) SELECT value FROM carray(?)", (letters,))


def shelve_all(batch: Batch, letters: Any) -> None:
    """Many dead letters are archived."""
    _count_all(batch, letters, -1)
    batch.execute(_SHELVE_ALL, (letters,))


def unshelve_all(batch: Batch, letters: Any) -> None:
    """Many were archived, and are dead letters again."""
    batch.execute(_SHELVE_ALL, (letters,))
    _count_all(batch, letters, 1)


def write_words(batch: Batch) -> None:
    """Write the words of all letters that are new, together: many at once are much cheaper."""
    unworded, stored = batch.unworded, batch.words.stored
    contents = batch.execute(_CONTENTS, (batch.table([each.n for each in unworded.values()]),)).fetchall()
    # SQLite says NULL for a part of a payload that is empty.
    by_number = {n: (payload or b"", content_type or JSON) for n, payload, content_type in contents}
    for d, (n, error_type, text) in unworded.items():
        batch.write(_WORDS, (d, stored(words_of(error_type, text, *by_number[n]))))
    unworded.clear()


def _particulars(batch: Batch, place: Place) -> LetterParticulars:
    letter = particulars_of(batch, place).letter
    assert letter is not None
    return letter


def _count(batch: Batch, queue: int, fingerprint: str, died_at: Instant, delta: int) -> None:
    batch.tally(queue, "dead_letters", delta)
    groups.change(batch, queue, fingerprint, died_at, delta)


def _count_all(batch: Batch, letters: Any, sign: int) -> None:
    for queue, fingerprint, hour, count, first_at, last_at in batch.execute(_COUNTED, (letters,)).fetchall():
        batch.tally(queue, "dead_letters", sign * count)
        groups.change_all(batch, queue, fingerprint, hour, sign * count, first_at, last_at)
