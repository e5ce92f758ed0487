"""Replies: to a leased item, with its completion, and to its death."""

from __future__ import annotations

from typing import Any

import msgspec

from redrive.contract.item_calls import NewItem, Put, Reply
from redrive.contract.replies import ANSWERED, REPLY_TO, death_reply, make_reply, reply_address
from redrive.errors import InvalidInput, PayloadTooLarge, RedriveError, StoreError
from redrive.model.death import cause_of
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import Receipt, Result, Settled
from redrive.model.judge import Dead, OutcomeKind, Verdict, count_outcome
from redrive.model.limits import is_remote
from redrive.model.manual_change import ManualAction
from redrive.model.state_machine import Verb
from redrive.stores.rules import verdicts
from redrive.stores.rules.moves import start_move
from redrive.stores.rules.puts import PutPlan
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State
from redrive.telemetry import events

_log = events.logger("redrive.store")

_MOVE = ManualAction(Verb.MOVE, "reply")
"""The action by which a reply leaves for another store."""


def reply(state: State, call: Reply) -> Receipt:
    """Send one of several replies to an item, which stays leased."""
    item = state.leased(call.token, call.queue)
    check_reply(item)
    return _send(state, item.queue, reply_address(item.headers), _reply_to(item, call.body))


def check_reply(item: Record) -> None:
    """Raise unless the item takes a reply."""
    reply_address(item.headers)
    if item.is_dead_letter:
        raise InvalidInput(ANSWERED)


def check_last_reply(state: State, item: Record, body: Result) -> None:
    """Raise unless the item takes a reply of this size with its completion."""
    check_reply(item)
    limit = _largest(state, item)
    if limit is not None and len(body.payload) > limit:
        raise PayloadTooLarge("reply", len(body.payload), limit, "max_payload_size")


def reply_or_refuse(state: State, item: Record, settled: Settled, body: Result) -> Settled:
    """Send the checked reply of a completion. If its queue is gone or full, the item is completed without it."""
    return _try(state, item, settled, _reply_to(item, body))


def apply_verdict(state: State, item: Record, outcome_kind: OutcomeKind, verdict: Verdict, **details: Any) -> Settled:
    """Apply a checked verdict, and send the reply to a death."""
    is_answered = isinstance(verdict, Dead) and REPLY_TO in item.headers and not item.is_dead_letter
    attempts = count_outcome(item.counters, outcome_kind).attempts
    queue = item.queue
    settled = verdicts.apply_verdict(state, item, outcome_kind, verdict, **details)
    if not is_answered or not isinstance(verdict, Dead):
        return settled
    failure = details.get("failure")
    cause = cause_of(verdict.reason, failure, details.get("note"))
    rules, limit = state.queues[queue].value.settings.redact, _largest(state, item)
    new = death_reply(_first_id(item), item.headers, attempts, cause, verdict.reason.value, failure, rules, limit)
    return _try(state, item, settled, new, queue)


def _try(state: State, item: Record, settled: Settled, new: NewItem, queue: str | None = None) -> Settled:
    try:
        _send(state, item.queue if queue is None else queue, reply_address(item.headers), new)
    except StoreError:
        raise
    except RedriveError as refusal:
        _log.warning("reply_refused", item=settled.id, queue=settled.queue, error=str(refusal))
        return msgspec.structs.replace(settled, reply_refused=str(refusal))
    return settled


def _send(state: State, queue: str, address: str, new: NewItem) -> Receipt:
    """Put a reply. A reply for another store is put into this queue, from which it moves there."""
    plan = PutPlan(state, passing=is_remote(address))
    plan.add(Put(queue if is_remote(address) else address, (new,)))
    (receipt,) = plan.apply()
    if is_remote(address):
        start_move(state, _MOVE, state.items[receipt.id], FeedKind.MOVED, address)
    return receipt


def _largest(state: State, item: Record) -> int | None:
    """Return the maximum size of a reply to an item; None if its queue is gone, or in another store."""
    queue = state.queues.get(reply_address(item.headers))
    return None if queue is None else queue.value.settings.max_payload_size


def _reply_to(item: Record, body: Result) -> NewItem:
    return make_reply(_first_id(item), item.headers, body)


def _first_id(item: Record) -> ItemId:
    return item.origin_id or item.ids[0]
