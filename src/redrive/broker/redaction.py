"""Redaction of everything that a broker shows: items, groups, the feed, operations, audit rows. Never of leases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from redrive.broker.flow import Flow, ReadQuery
from redrive.contract.queries import AuditEntry, GetQueue, ListQueues
from redrive.errors import Forbidden, InvalidInput, InvalidPayload, QueueNotFound, short_repr
from redrive.model.failure import Failure
from redrive.model.feed import FeedEntry
from redrive.model.group import Group
from redrive.model.item import Death, HistoryEntry, Item, Result
from redrive.model.limits import is_remote
from redrive.model.operation import Operation
from redrive.model.operation_plan import OperationPlan, PlanSubject
from redrive.model.payload import decode_payload, encode_payload, is_json
from redrive.model.queue import Queue
from redrive.model.redact import Kind, Redact, RedactOption, Redactor, mask_value, redactor_by
from redrive.model.redact_rules import NO_RULES, RedactRules, redact_rules_from
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.core import Core

MAX_QUEUES_ONE_BY_ONE = 8
"""Maximum number of queues that are read one by one for their rules; for more, all queues are read."""

_log = events.logger("redrive.redaction")

_T = TypeVar("_T", bound=msgspec.Struct)
_replace = msgspec.structs.replace
_NO_LIMIT = 2**63


class Redaction:
    """The redaction of all values that a broker shows. A value without a secret is returned as the same object.

    The rules of a queue apply to items that are or were in it. They do not apply if the program has its own function,
    or redacts nothing.
    """

    def __init__(
        self,
        redact: RedactOption = None,
        rules: Mapping[str, RedactRules] | None = None,
    ) -> None:
        """Create it from the option `redact` of `connect`, and the rules of queues by name."""
        if isinstance(redact, Mapping | RedactRules):
            self._function: Redact | Literal[False] | None = None
            self._common = redact_rules_from(redact)
        elif redact is None or redact is False or callable(redact):
            self._function, self._common = redact, NO_RULES
        else:
            kinds = "a function (kind, value) → value, a table of rules, or False for none"
            raise InvalidInput(f"redact is {kinds}, not {short_repr(redact, 60)}")
        self._rules = rules or {}

    @property
    def takes_rules(self) -> bool:
        """True if the rules of queues apply."""
        return self._function is None

    def knowing(self, rules: Mapping[str, RedactRules]) -> Redaction:
        """Return the same redaction with the rules of these queues."""
        return Redaction(self._common, rules) if rules and self.takes_rules else self

    def item(self, item: Item) -> Item:
        """Redact the payload, headers, result and errors of an item."""
        return self._in(*queues_of(item)).item(item)

    def group(self, group: Group) -> Group:
        """Redact the title of a group, by the rules of all queues: a group does not record where its letters died."""
        return _changed(group, title=self._in_all().text(group.title))

    def feed_entry(self, entry: FeedEntry) -> FeedEntry:
        """Redact the title of a feed entry."""
        return _changed(entry, title=self._in(entry.queue).text(entry.title))

    def operation(self, operation: Operation) -> Operation:
        """Redact the note and the problem of an operation."""
        view = self._in(operation.where.queue)
        return _changed(operation, note=view.text(operation.note), problem=view.text(operation.problem))

    def audit_entry(self, entry: AuditEntry) -> AuditEntry:
        """Redact the note of an audit row."""
        return _changed(entry, note=self._in(entry.queue).text(entry.note))

    def plan_subject(self, item: PlanSubject) -> PlanSubject:
        """Redact the title of the cause of a planned item, by the rules of all queues as in a group."""
        if item.cause is None:
            return item
        return _changed(item, cause=_changed(item.cause, title=self._in_all().text(item.cause.title)))

    def plan(self, plan: OperationPlan) -> OperationPlan:
        """Redact the titles of a plan; titles that are then equal are counted together."""
        view, groups = self._in_all(), dict[str, int]()
        for title, count in plan.groups.items():
            seen = view.text(title)
            groups[seen] = groups.get(seen, 0) + count
        return _replace(plan, groups=groups)

    def _in(self, *queues: str | None) -> _View:
        """Return the view of these queues: what one of them allows is shown, unless another one names it a secret."""
        rules = [self._rules[queue] for queue in queues if queue is not None and queue in self._rules]
        return self._by(reduce(or_, rules, self._common))

    def _in_all(self) -> _View:
        """Return the view for all queues: a value that is a secret in one of them is redacted."""
        rules = [_replace(each, allow=()) for each in self._rules.values()]
        return self._by(reduce(or_, rules, self._common))

    def _by(self, rules: RedactRules) -> _View:
        return _View(redactor_by(rules) if self._function is None else self._function)


def queues_of(item: Item) -> Iterator[str]:
    """Yield the queues that an item is or was in, by its deaths and its history."""
    yield item.queue
    yield from (death.queue for death in item.deaths)
    yield from (entry.queue for entry in item.history)


def redaction_for(core: Core, queues: Iterable[str | None] | None) -> Flow[Redaction]:
    """Return the redaction by the current rules of these queues. None: all queues."""
    if not core.redaction.takes_rules:
        return core.redaction
    if queues is None:
        return core.redaction.knowing(rules_of((yield ReadQuery(ListQueues(), is_internal=True))))
    names = {name for name in queues if name is not None and not is_remote(name)}
    found = yield from (_all_queues(names) if len(names) > MAX_QUEUES_ONE_BY_ONE else _each_queue(core, names))
    return core.redaction.knowing(rules_of(found))


def rules_of(queues: Iterable[Queue]) -> dict[str, RedactRules]:
    """Return the rules of those queues that have any."""
    return {queue.name: queue.settings.redact for queue in queues if queue.settings.redact != NO_RULES}


def _all_queues(names: set[str]) -> Flow[list[Queue]]:
    queues: tuple[Queue, ...] = yield ReadQuery(ListQueues(), is_internal=True)
    return [queue for queue in queues if queue.name in names]


def _each_queue(core: Core, names: set[str]) -> Flow[list[Queue]]:
    """Read the queues that exist; on a server, those that the token of the program may read."""
    queues = []
    for name in sorted(names):
        with contextlib.suppress(QueueNotFound, Forbidden):
            queues.append(core.cache_queue((yield ReadQuery(GetQueue(name), is_internal=True))))
    return queues


class _View:
    """Values as one redaction function shows them."""

    def __init__(self, redact: Redact | Literal[False]) -> None:
        self._redact = redact

    def item(self, item: Item) -> Item:
        """Redact the payload, headers, result and errors of an item."""
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

    def text(self, text: _Text) -> _Text:
        """Redact a text."""
        if not text or self._redact is False:
            return text
        shown = self._safely("text", text)
        return shown if isinstance(shown, str) else mask_value("text", text)

    def _payload(self, payload: bytes, content_type: str) -> tuple[bytes, str]:
        if not is_json(content_type):
            return self._bytes(payload), content_type
        if isinstance(self._redact, Redactor) and not _may_hold_secrets(self._redact, payload):
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
            return encode_payload(mask_value("payload", value), content_type, _NO_LIMIT)

    def _bytes(self, payload: bytes) -> bytes:
        shown = self._safely("payload", payload)
        if isinstance(shown, str):
            return shown.encode(errors="replace")
        return shown if isinstance(shown, bytes) else mask_value("payload", payload).encode()

    def _headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        if not headers:
            return headers
        shown = self._safely("headers", headers)
        return shown if isinstance(shown, Mapping) else mask_value("headers", headers)

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
        """Redact a value. If the function raises, the value is masked completely."""
        assert self._redact is not False
        try:
            return self._redact(kind, value)
        except Exception as error:
            # Without the text of the error, which may contain the secret.
            _log.warning("redaction_failed", kind=kind, error_type=type(error).__name__)
            return mask_value(kind, value)


_Text = TypeVar("_Text", str, "str | None")


def _may_hold_secrets(redactor: Redactor, payload: bytes) -> bool:
    # An escaped letter can be part of a key, which the search would miss.
    return b"\\u" in payload or redactor.may_hold_secrets(payload.decode(errors="replace"))


def _changed(value: _T, **fields: Any) -> _T:
    different = {name: new for name, new in fields.items() if new is not getattr(value, name)}
    return _replace(value, **different) if different else value


def _each(values: tuple[_T, ...], show: Callable[[_T], _T]) -> tuple[_T, ...]:
    shown = tuple([show(value) for value in values])
    return values if all(new is old for new, old in zip(shown, values, strict=True)) else shown
