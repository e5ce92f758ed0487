"""Replies: to a leased item, with its completion, and to its death.

A queue into which an item with REPLY_TO ever came has `has_replies` set: only deaths in such a queue read headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from redrive.contract.item_calls import NewItem, Put
from redrive.contract.replies import ANSWERED, REPLY_TO, death_reply, make_reply, reply_address
from redrive.errors import InvalidInput, RedriveError, StoreError
from redrive.model.death import cause_of
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import HistoryEntry, Receipt, Result, Settled
from redrive.model.judge import Dead, Verdict
from redrive.model.limits import is_remote
from redrive.model.manual_change import ItemSnapshot, ManualAction
from redrive.model.state_machine import Verb
from redrive.stores.relational import verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_rows import ItemRow, find_by_id
from redrive.stores.relational.moves import start_move
from redrive.stores.relational.puts import put_batch
from redrive.telemetry import events

_log = events.logger("redrive.store")

_SENDER = "SELECT origin_id, headers FROM redrive_item WHERE item_no = ?"
_MOVE = ManualAction(Verb.MOVE, "reply")
"""How a reply leaves for another store."""


class ReplyContext(NamedTuple):
    """What an item says about its replies."""

    id: ItemId
    """Its first id: the one that its sender knows."""
    headers: Mapping[str, str]
    queue: str


def read_context(batch: Batch, item_row: ItemRow) -> ReplyContext:
    """Return what a reply needs to know of an item. Raises InvalidInput for a dead letter."""
    if item_row.death_no is not None:
        raise InvalidInput(ANSWERED)
    origin_id, headers = batch.execute(_SENDER, (item_row.item_no,)).get
    decoded = {} if headers is None else msgspec.json.decode(headers)
    return ReplyContext(origin_id or item_row.id, decoded, batch.by_key[item_row.queue].queue.name)


def send_reply(batch: Batch, context: ReplyContext, body: Result) -> Receipt:
    """Put a reply into the queue that the item names for them."""
    return _send(batch, context, make_reply(context.id, context.headers, body))


def reply_or_refuse(batch: Batch, context: ReplyContext, body: Result, settled: Settled) -> Settled:
    """Send the reply of a completion. The completion is done even if that is refused."""
    return _try(batch, context, make_reply(context.id, context.headers, body), settled)


def apply_verdict(batch: Batch, item_row: ItemRow, verdict: Verdict, entry: HistoryEntry) -> Settled:
    """Apply a checked verdict to an item whose state row is deleted, and answer a death."""
    is_death = isinstance(verdict, Dead) and item_row.death_no is None
    context = read_context(batch, item_row) if is_death and batch.has_replies(batch.by_key[item_row.queue]) else None
    attempts = item_row.attempts
    settled = verdicts.apply_verdict(batch, item_row, verdict, entry)
    if context is None or REPLY_TO not in context.headers or not isinstance(verdict, Dead):
        return settled
    cause = cause_of(verdict.reason, entry.failure, entry.note)
    rules = batch.by_name[context.queue].settings.redact
    new = death_reply(context.id, context.headers, attempts, cause, verdict.reason.value, entry.failure, rules)
    return _try(batch, context, new, settled)


def _try(batch: Batch, context: ReplyContext, new: NewItem, settled: Settled) -> Settled:
    try:
        _send(batch, context, new)
    except StoreError:
        raise
    except RedriveError as refusal:
        _log.warning("reply_refused", item=settled.id, queue=settled.queue, error=str(refusal))
        return msgspec.structs.replace(settled, reply_refused=str(refusal))
    return settled


def _send(batch: Batch, context: ReplyContext, new: NewItem) -> Receipt:
    """Put a reply; one for another store into the queue of the context, from which it moves there."""
    address = reply_address(context.headers)
    moves = is_remote(address)
    ((receipt,),) = put_batch(batch, (Put(context.queue if moves else address, (new,)),), passing=moves)
    if moves:
        item_row = find_by_id(batch, receipt.id)
        assert item_row is not None, "it was just put"
        start_move(
            batch,
            _MOVE,
            ItemSnapshot(item_row.id, item_row.status, False, queue=context.queue),
            item_row,
            FeedKind.MOVED,
            address,
        )
    return receipt
