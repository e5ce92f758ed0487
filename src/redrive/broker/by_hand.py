"""Changes by a person, without a token: retry, undo, move, done, drop, archive, restore, purge, fail, bury, hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redrive.broker.checks import note_of
from redrive.broker.flow import Ask, Flow, accepted, send
from redrive.broker.moves import target_of
from redrive.broker.queues import MAX_ROUNDS, unsettled
from redrive.broker.settle import failure_of
from redrive.errors import RedriveError
from redrive.model.address import check_address
from redrive.model.failure import Failure
from redrive.model.given import flag
from redrive.model.ids import ItemId, ids_of
from redrive.model.item import Item
from redrive.model.judge import Ending, count
from redrive.model.limits import MAX_BATCH, check_label
from redrive.model.transitions import Verb
from redrive.store import Change, GetItem, Hold, Stale, Target, Unhold

if TYPE_CHECKING:
    from redrive.broker.core import Core


def change(
    core: Core, verb: Verb, ids: str | Sequence[str], actor: str | None, force: bool = False, *, to: str | None = None
) -> Flow[Any]:
    """Carry out a verb that needs no verdict."""
    target_queue = None
    if verb is Verb.MOVE:
        target_queue = yield from target_of(core, check_address("queue", to))
    targets = tuple(Target(id) for id in checked_ids(ids))
    results = yield from send(Change(verb, targets, core.actor(actor), flag("force", force), target_queue))
    core.departed(results)
    return one_or_many(ids, results)


def judged(
    core: Core,
    verb: Verb,
    ids: str | Sequence[str],
    actor: str | None,
    force: bool,
    *,
    error: str | Failure | None = None,
    note: str | None = None,
) -> Flow[Any]:
    """Carry out a verb that needs a verdict for each item: read, judge, change; again where settings changed."""
    text, forced = note_of("note", note), flag("force", force)
    if verb is Verb.FAIL:
        failure_of(error, (), None)  # what is no error is refused at once, not item by item
    results: dict[ItemId, Any] = {}
    now: dict[ItemId, ItemId] = {}
    """The present id of what was listed under another one: an item is judged once, however often it is listed."""
    listed = checked_ids(ids)
    waiting = list(dict.fromkeys(listed))
    for _ in range(MAX_ROUNDS):
        targets: dict[ItemId, Target] = {}
        for id in waiting:
            try:
                target = yield from _judged_target(core, verb, id, error)
            except RedriveError as refusal:
                results[id] = refusal
            else:
                now[id] = target.id
                targets[target.id] = target
        if targets:
            call = Change(verb, tuple(targets.values()), core.actor(actor), forced, None, text)
            outcome = yield from send(call)
            results.update(zip(targets, outcome, strict=True))
            core.departed(outcome)
        waiting = [id for id in targets if isinstance(results[id], Stale)]
        for id in waiting:
            core.remember(results[id].queue)
        if not waiting:
            break
    for id in waiting:
        results[id] = unsettled(core, results[id].queue.name)
    return one_or_many(ids, [results[_latest(now, id)] for id in listed])


def _latest(now: Mapping[ItemId, ItemId], id: ItemId) -> ItemId:
    while (later := now.get(id, id)) != id:
        id = later
    return id


def hold(ids: Sequence[str], held_by: str) -> Flow[int]:
    """Keep items out of the ready index."""
    held: int = yield from send(Hold(checked_ids(ids), check_label("held_by", held_by)))
    return held


def unhold(held_by: str, ids: Sequence[str] | None) -> Flow[int]:
    """Without ids, step by step until nothing is held under that name."""
    call = Unhold(check_label("held_by", held_by), None if ids is None else checked_ids(ids))
    total = 0
    while True:
        released: int = yield from send(call)
        total += released
        if ids is not None or released == 0:
            return total


def _judged_target(core: Core, verb: Verb, id: ItemId, error: str | Failure | None) -> Flow[Target]:
    item: Item = yield Ask(GetItem(id))
    queue = yield from core.queue(item.queue)
    ending = Ending.FAILED if verb is Verb.FAIL else Ending.BURIED
    failure = failure_of(error, queue.settings.error_rules, None) if verb is Verb.FAIL else None
    counters = count(item.counters, ending)
    expired = item.expire_deadline is not None and item.expire_deadline <= core.clock.now()
    verdict = core.judge(queue, ending, counters, failure=failure, overrides=item.overrides, expired=expired)
    return Target(item.id, verdict, queue.version, failure)


def checked_ids(ids: str | Sequence[str]) -> tuple[ItemId, ...]:
    """One id or several, as a tuple."""
    return ids_of(ids, MAX_BATCH, "one id or a list of ids", "call")


def one_or_many(ids: str | Sequence[str], results: Sequence[Any]) -> Any:
    """For one id its result, and a refusal is raised; for several a list with a result or a refusal for each."""
    return accepted(results[0]) if isinstance(ids, str) else list(results)
