"""Items for plans, made of a few columns: a plan over many items needs no more of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from redrive.model.death import Cause
from redrive.model.operation_plan import PlanSubject
from redrive.model.worker_info import TASK_HEADER
from redrive.stores.relational.item_rows import ItemRow, find_all
from redrive.stores.relational.records import DEATHS, HISTORIES, decode_entry
from redrive.stores.relational.session import Executor
from redrive.stores.rules.damage import read_value

_CONTENTS = "SELECT item_no, headers, idempotency_key, home_store FROM redrive_item WHERE item_no IN carray(?)"


class _Headers(msgspec.Struct, gc=False):
    task: str | None = msgspec.field(name=TASK_HEADER, default=None)


class _Death(msgspec.Struct, gc=False):
    queue: str
    cause: Cause


_NO_HEADERS = _Headers()
_decode_headers = msgspec.json.Decoder(_Headers).decode
_decode_death = msgspec.json.Decoder(_Death).decode


def read_plan_subjects(
    executor: Executor, numbers: Sequence[int], names: Mapping[int, str], *, with_last: bool
) -> tuple[PlanSubject, ...]:
    """Return the plan subjects of these items, in order; `names` has the names of their queues by key."""
    listed = (executor.table(numbers),)
    contents, deaths = (executor.request(statement, listed) for statement in (_CONTENTS, DEATHS))
    entries = executor.request(HISTORIES, listed) if with_last else tuple
    rows = find_all(executor, numbers)
    read = {number: content for number, *content in contents()}
    died, last = dict(deaths()), dict(entries())  # of several, the last
    return tuple(
        [_plan_subject(rows[number], names, read[number], died.get(number), last.get(number)) for number in numbers]
    )


def _plan_subject(
    row: ItemRow, names: Mapping[int, str], content: Sequence[Any], death_data: bytes | None, entry: bytes | None
) -> PlanSubject:
    headers, key, home_store = content
    death = None if death_data is None else read_value(_decode_death, death_data, None, tuple)
    last = None if entry is None else read_value(decode_entry, entry, None, tuple)
    last = None if last is None else msgspec.structs.replace(last, failure=None, note=None)
    return PlanSubject(
        row.id,
        row.status,
        row.is_dead_letter,
        row.worker,
        last,
        names[row.queue],
        row.deliveries,
        row.was_dead,
        row.dropped_at is not None,
        None if death is None else death.queue,
        None if death is None else death.cause,
        home_store if row.lies_in_dead_queue else None,
        key,
        None if headers is None else read_value(_decode_headers, headers, _NO_HEADERS, tuple).task,
    )
