"""Validation of the call that sets the breakers of a queue."""

from __future__ import annotations

import msgspec

from redrive.broker.validation import check_integer, check_note
from redrive.contract.admin_calls import SetBreakers
from redrive.errors import InvalidInput
from redrive.model.breaker import (
    FINGERPRINT,
    MAX_BREAKERS,
    MAX_FINGERPRINT_BREAKERS,
    MAX_PROBES,
    MAX_REASON_BYTES,
    RULE_KEYS,
    Breaker,
    rule_key,
)
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.model.limits import check_instant, check_label
from redrive.model.text import clean_text
from redrive.server.validation import values

_replace = msgspec.structs.replace


def set_breakers(call: SetBreakers) -> SetBreakers:
    """Validate the breakers of a queue that are not closed, and their gate."""
    values.queue(call.name)
    values.version(call.version)
    check_label("actor", call.actor)
    values.many("breakers", len(call.breakers), MAX_BREAKERS)
    kinds = [each.kind for each in call.breakers]
    if len(set(kinds)) < len(kinds):
        raise InvalidInput("a queue has one breaker of each kind at most")
    fingerprints = sum(1 for kind in kinds if rule_key(kind) == FINGERPRINT)
    values.many("breakers of fingerprints", fingerprints, MAX_FINGERPRINT_BREAKERS)
    for gate in (call.gate, call.former_gate):
        if gate is not None:
            _check_gate(gate)
    return _replace(call, breakers=tuple(map(_checked, call.breakers)), note=check_note("note", call.note))


def _checked(breaker: Breaker) -> Breaker:
    check_label("kind", breaker.kind)
    if rule_key(breaker.kind) not in RULE_KEYS:
        raise InvalidInput(f"there is no breaker of kind '{breaker.kind}'; kinds are {', '.join(RULE_KEYS)}")
    for name in ("opened_at", "until", "probing_from", "probing_since"):
        if (instant := getattr(breaker, name)) is not None:
            check_instant(name, instant)
    values.span("open_for", breaker.open_for)
    values.ids(breaker.probes, MAX_PROBES)
    if breaker.opened_by is not None:
        check_label("opened_by", breaker.opened_by)
    return _replace(breaker, reason=clean_text(breaker.reason, MAX_REASON_BYTES))


def _check_gate(gate: Gate) -> None:
    if gate.name != BREAKER_GATE:
        raise InvalidInput(f"the gate of breakers is called '{BREAKER_GATE}'")
    check_instant("until", gate.until)
    if gate.allowance is not None:
        check_integer("allowance", gate.allowance, 0, MAX_PROBES)
    values.ids(gate.leased, MAX_PROBES)
