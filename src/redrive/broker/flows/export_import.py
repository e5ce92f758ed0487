"""Export and import of items as lines of JSON, and validation of imported items. The format:
docs/reference/export-format.md."""

from __future__ import annotations

import itertools
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker.flow import CommitCalls, Flow, raise_if_refused, run_query
from redrive.broker.flows.deliveries import check_overrides
from redrive.broker.flows.inspection import build_filter, check_cursor
from redrive.broker.flows.registrations import EXPORTED, disclose
from redrive.broker.redaction import queues_of, redaction_for
from redrive.broker.validation import check_integer
from redrive.contract.maintenance_calls import Import
from redrive.contract.queries import FindItems, Page
from redrive.contract.replies import check_reply_address
from redrive.errors import InvalidInput, RedriveError, short_repr
from redrive.model.caller_input import checking_input, flag
from redrive.model.death import Cause
from redrive.model.failure import MAX_TITLE_CHARS, normalize_failure
from redrive.model.filter import Filter, Order
from redrive.model.holder import check_holder_names
from redrive.model.ids import parse_id
from redrive.model.item import Counters, Death, HistoryEntry, Item, Result
from redrive.model.limits import (
    MAX_BATCH,
    MAX_COUNT,
    MAX_STORABLE_BYTES,
    MIB,
    check_address,
    check_instant,
    check_label,
    check_name,
    check_priority,
)
from redrive.model.masked_item import is_masked
from redrive.model.payload import check_headers, is_json
from redrive.model.text import MAX_TEXT_BYTES, MAX_TYPE_BYTES, clean_text

if TYPE_CHECKING:
    from redrive.broker.core import Core

MAX_ENTRIES = 10_000
"""Maximum number of deaths, of earlier ids, and of history entries of an imported item; 50 history entries are kept."""

_INSTANTS = (
    "put_at",
    "ready_at",
    "expire_deadline",
    "lease_deadline",
    "first_leased_at",
    "ended_at",
    "moving_since",
)
_LABELS = ("worker", "idempotency_key", "content_type")
_replace = msgspec.structs.replace


def checked_item(item: Item) -> Item:
    """Return the item, checked and normalized so that every store can keep it, or raise."""
    for what in ("earlier_ids", "history", "deaths"):
        check_integer(f"the number of {what}", len(getattr(item, what)), 0, MAX_ENTRIES)
    for id in (item.id, item.source_id, item.origin_id, *item.earlier_ids):
        if id is not None:
            parse_id(id)
    check_name("queue", item.queue)
    if item.origin_queue is not None:
        check_name("queue", item.origin_queue)
    if item.home_store is not None:
        check_name("store", item.home_store)
    if item.moving_to is not None:
        check_address("queue", item.moving_to)
    check_priority(item.priority)
    check_reply_address(item.headers)
    for name in _INSTANTS:
        if getattr(item, name) is not None:
            check_instant(name, getattr(item, name))
    for name in _LABELS:
        if getattr(item, name) is not None:
            check_label(name, getattr(item, name))
    check_holder_names(item.held_by)
    check_holder_names(item.lasting_holders)
    _check_counters(item.counters)
    check_overrides(item.overrides)
    check_integer("history_omitted", item.history_omitted, 0, MAX_COUNT)
    _check_bytes(item)
    if item.result is not None:
        _check_bytes(item.result)
        check_label("content_type", item.result.content_type)
    return _replace(
        item,
        headers=check_headers(item.headers),
        history=tuple(map(_checked_entry, item.history)),
        deaths=tuple(map(_checked_death, item.deaths)),
    )


def _check_bytes(value: Item | Result) -> None:
    if len(value.payload) > MAX_STORABLE_BYTES:
        raise InvalidInput(f"its payload has {len(value.payload):,} bytes and the limit is {MAX_STORABLE_BYTES:,}")


def _checked_entry(entry: HistoryEntry) -> HistoryEntry:
    check_instant("history.at", entry.at)
    check_integer("history.delivery", entry.delivery, 0, MAX_COUNT)
    check_name("queue", entry.queue)
    for name in ("worker", "actor", "operation"):
        if getattr(entry, name) is not None:
            check_label(name, getattr(entry, name))
    if entry.to is not None:
        check_address("queue", entry.to)
    failure = None if entry.failure is None else normalize_failure(entry.failure)
    note = None if entry.note is None else clean_text(entry.note, MAX_TEXT_BYTES)
    return _replace(entry, failure=failure, note=note)


