"""Changes by hand, without a token; and holds."""

from __future__ import annotations

from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.errors import ItemNotFound, RedriveError
from redrive.model.by_hand import Standing, check_change, check_verb, redrive_queue, stays_dead_letter
from redrive.model.ids import ItemId
from redrive.model.item import Death, Event, HistoryEntry, Settled, Status
from redrive.model.judge import Ending
from redrive.model.transitions import Verb
from redrive.store import STEP_LIMIT, Change, Hold, Stale, Target, Unhold
from redrive.stores.sqlite import verdicts
from redrive.stores.sqlite.batch import Batch, QueueRow
from redrive.stores.sqlite.places import Place, find, lay, resolve, take
from redrive.stores.sqlite.puts import check_size
from redrive.stores.sqlite.settles import finish

_LAST_DEATH = "SELECT data FROM redrive_death WHERE n = ? ORDER BY key DESC LIMIT 1"
_LETTER = "SELECT 1 FROM redrive_letter WHERE n = ?"
_EXPIRE_TIMEOUT = "SELECT expire_timeout FROM redrive_item WHERE n = ?"
_HELD = """
    SELECT n FROM redrive_waiting
    WHERE held_by = ? AND queue IN (SELECT key FROM redrive_queue WHERE namespace = ?) LIMIT ?"""


def change(batch: Batch, call: Change) -> tuple[Settled | Stale | RedriveError, ...]:
    """Change each target by itself, then write one audit row for all that were changed."""
    check_verb(call.verb)
    results: list[Any] = []
    queues: set[str] = set()
    for target in call.targets:
        try:
            results.append(_change_one(batch, call, target, queues))
        except RedriveError as refusal:
            results.append(refusal)
    changed = [result.source_id or result.id for result in results if isinstance(result, Settled)]
    if changed:
        queue = queues.pop() if len(queues) == 1 else None
        verdicts.audit(batch, call.actor, call.verb.value, queue, changed, len(changed), call.note)
    return tuple(results)


def hold(batch: Batch, call: Hold) -> int:
    """Take pending and failed items out of the ready index."""
    return sum(_set_held(batch, resolve(batch, id), None, call.held_by) for id in call.ids)


def unhold(batch: Batch, call: Unhold) -> int:
    """Let items go that are held under a name."""
    if call.ids is None:
        numbers = [n for (n,) in batch.execute(_HELD, (call.held_by, batch.namespace, STEP_LIMIT)).fetchall()]
    else:
        numbers = [n for id in call.ids if (n := resolve(batch, id)) is not None]
    return sum(_set_held(batch, n, call.held_by, None) for n in numbers)


def _set_held(batch: Batch, n: int | None, before: str | None, after: str | None) -> bool:
    place = None if n is None else find(batch, n)
    if place is None or place.status not in (Status.PENDING, Status.FAILED) or place.queue not in batch.by_key:
        return False
    if place.held_by != before:
        return False
    take(batch, place)
    place.held_by = after
    if after is None and place.ready_at <= batch.now:
        place.status = Status.PENDING
    lay(batch, place)
    return True


def _change_one(batch: Batch, call: Change, target: Target, queues: set[str]) -> Settled | Stale:
    n = resolve(batch, target.id)
    place = None if n is None else find(batch, n)
    if place is None or place.queue not in batch.by_key:
        raise ItemNotFound(target.id)
    row = batch.by_key[place.queue]
    item = _standing(batch, place)
    check_change(call.verb, item, force=call.force)
    queues.add(row.queue.name)
    match call.verb:
        case Verb.RETRY:
            return _revive(batch, call, place, row, stays_dead_letter(call.verb, item))
        case Verb.REDRIVE:
            target_row = batch.queue(redrive_queue(_last_death(batch, place).queue, call.to))
            return _revive(batch, call, place, target_row, stays_dead_letter(call.verb, item))
        case Verb.FAIL | Verb.BURY:
            return _judged(batch, call, target, place, row)
        case Verb.DONE:
            take(batch, place)
            return finish(batch, place, None)
        case Verb.DROP:
            take(batch, place)
            verdicts.remove(batch, place)
            return Settled(place.id, row.queue.name, None, place.counters)
        case Verb.ARCHIVE:
            return _archive(batch, place, row)
        case Verb.RESTORE:
            return _restore(batch, place, row)
        case _:
            raise AssertionError(call.verb)


