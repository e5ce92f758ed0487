"""Validation of calls of operators: manual changes, holds, operations."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.broker.flows.inspection import build_filter
from redrive.broker.flows.operations import check_rate, check_start, check_target
from redrive.broker.validation import check_integer, check_note
from redrive.clock import Instant
from redrive.contract.admin_calls import (
    Hold,
    ManualChange,
    ManualTarget,
    SetOperation,
    StartOperation,
    StepOperation,
    Unhold,
)
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.replies import check_reply_address
from redrive.errors import InvalidInput
from redrive.model.filter import Filter
from redrive.model.ids import MAX_NUMBER
from redrive.model.judge import Verdict
from redrive.model.limits import check_address, check_label
from redrive.model.manual_change import check_verb
from redrive.model.operation import OperationStatus, check_bulk
from redrive.model.payload import check_headers
from redrive.model.state_machine import VERBS_WITH_TARGET, Verb
from redrive.server.validation import values

_replace = msgspec.structs.replace
_JUDGED = frozenset({Verb.FAIL, Verb.BURY})
_SETTABLE = frozenset(
    {OperationStatus.RUNNING, OperationStatus.PAUSED, OperationStatus.CANCELLED, OperationStatus.STOPPED}
)


def change(call: ManualChange) -> ManualChange:
    """Validate a manual change of single items."""
    check_verb(call.verb)
    check_label("actor", call.actor)
    values.many("items", len(call.targets))
    if call.to is not None:
        if call.verb not in VERBS_WITH_TARGET:
            raise InvalidInput(f"{call.verb} takes items to no queue that one could name; leave `to` out")
        check_address("queue", call.to)
    return _replace(
        call,
        targets=tuple([_target(call.verb, target) for target in call.targets]),
        note=check_note("note", call.note),
    )


def _target(verb: Verb, target: ManualTarget) -> ManualTarget:
    values.id(target.id)
    values.version(target.version)
    if (target.verdict is not None) is not (verb in _JUDGED):
        raise InvalidInput(f"manual {verb} {'needs a' if verb in _JUDGED else 'takes no'} verdict")
    if target.failure is not None and verb is not Verb.FAIL:
        raise InvalidInput(f"manual {verb} takes no failure")
    check_reply_address(target.headers)
    if (target.payload is not None or target.headers is not None) and verb is not Verb.REDRIVE:
        raise InvalidInput(f"{verb} edits nothing; redrive does")
    values.result(target.payload)
    values.span("delay", target.delay)
    if target == ManualTarget(target.id):
        return target
    return _replace(
        target,
        verdict=None if target.verdict is None else values.verdict(target.verdict),
        failure=values.failure(target.failure),
        headers=None if target.headers is None else check_headers(target.headers),
    )


def hold(call: Hold) -> Hold:
    """Validate a hold, which removes items from the ready index."""
    values.ids(call.ids)
    check_label("held_by", call.held_by)
    if call.queue_version is not None:
        values.queue(call.queue_version[0])
        values.version(call.queue_version[1])
    return call


def unhold(call: Unhold) -> Unhold:
    """Validate the end of a hold."""
    if call.ids is not None:
        values.ids(call.ids)
    check_label("held_by", call.held_by)
    return call


def start(call: StartOperation, now: Instant) -> StartOperation:
    """Validate the start of an operation."""
    check_bulk(call.verb, call.to)
    check_target(call.verb, call.to)
    if call.to is not None:
        check_address("queue", call.to)
    check_label("actor", call.actor)
    check_start(call)
    if call.expected is not None:
        check_integer("expected", call.expected, 0, MAX_NUMBER)
    return _replace(call, where=filter_(call.where, now), note=check_note("note", call.note))


def step(call: StepOperation) -> StepOperation:
    """Validate a step of an operation."""
    check_label("operation id", call.id)
    check_integer("steps", call.steps, 0, MAX_NUMBER)
    values.limit(call.limit, MAINTENANCE_BATCH)
    values.many("verdicts", len(call.verdicts))
    return _replace(call, verdicts=_verdicts(call.verdicts)) if call.verdicts else call


def set_(call: SetOperation) -> SetOperation:
    """Validate a change of an operation: pause, resume, cancel, stop, or another rate."""
    check_label("operation id", call.id)
    check_label("actor", call.actor)
    if call.status is not None and call.status not in _SETTABLE:
        raise InvalidInput(f"the status {call.status} of an operation cannot be set; the server sets it")
    check_rate(call.rate)
    if call.steps is not None:
        check_integer("steps", call.steps, 0, MAX_NUMBER)
    return _replace(call, problem=check_note("problem", call.problem))


def filter_(where: Filter, now: Instant) -> Filter:
    """Return a validated filter."""
    return build_filter(where, {}, now)


def _verdicts(given: Mapping[str, tuple[Verdict, int]]) -> dict[str, tuple[Verdict, int]]:
    checked = {}
    for name, (verdict, version) in given.items():
        values.version(version)
        checked[values.queue(name)] = (values.verdict(verdict), version)
    return checked
