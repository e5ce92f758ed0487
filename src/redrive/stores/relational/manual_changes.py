"""Changes by hand, without a token; and holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from redrive.contract.admin_calls import Hold, ManualChange, ManualTarget, Unhold
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import StaleSettings
from redrive.errors import InvalidInput, ItemNotFound, RedriveError
from redrive.model.feed import FeedKind
from redrive.model.item import WAITING_STATUSES, HistoryEntry, HistoryEvent, Settled, Status
from redrive.model.judge import OutcomeKind
from redrive.model.manual_change import ItemSnapshot, check_manual_change, check_verb
from redrive.model.state_machine import Verb
from redrive.stores.relational import dead_letters, redrive, verdicts
from redrive.stores.relational.batch import Batch, QueueRow
from redrive.stores.relational.bulk_changes import change_uniform, find_uniform
from redrive.stores.relational.item_details import history_of, read_particulars
from redrive.stores.relational.item_rows import ItemRow, ReadAhead, delete_row, find_all, insert_row
from redrive.stores.relational.puts import check_size
from redrive.stores.relational.settle import finish
from redrive.stores.relational.verdicts import Deed

_HELD = """
    SELECT n FROM redrive_waiting
    WHERE held_by = ? AND queue IN (SELECT key FROM redrive_queue WHERE namespace = ?) LIMIT ?"""


def change(batch: Batch, call: ManualChange) -> tuple[Settled | StaleSettings | RedriveError, ...]:
    """Change each target by itself, then write one audit row for all that were changed."""
    check_verb(call.verb)
    deed = Deed(call.verb, call.actor, call.note, call.to, call.force)
    results, queues = change_all(batch, deed, call.targets)
    changed = [result.source_id or result.id for result in results if isinstance(result, Settled)]
    if changed:
        queue = queues.pop() if len(queues) == 1 else None
        verdicts.audit(batch, call.actor, call.verb.value, queue, changed, len(changed), call.note)
    return tuple(results)


def change_all(batch: Batch, deed: Deed, targets: Sequence[ManualTarget]) -> tuple[list[Any], set[str]]:
    """Change items in their order: those that are alike together, others one by one.

    Gives a result for each, and the queues in which those were that were changed.
    """
    results: list[Any] = []
    queues: set[str] = set()
    alike = find_uniform(batch, deed, targets)
    ahead = ReadAhead(batch, [target.id for target in targets if target.id not in alike])
    if ahead.places:
        read_particulars(batch, ahead.places, history=deed.verb is Verb.UNDO)
    for together, members in groupby(targets, key=lambda target: target.id in alike):
        if together:
            settled = change_uniform(batch, deed, [alike[target.id] for target in members])
            queues.update(each.queue for each in settled)
            results += settled
        else:
            results += [_change_or_refuse(batch, deed, target, ahead, queues) for target in members]
    return results, queues


def hold(batch: Batch, call: Hold) -> int:
    """Take pending and failed items out of the ready index."""
    ahead = ReadAhead(batch, call.ids)
    return sum(_set_held(batch, ahead.take(id), None, call.held_by) for id in call.ids)


def unhold(batch: Batch, call: Unhold) -> int:
    """Let items go that are held under a name."""
    if call.ids is None:
        numbers = [n for (n,) in batch.execute(_HELD, (call.held_by, batch.namespace, MAINTENANCE_BATCH)).fetchall()]
        return sum(_set_held(batch, place, call.held_by, None) for place in find_all(batch, numbers).values())
    ahead = ReadAhead(batch, call.ids)
    return sum(_set_held(batch, ahead.take(id), call.held_by, None) for id in call.ids)


def _set_held(batch: Batch, place: ItemRow | None, before: str | None, after: str | None) -> bool:
    if place is None or place.status not in WAITING_STATUSES or place.queue not in batch.by_key:
        return False
    if place.held_by != before:
        return False
    delete_row(batch, place)
    place.held_by = after
    if after is None and place.ready_at <= batch.now:
        place.status = Status.PENDING
    insert_row(batch, place)
    return True


def _change_or_refuse(
    batch: Batch, deed: Deed, target: ManualTarget, ahead: ReadAhead, queues: set[str]
) -> Settled | StaleSettings | RedriveError:
    try:
        return _change_one(batch, deed, target, ahead.take(target.id), queues)
    except RedriveError as refusal:
        return refusal


def _change_one(
    batch: Batch, deed: Deed, target: ManualTarget, place: ItemRow | None, queues: set[str]
) -> Settled | StaleSettings:
    if place is None or place.queue not in batch.by_key:
        raise ItemNotFound(target.id)
    row = batch.by_key[place.queue]
    item = _standing(batch, deed.verb, place, row)
    check_manual_change(deed.verb, item, force=deed.force, undoes=deed.undoes)
    result = _carry_out(batch, deed, target, item, place, row)
    if isinstance(result, Settled):
        queues.add(row.queue.name)
    return result


def _carry_out(
    batch: Batch, deed: Deed, target: ManualTarget, item: ItemSnapshot, place: ItemRow, row: QueueRow
) -> Settled | StaleSettings:
    """Do it to an item that the verb applies to."""
    match deed.verb:
        case Verb.RETRY:
            return redrive.revive(batch, deed, item, place, row)
        case Verb.REDRIVE:
            return redrive.redrive(batch, deed, target, item, place)
        case Verb.UNDO:
            return redrive.undo(batch, deed, item, place)
        case Verb.MOVE:
            return redrive.move(batch, deed, item, place)
        case Verb.FAIL | Verb.BURY:
            return _judged(batch, deed, target, place, row)
        case Verb.DONE:
            delete_row(batch, place)
            return finish(batch, place, None, kind=FeedKind.DONE, actor=deed.actor, operation=deed.operation)
        case Verb.DROP | Verb.PURGE:
            delete_row(batch, place)
            verdicts.remove(batch, place)
            deed.tell(batch, FeedKind.REMOVED, row.queue.name, place)
            return Settled(place.id, row.queue.name, None, place.counters)
        case Verb.ARCHIVE:
            return redrive.archive(batch, deed, item, place)
        case Verb.RESTORE:
            return _restore(batch, deed, place, row)
        case _:
            raise AssertionError(deed.verb)


def _standing(batch: Batch, verb: Verb, place: ItemRow, row: QueueRow) -> ItemSnapshot:
    """The item as the rules see it. Only an undo asks what happened last."""
    last = None
    if verb is Verb.UNDO and place.entries:
        last = history_of(batch, place)[-1]
    is_dead_letter = place.letter is not None and place.status is not Status.ARCHIVED
    return ItemSnapshot(place.id, place.status, is_dead_letter, place.worker, last, row.queue.name, place.deliveries)


def _judged(batch: Batch, deed: Deed, target: ManualTarget, place: ItemRow, row: QueueRow) -> Settled | StaleSettings:
    """FAIL and BURY: the verdict was brought along."""
    if target.verdict is None:
        raise InvalidInput(f"{deed.verb} by hand needs a verdict")
    if target.version != row.queue.version:
        return StaleSettings(row.queue)
    failed = deed.verb is Verb.FAIL
    verdicts.check(batch, row, OutcomeKind.FAILED if failed else OutcomeKind.BURIED, target.verdict)
    worker = place.worker
    delete_row(batch, place)
    place.failures += failed
    batch.count_delta(place.queue, "failed_total", failed)
    event = HistoryEvent.FAILED if failed else HistoryEvent.BURIED
    entry = HistoryEntry(
        batch.now,
        event,
        row.queue.name,
        place.deliveries,
        target.failure,
        worker,
        deed.actor,
        deed.note,
        deed.operation,
    )
    verdicts.record(batch, place, entry)
    return verdicts.apply_verdict(batch, place, target.verdict, entry)


def _restore(batch: Batch, deed: Deed, place: ItemRow, row: QueueRow) -> Settled:
    """To the place it had. Only a status that max_size counts needs room."""
    assert place.archived_from is not None
    back, ended = place.archived_from, (place.ended_at, place.dead_reason)
    if back is not Status.DEAD:
        check_size(batch, row, 1)
    delete_row(batch, place)
    place.status = back
    if back is Status.DEAD:
        place.ended_at, place.dead_reason = ended
    dead_letters.restore_dead_letter(batch, place)
    insert_row(batch, place)
    deed.tell(batch, FeedKind.RESTORED, row.queue.name, place)
    ready_at = None if back is Status.DEAD else place.ready_at
    return Settled(place.id, row.queue.name, back, place.counters, ready_at, place.dead_reason)
