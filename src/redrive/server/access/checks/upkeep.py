"""What runs by itself: promotion, expiry, retention."""

from __future__ import annotations

import msgspec

from redrive.server.access.checks import values
from redrive.store import STEP_LIMIT, Clean, Expire, Promote

_replace = msgspec.structs.replace


def promote(call: Promote) -> Promote:
    """What fell due."""
    values.limit(call.limit, STEP_LIMIT)
    return call


def expire(call: Expire) -> Expire:
    """An item whose time is over."""
    values.id(call.id)
    values.version(call.version)
    return _replace(call, verdict=values.verdict(call.verdict))


def clean(call: Clean) -> Clean:
    """Retention."""
    values.limit(call.limit, STEP_LIMIT)
    return call
