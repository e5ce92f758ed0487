"""Values as JSON that programs read: as a server answers them (docs/reference/http.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from redrive.model.hidden import is_hidden
from redrive.model.item import Item, Settled
from redrive.model.queue import QueueSettings
from redrive.server.views import item_view, view_of


def form(value: Any) -> Any:
    """A value of the broker as JSON has it; also a list or table of such."""
    match value:
        case Item():
            return item_view(value, with_payload=not is_hidden(value))
        case Settled():
            return {"status": "removed", **view_of(value)}
        case msgspec.Struct():
            return view_of(value)
        case Mapping():
            return {str(key): form(each) for key, each in value.items()}
        case list() | tuple():
            return [form(each) for each in value]
        case _:
            return value


def changed_settings(settings: QueueSettings) -> dict[str, Any]:
    """Settings that are not as usual, as they are written for `create_queue`."""
    usual = QueueSettings()
    view = view_of(settings)
    return {name: value for name, value in view.items() if getattr(settings, name) != getattr(usual, name)}
