"""Redaction of everything that a broker shows: items, groups, the feed, operations, audit rows. Never of leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from redrive.errors import InvalidInput, InvalidPayload, shown
from redrive.model.failure import Failure
from redrive.model.feed import FeedEntry
from redrive.model.group import Group
from redrive.model.item import Death, HistoryEntry, Item, Result
from redrive.model.operation import Operation
from redrive.model.payload import decode_payload, encode_payload, is_json
from redrive.model.plan import Plan
from redrive.model.redact import Kind, Redact, hidden, may_hold_secrets, redact_secrets
from redrive.store import AuditEntry
from redrive.telemetry import events

_log = events.logger("redrive.redaction")

_T = TypeVar("_T", bound=msgspec.Struct)
_replace = msgspec.structs.replace
_NO_LIMIT = 2**63


class Redaction:
    """Shows values as they may be seen. What holds no secret is given as the very same object."""

    def __init__(self, redact: Redact | Literal[False] | None = None) -> None:
        if redact is not None and redact is not False and not callable(redact):
            raise InvalidInput(
                f"redact is a function (kind, value) → value, or False for none, not {shown(redact, 60)}"
            )
        self._redact = redact_secrets if redact is None else redact

    def item(self, item: Item) -> Item:
        """An item with its payload, headers, result and errors as they may be seen."""
        if self._redact is False:
            return item
        payload, content_type = self._payload(item.payload, item.content_type)
        return _changed(
            item,
            payload=payload,
            content_type=content_type,
            headers=self._headers(item.headers),
            result=self._result(item.result),
            history=_each(item.history, self._entry),
            deaths=_each(item.deaths, self._death),
        )

    def group(self, group: Group) -> Group:
        """A group with its title as it may be seen."""
        return _changed(group, title=self.text(group.title))

    def feed_entry(self, entry: FeedEntry) -> FeedEntry:
        """An entry of the feed with its title as it may be seen."""
        return _changed(entry, title=self.text(entry.title))

    def operation(self, operation: Operation) -> Operation:
        """An operation with its texts as they may be seen."""
        return _changed(operation, note=self.text(operation.note), problem=self.text(operation.problem))

    def audit_entry(self, entry: AuditEntry) -> AuditEntry:
        """An audit row with its note as it may be seen."""
        return _changed(entry, note=self.text(entry.note))

    def plan(self, plan: Plan) -> Plan:
        """A plan with its titles as they may be seen; those that are then the same are counted together."""
        groups: dict[str, int] = {}
        for title, count in plan.groups.items():
            shown = self.text(title)
            groups[shown] = groups.get(shown, 0) + count
        return _replace(plan, groups=groups)

    def text(self, text: _Text) -> _Text:
        """A text as it may be seen."""
        if not text or self._redact is False:
            return text
        shown = self._safely("text", text)
        return shown if isinstance(shown, str) else hidden("text", text)

    def _payload(self, payload: bytes, content_type: str) -> tuple[bytes, str]:
        if not is_json(content_type):
            return self._bytes(payload), content_type
        if self._redact is redact_secrets and not _may_hold_secrets(payload):
            return payload, content_type
        try:
            value = decode_payload(payload, content_type)
        except InvalidPayload:
            return self._bytes(payload), content_type
        shown = self._safely("payload", value)
        if shown is value:
            return payload, content_type
        try:
            return encode_payload(shown, None if isinstance(shown, bytes) else content_type, _NO_LIMIT)
        except InvalidInput as error:
            _log.warning("redaction_failed", kind="payload", error_type=type(error).__name__)
            return encode_payload(hidden("payload", value), content_type, _NO_LIMIT)

    def _bytes(self, payload: bytes) -> bytes:
        shown = self._safely("payload", payload)
        if isinstance(shown, str):
            return shown.encode(errors="replace")
        return shown if isinstance(shown, bytes) else hidden("payload", payload).encode()

    def _headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        if not headers:
            return headers
        shown = self._safely("headers", headers)
        return shown if isinstance(shown, Mapping) else hidden("headers", headers)

    def _result(self, result: Result | None) -> Result | None:
        if result is None:
            return None
        payload, content_type = self._payload(result.payload, result.content_type)
        return _changed(result, payload=payload, content_type=content_type)

    def _entry(self, entry: HistoryEntry) -> HistoryEntry:
        failure = None if entry.failure is None else self._failure(entry.failure)
        return _changed(entry, failure=failure, note=self.text(entry.note))

    def _failure(self, failure: Failure) -> Failure:
        return _changed(
            failure,
            text=self.text(failure.text),
            traceback=self.text(failure.traceback),
            locals=self.text(failure.locals),
        )

    def _death(self, death: Death) -> Death:
        return _changed(death, cause=_changed(death.cause, title=self.text(death.cause.title)))

    def _safely(self, kind: Kind, value: Any) -> Any:
        """Whatever a function does wrong, nothing is shown that it was meant to hide."""
        assert self._redact is not False
        try:
            return self._redact(kind, value)
        except Exception as error:
            # Not the text of the error, which may be what it was to hide.
            _log.warning("redaction_failed", kind=kind, error_type=type(error).__name__)
            return hidden(kind, value)


_Text = TypeVar("_Text", str, "str | None")


def _may_hold_secrets(payload: bytes) -> bool:
    # An escaped letter could be part of a key.
    return b"\\u" in payload or may_hold_secrets(payload.decode(errors="replace"))


def _changed(value: _T, **fields: Any) -> _T:
    different = {name: new for name, new in fields.items() if new is not getattr(value, name)}
    return _replace(value, **different) if different else value


def _each(values: tuple[_T, ...], show: Callable[[_T], _T]) -> tuple[_T, ...]:
    shown = tuple([show(value) for value in values])
    return values if all(new is old for new, old in zip(shown, values, strict=True)) else shown