def _standing(batch: Batch, place: Place) -> Standing:
    """The item as the rules see it. Only what died can be a dead letter, so the others need no look."""
    letter = place.deaths > 0 and batch.execute(_LETTER, (place.n,)).get is not None
    return Standing(place.id, place.status, letter, place.worker)


def _revive(batch: Batch, call: Change, place: Place, target: QueueRow, stays_letter: bool) -> Settled:
    """Back to work, with counters at 0, at the tail of the target."""
    take(batch, place)
    if not stays_letter:
        verdicts.unmark(batch, place)
    was_in = batch.by_key[place.queue].queue.name
    source_id: ItemId | None = None
    if target.key != place.queue:
        source_id = verdicts.move(batch, place, target)
    place.status, place.held_by = Status.PENDING, None
    place.attempts = place.failures = place.losses = 0
    place.redrives += 1
    place.ready_at, place.seq = batch.now, batch.draw() if source_id is None else place.n
    timeout = batch.execute(_EXPIRE_TIMEOUT, (place.n,)).get
    timeout = target.settings.expire_timeout if timeout is None else timeout
    place.expire_deadline = None if timeout is None or stays_letter else Instant(batch.now + timeout)
    queue = target.queue.name
    entry = HistoryEntry(batch.now, Event.REDRIVEN, was_in, place.deliveries, actor=call.actor, note=call.note)
    verdicts.record(batch, place, entry)
    lay(batch, place)
    return Settled(place.id, queue, Status.PENDING, place.counters, place.ready_at, source_id=source_id)


def _judged(batch: Batch, call: Change, target: Target, place: Place, row: QueueRow) -> Settled | Stale:
    """FAIL and BURY: the verdict was brought along."""
    if target.version != row.queue.version:
        return Stale(row.queue)
    assert target.verdict is not None
    failed = call.verb is Verb.FAIL
    verdicts.check(batch, row, Ending.FAILED if failed else Ending.BURIED, target.verdict)
    worker = place.worker
    take(batch, place)
    place.failures += failed
    batch.tally(place.queue, "failed_total", failed)
    event = Event.FAILED if failed else Event.BURIED
    verdicts.record(
        batch,
        place,
        HistoryEntry(batch.now, event, row.queue.name, place.deliveries, target.failure, worker, call.actor, call.note),
    )
    return verdicts.carry_out(batch, place, target.verdict)


def _archive(batch: Batch, place: Place, row: QueueRow) -> Settled:
    death = _last_death(batch, place)
    before = Status.PENDING if place.status is Status.ACTIVE else place.status
    take(batch, place)
    verdicts.unmark(batch, place)
    place.status, place.archived_from, place.ended_at, place.dead_reason = (
        Status.ARCHIVED,
        before,
        death.at,
        death.reason,
    )
    lay(batch, place)
    return Settled(place.id, row.queue.name, Status.ARCHIVED, place.counters, dead_reason=place.dead_reason)


def _restore(batch: Batch, place: Place, row: QueueRow) -> Settled:
    assert place.archived_from is not None
    if place.archived_from is not Status.DEAD:
        check_size(batch, row, 1)
    death = _last_death(batch, place)
    back = place.archived_from
    take(batch, place)
    place.status = back
    if back is Status.DEAD:
        place.ended_at, place.dead_reason = death.at, death.reason
    lay(batch, place)
    verdicts.mark(batch, place, death.at)
    ready_at = None if back is Status.DEAD else place.ready_at
    return Settled(place.id, row.queue.name, back, place.counters, ready_at, place.dead_reason)


def _last_death(batch: Batch, place: Place) -> Death:
    death: Death = msgspec.json.decode(batch.execute(_LAST_DEATH, (place.n,)).get, type=Death)
    return death