def _checked_death(death: Death) -> Death:
    check_instant("deaths.at", death.at)
    if death.first_leased_at is not None:
        check_instant("deaths.first_leased_at", death.first_leased_at)
    parse_id(death.id)
    check_name("queue", death.queue)
    check_name("namespace", death.namespace)
    check_name("store", death.store)
    _check_counters(death.counters)
    return _replace(death, cause=_checked_cause(death.cause))


def _checked_cause(cause: Cause) -> Cause:
    return _replace(
        cause,
        fingerprint=clean_text(cause.fingerprint, MAX_TYPE_BYTES),
        title=clean_text(cause.title, 4 * MAX_TITLE_CHARS),
        error_type=clean_text(cause.error_type, MAX_TYPE_BYTES),
    )


def _check_counters(counters: Counters) -> None:
    for name in counters.__struct_fields__:
        check_integer(name, getattr(counters, name), 0, MAX_COUNT)


FORMAT = 1
"""The version of the format. A reader refuses lines of any other version."""
PAGE = 100
"""Number of items in one page of an export, which is in memory at a time."""
BATCH_BYTES = 8 * MIB
"""Size of the lines after which an import commits at the latest."""

_END: Any = object()
_encode = msgspec.json.Encoder().encode
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_item_of = msgspec.json.Decoder(Item).decode


class ImportResult(msgspec.Struct, frozen=True):
    """The result of an import."""

    imported: int = 0
    ignored: int = 0
    """Number of items that were ignored because they were imported before."""


def _with_archive(where: Filter) -> Filter:
    """Return the filter; one for any status without a condition on the archive also takes archived items that were not
    dropped."""
    if where.status is not None or where.takes_archived:
        return where
    return _replace(where, archived=True, dropped=False)


class Exporter:
    """The position of an export."""

    def __init__(
        self, core: Core, where: Filter | None, conditions: Mapping[str, Any], cursor: str | None, redacted: bool
    ) -> None:
        self._core = core
        self._where = _with_archive(build_filter(where, conditions, core.clock.now()))
        check_cursor(cursor)
        self._cursor = cursor
        self._redacted = flag("redacted", redacted)
        self.finished = False

    def begin(self) -> Flow[None]:
        """Write who exports secrets to the audit. To be run before the first page is read."""
        if not self._redacted:
            yield from disclose(self._core, EXPORTED, self._where.queue, "items")

    def next(self) -> Flow[list[bytes]]:
        """Return the lines of the next page: its items, and the cursor to resume at."""
        page: Page = yield from run_query(FindItems(self._where, Order.OLDEST, PAGE, self._cursor))
        self._cursor, self.finished = page.cursor, page.cursor is None
        shown = (yield from self._shown(page.items)) if self._redacted else page.items
        lines = [self._line(*each) for each in zip(page.items, shown, strict=True)]
        if page.cursor is not None:
            lines.append(_encode({"format": FORMAT, "cursor": page.cursor}) + b"\n")
        return lines

    def _shown(self, items: Sequence[Item]) -> Flow[list[Item]]:
        redaction = yield from redaction_for(self._core, (queue for item in items for queue in queues_of(item)))
        return [redaction.item(item) for item in items]

    def _line(self, item: Item, shown: Item) -> bytes:
        changed = any(getattr(shown, name) is not getattr(item, name) for name in ("payload", "headers", "result"))
        return encode_line(shown, redacted=changed or is_masked(item))


def encode_line(item: Item, *, redacted: bool = False) -> bytes:
    """Encode one item as a line."""
    fields = msgspec.to_builtins(item, builtin_types=(bytes,))
    del fields["payload"]
    if fields["result"] is not None:
        fields["result"]["payload"] = b64encode(fields["result"]["payload"]).decode()
    line = {"format": FORMAT, **{name: value for name, value in fields.items() if not _is_left_out(name, value)}}
    if redacted:
        line["redacted"] = True
    return _encode({**line, **_payload_fields(item)}) + b"\n"


def _is_left_out(name: str, value: Any) -> bool:
    return value is None or (name not in ("headers", "counters") and value in ([], (), {}))


