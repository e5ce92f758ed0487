"""Manual changes, without a token; and holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from redrive.contract.admin_calls import Hold, ManualChange, ManualTarget, Unhold
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import StaleSettings
from redrive.errors import InvalidInput, ItemNotFound, RedriveError
from redrive.model.feed import FeedKind
from redrive.model.holder import Holders, add_holder, remove_holder
from redrive.model.item import WAITING_STATUSES, HistoryEntry, HistoryEvent, Settled, Status
from redrive.model.judge import OutcomeKind
from redrive.model.manual_change import ItemSnapshot, ManualAction, check_manual_change, check_verb
from redrive.model.state_machine import Verb
from redrive.stores.relational import archive, redrive, replies, verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.bulk_changes import change_uniform, find_uniform
from redrive.stores.relational.holder_index import held_numbers
from redrive.stores.relational.item_details import history_of, read_details
from redrive.stores.relational.item_rows import ItemRow, ReadAhead, delete_row, find_all, insert_row
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.settle import complete_item


def change(batch: Batch, call: ManualChange) -> tuple[Settled | StaleSettings | RedriveError, ...]:
    """Change each target separately, then write one audit row for all changed items."""
    check_verb(call.verb)
    action = ManualAction(call.verb, call.actor, call.note, call.to, call.force)
    results, queues = change_all(batch, action, call.targets)
    changed = [result.source_id or result.id for result in results if isinstance(result, Settled)]
    if changed:
        queue = queues.pop() if len(queues) == 1 else None
        verdicts.audit(batch, call.actor, call.verb.value, queue, changed, len(changed), call.note)
    return tuple(results)


def change_all(batch: Batch, action: ManualAction, targets: Sequence[ManualTarget]) -> tuple[list[Any], set[str]]:
    """Change items in order: uniform ones together, others one by one.

    Returns a result for each, and the queues of the changed items.
    """
    results: list[Any] = []
    queues: set[str] = set()
    alike = find_uniform(batch, action, targets)
    ahead = ReadAhead(batch, [target.id for target in targets if target.id not in alike])
    if ahead.item_rows:
        read_details(batch, ahead.item_rows, history=action.verb is Verb.UNDO)
    for together, members in groupby(targets, key=lambda target: target.id in alike):
        if together:
            settled = change_uniform(batch, action, [alike[target.id] for target in members])
            queues.update(each.queue for each in settled)
            results += settled
        else:
            results += [_change_or_refuse(batch, action, target, ahead, queues) for target in members]
    return results, queues


def hold(batch: Batch, call: Hold) -> int | StaleSettings:
    """Take pending and failed items out of the ready index."""
    if call.queue_version is not None:
        name, version = call.queue_version
        queue = batch.queue(name).queue
        if queue.version != version:
            return StaleSettings(queue)
    ahead = ReadAhead(batch, call.ids)
    return sum(_add_holder(batch, ahead.take(id), call) for id in call.ids)


def unhold(batch: Batch, call: Unhold) -> int:
    """Let items go that are held under a name."""
    if call.ids is None:
        numbers = held_numbers(batch, batch.namespace, batch.namespace_key, call.held_by, MAINTENANCE_BATCH)
        return sum(_remove_holder(batch, item_row, call.held_by) for item_row in find_all(batch, numbers).values())
    ahead = ReadAhead(batch, call.ids)
    return sum(_remove_holder(batch, ahead.take(id), call.held_by) for id in call.ids)


def _add_holder(batch: Batch, item_row: ItemRow | None, call: Hold) -> bool:
    if item_row is None or item_row.status not in WAITING_STATUSES or item_row.queue not in batch.by_key:
        return False
    holders = add_holder(item_row.holders, call.held_by, is_lasting=call.lasting)
    return holders != item_row.holders and _set_holders(batch, item_row, holders)


def _remove_holder(batch: Batch, item_row: ItemRow | None, name: str) -> bool:
    if item_row is None or item_row.status is Status.MOVING or item_row.queue not in batch.by_key:
        return False
    holders = remove_holder(item_row.holders, name)
    return holders != item_row.holders and _set_holders(batch, item_row, holders)


def _set_holders(batch: Batch, item_row: ItemRow, holders: Holders) -> bool:
    changed = msgspec.structs.replace(item_row, holders=holders, ready=False)
    delete_row(batch, item_row)
    if item_row.status in WAITING_STATUSES and not holders and item_row.ready_at <= batch.now:
        changed.status = Status.PENDING
    insert_row(batch, changed)
    return True


def _change_or_refuse(
    batch: Batch, action: ManualAction, target: ManualTarget, ahead: ReadAhead, queues: set[str]
) -> Settled | StaleSettings | RedriveError:
    try:
        return _change_one(batch, action, target, ahead.take(target.id), queues)
    except RedriveError as refusal:
        return refusal


def _change_one(
    batch: Batch, action: ManualAction, target: ManualTarget, item_row: ItemRow | None, queues: set[str]
) -> Settled | StaleSettings:
    if item_row is None or item_row.queue not in batch.by_key:
        raise ItemNotFound(target.id)
    row = batch.by_key[item_row.queue]
    item = _standing(batch, action.verb, item_row, row)
    check_manual_change(action.verb, item, force=action.force, undoes=action.undoes)
    result = _carry_out(batch, action, target, item, item_row, row)
    if isinstance(result, Settled):
        queues.add(row.queue.name)
    return result


def _carry_out(
    batch: Batch, action: ManualAction, target: ManualTarget, item: ItemSnapshot, item_row: ItemRow, row: QueueRow
) -> Settled | StaleSettings:
    """Do it to an item that the verb applies to."""
    match action.verb:
        case Verb.RETRY:
            return redrive.revive(batch, action, item, item_row, row)
        case Verb.REDRIVE:
            return redrive.redrive(batch, action, target, item, item_row)
        case Verb.UNDO:
            return redrive.undo(batch, action, item, item_row, row)
        case Verb.MOVE:
            return redrive.move(batch, action, item, item_row)
        case Verb.FAIL | Verb.BURY:
            return _judged(batch, action, target, item_row, row)
        case Verb.DONE:
            delete_row(batch, item_row)
            return complete_item(
                batch, item_row, None, kind=FeedKind.DONE, actor=action.actor, operation=action.operation
            )
        case Verb.DROP:
            return archive.drop(batch, action, item, item_row, row)
        case Verb.PURGE:
            delete_row(batch, item_row)
            verdicts.remove(batch, item_row)
            verdicts.append_action_event(batch, action, FeedKind.REMOVED, row.queue.name, item_row)
            return Settled(item_row.id, row.queue.name, None, item_row.counters)
        case Verb.ARCHIVE:
            return archive.archive(batch, action, item, item_row)
        case Verb.RESTORE:
            return archive.restore(batch, action, item, item_row, row)
        case _:
            raise AssertionError(action.verb)


def _standing(batch: Batch, verb: Verb, item_row: ItemRow, row: QueueRow) -> ItemSnapshot:
    """The item as the rules see it. Only an undo asks what happened last."""
    last = None
    if verb is Verb.UNDO and item_row.entries:
        last = history_of(batch, item_row)[-1]
    is_dead_letter = item_row.death_no is not None and item_row.status is not Status.ARCHIVED
    return ItemSnapshot(
        item_row.id,
        item_row.status,
        is_dead_letter,
        item_row.worker,
        last,
        row.queue.name,
        item_row.deliveries,
        item_row.was_dead,
        item_row.dropped_at is not None,
    )


def _judged(
    batch: Batch, action: ManualAction, target: ManualTarget, item_row: ItemRow, row: QueueRow
) -> Settled | StaleSettings:
    """FAIL and BURY: the verdict was brought along."""
    if target.verdict is None:
        raise InvalidInput(f"a manual {action.verb} needs a verdict")
    if target.version != row.queue.version:
        return StaleSettings(row.queue)
    failed = action.verb is Verb.FAIL
    outcome_kind = OutcomeKind.FAILED if failed else OutcomeKind.BURIED
    verdicts.check(batch, row, outcome_kind, target.verdict, was_dead=item_row.was_dead)
    worker = item_row.worker
    delete_row(batch, item_row)
    item_row.failures += failed
    batch.count_delta(item_row.queue, "failed_total", failed)
    event = HistoryEvent.FAILED if failed else HistoryEvent.BURIED
    entry = HistoryEntry(
        batch.now,
        event,
        row.queue.name,
        item_row.deliveries,
        target.failure,
        worker,
        action.actor,
        action.note,
        action.operation,
    )
    verdicts.record(batch, item_row, entry)
    return replies.apply_verdict(batch, item_row, target.verdict, entry)