def import_items(
    core: Core,
    lines: Iterable[bytes | str],
    queue: str | None,
    actor: str | None,
    progress: Callable[[ImportResult], object] | None,
) -> Flow[ImportResult]:
    """Read lines and import their items, batch by batch. Items that were imported before are ignored."""
    name = None if queue is None else check_name("queue", queue)
    who = core.actor(actor)
    with checking_input("lines"):
        given = iter(lines) if isinstance(lines, Iterable) and not isinstance(lines, bytes | bytearray | str) else None
    if given is None:
        raise InvalidInput("import_items takes lines, such as an open file or the lines of an export, not one text")
    if progress is not None and not callable(progress):
        raise InvalidInput(
            f"progress is a function that is called with what was imported, not {short_repr(progress, 60)}"
        )
    done = ImportResult()
    batch: dict[str, list[Item]] = {}
    count = size = 0
    for number in itertools.count(1):
        try:
            with checking_input(f"line {number}"):
                line = next(given, _END)
            if line is _END:
                break
            item = decode_line(number, line)
        except InvalidInput as error:
            so_far = f"{done.imported:,} were imported before it and {done.ignored:,} ignored"
            raise InvalidInput(f"{error}; {so_far}. Fix it, and import all lines again") from error.__cause__
        if item is None:
            continue
        batch.setdefault(name or item.queue, []).append(item)
        count, size = count + 1, size + len(line)
        if count == MAX_BATCH or size >= BATCH_BYTES:
            done = yield from _import(batch, who, done, progress)
            batch, count, size = {}, 0, 0
    if batch:
        done = yield from _import(batch, who, done, progress)
    return done


def _import(
    batch: Mapping[str, list[Item]], actor: str, done: ImportResult, progress: Callable[[ImportResult], object] | None
) -> Flow[ImportResult]:
    results = yield CommitCalls([Import(queue, tuple(items), actor) for queue, items in batch.items()])
    receipts = [receipt for result in results for receipt in raise_if_refused(result)]
    ignored = sum(receipt.duplicate for receipt in receipts)
    done = ImportResult(done.imported + len(receipts) - ignored, done.ignored + ignored)
    if progress is not None:
        progress(done)
    return done


def _payload_fields(item: Item) -> dict[str, Any]:
    """Return the payload field: JSON unchanged if it is valid and on one line; else text; else base64."""
    payload = bytes(item.payload)
    if is_json(item.content_type) and b"\n" not in payload and b"\r" not in payload and _is_readable(payload):
        return {"payload": msgspec.Raw(payload)}
    try:
        return {"payload_text": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload).decode()}


def _is_readable(payload: bytes) -> bool:
    try:
        msgspec.json.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def decode_line(number: int, line: bytes | str) -> Item | None:
    """Decode and check the item of a line. Return None for an empty line and a line with a cursor."""
    if type(line) not in (bytes, str):
        raise InvalidInput(f"line {number} is {type(line).__name__}; lines are bytes or text")
    if not line.strip():
        return None
    try:
        fields = _fields_of(line)
        version = msgspec.json.decode(fields.pop("format", b"null"))
        if version != FORMAT:
            raise InvalidInput(
                f"has format {short_repr(version, 20)}, and this Redrive reads exports of format {FORMAT}"
            )
        if "cursor" in fields:
            return None
        if bytes(fields.pop("redacted", b"false")) == b"true":
            raise InvalidInput("its secrets were hidden by the export; export again with redacted=False")
        if bytes(fields.get("held_by", b"")).startswith(b'"'):  # lines of older releases, which had one holder
            fields["held_by"] = msgspec.Raw(b"[%b]" % bytes(fields["held_by"]))
        return checked_item(_item_of(_encode({**fields, "payload": b64encode(_payload_of(fields)).decode()})))
    except (msgspec.MsgspecError, ValueError, UnicodeError, RecursionError, RedriveError) as error:
        raise InvalidInput(f"line {number}: {error}") from None


def _payload_of(fields: dict[str, msgspec.Raw]) -> bytes:
    given = [name for name in ("payload", "payload_text", "payload_base64") if name in fields]
    if len(given) != 1:
        raise InvalidInput("needs one of payload, payload_text and payload_base64")
    raw = bytes(fields.pop(given[0]))
    if given[0] == "payload":
        return raw
    text = msgspec.json.decode(raw, type=str)
    return text.encode() if given[0] == "payload_text" else b64decode(text, validate=True)
