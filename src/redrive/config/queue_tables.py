"""The `[queue.NAME]` tables of a file: every setting is checked, also against the others; keys of external queues."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from redrive.config.config import ExternalOptions
from redrive.config.line_numbers import KeyPath
from redrive.config.table_reader import Table, described, problem_of
from redrive.config.worker_tables import program_from
from redrive.errors import InvalidDuration, InvalidInput, InvalidName, InvalidSetting
from redrive.model.duration import MINUTE
from redrive.model.limits import split_address
from redrive.model.queue import WITH_ITEM, QueueSettings
from redrive.model.queue_options import parse_settings

EXTERNAL_KEYS = ("list", "claim", "poll", "key", "version", "shell", "timeout", "kill_grace", "env", "cwd")
"""The keys of external queues only, in addition to `type` and the settings of every queue."""
_LEFT_WITH: Mapping[str, Mapping[str, Any]] = {"retry": {"attempts": 1}, "breakers": {}}
"""Settings that are tables, whose keys are checked one by one; with the values that replace keys that are required."""
_INDEX = re.compile(r"\[(\d+)\]\.?")
_NO_RETRY = (
    "is not for an external queue: an object that failed is retried when its dead letter is redriven or dropped, or "
    "when its version changes. Omit retry; a command that exits with 75 is run again automatically"
)

_NO_ITEM_KEYS = (
    f'is not "{WITH_ITEM}" for an external queue: an object that is done would run again at every listing. Write how '
    f"long it is listed after that, as in 7d"
)


def read_common_settings(top: Table) -> dict[str, Any]:
    """Return the settings that apply to every queue without its own: `[breakers]`. Empty if they are invalid."""
    common = {"breakers": top.values["breakers"]} if "breakers" in top.values else {}
    try:
        parse_settings(common)
        return common
    except InvalidInput:
        _check(top, common)
        return {}


def read_queue(
    table: Table, folder: str, hidden: Iterable[str], common: Mapping[str, Any]
) -> tuple[dict[str, Any], ExternalOptions | None]:
    """Return the settings of a table of the file, unparsed, and the options of an external queue.

    `common`: settings that apply unless the table has its own.
    """
    kind = table.values.get("type")
    if kind is not None and kind != "external":
        table.add_problem("type", f'is "external", or omitted, not {described(kind)}')
    own = {"type", *EXTERNAL_KEYS} if kind == "external" else {"type"}
    settings = {**common, **{key: value for key, value in table.values.items() if key not in own}}
    external = None
    if kind == "external":
        external = _read_external(table, folder, hidden)
        if "retry" in settings:
            table.add_problem("retry", _NO_RETRY)
            del settings["retry"]
        if settings.get("idempotency_timeout") == WITH_ITEM:
            table.add_problem("idempotency_timeout", _NO_ITEM_KEYS)
            del settings["idempotency_timeout"]
    else:
        for key in [key for key in settings if key in EXTERNAL_KEYS]:
            table.add_problem(key, 'is for external queues only; say type = "external" if this is one')
            del settings[key]
    _check(table, settings)
    return settings, external


def _read_external(table: Table, folder: str, hidden: Iterable[str]) -> ExternalOptions | None:
    take = program_from(table, "claim", folder, hidden, MINUTE) if "claim" in table.values else None
    listing = program_from(table, "list", folder, hidden, MINUTE)
    poll = table.duration("poll", MINUTE)
    key = table.text("key") or "id"
    version = table.text("version")
    if listing is None or poll is None:
        return None
    return ExternalOptions(listing, take, poll, key, version)


def _check(table: Table, settings: Mapping[str, Any]) -> None:
    """Report all problems: after each one its key is removed, and the other settings are checked again."""
    left = dict(settings)
    while True:
        try:
            parse_settings(left)
            return
        except InvalidInput as error:
            key, problem = problem_in(error, left)
            path: KeyPath = (*table.path, *key)
            if path in table.problems:
                return
            table.problems.add(path, problem)
            if not key or not _leave_out(left, key):
                return


def _leave_out(settings: dict[str, Any], key: KeyPath) -> bool:
    """Remove an invalid key. Return false if there is none to remove, because the problem is a missing key."""
    first = str(key[0])
    part = settings.get(first)
    if first in _LEFT_WITH and len(key) > 1 and isinstance(part, dict) and key[1] in part:
        rest = {name: value for name, value in part.items() if name != key[1]}
        settings[first] = {**_LEFT_WITH[first], **rest}
        return True
    return settings.pop(first, None) is not None


def check_dead_queues(tables: Mapping[str, Table], queues: Mapping[str, Mapping[str, Any]], known: set[str]) -> None:
    """Check the rules about dead queues, as far as the file alone shows. `known`: the stores that it names."""
    wanted = {name: _settings(values) for name, values in queues.items()}
    for name, settings in wanted.items():
        for address in settings.dead_queues():
            to, store = split_address(address)
            if store is not None and store not in known:
                tables[name].add_problem("dead_queue", f"{address!r} is in a store that [stores] does not name")
            elif store is None and to == name:
                tables[name].add_problem("dead_queue", "cannot reference itself")
            elif store is None and to in wanted and wanted[to].dead_queue is not None:
                tables[name].add_problem("dead_queue", f"'{to}' cannot have its own dead_queue")


def _settings(values: Mapping[str, Any]) -> QueueSettings:
    """Return only the settings of dead queues; the defaults if they are invalid, which is reported elsewhere."""
    try:
        return parse_settings({"dead_queue": values.get("dead_queue")})
    except InvalidInput:
        return QueueSettings()


def problem_in(error: InvalidInput, values: Mapping[str, Any]) -> tuple[KeyPath, str]:
    """Return the key among these values that an error of a setting is about, and its problem."""
    match error:
        case InvalidSetting(setting=setting, problem=problem):
            return path_in(setting, values), problem
        case InvalidDuration(what=what):
            return path_in(what, values), problem_of(error)
        case InvalidName(what=what, name=name, problem=problem):
            return path_in(what, values), f"{name!r:.80} {problem}"
    return (), str(error)


def path_in(setting: str, values: Any) -> KeyPath:
    """Split `retry.by_type.myapp.Busy` into keys: the longest existing key counts, as keys may have dots in them."""
    path: KeyPath = ()
    while setting:
        if index := _INDEX.match(setting):
            place = int(index[1])
            setting = setting[index.end() :]
            path += (place,)
            values = values[place] if isinstance(values, list) and place < len(values) else None
            continue
        keys = values if isinstance(values, Mapping) else {}
        found = [key for key in keys if setting == key or setting.startswith((f"{key}.", f"{key}["))]
        key = max(found, key=len, default=re.split(r"[.\[]", setting)[0])
        path += (key,)
        values = keys.get(key)
        setting = setting[len(key) :].removeprefix(".")
    return path
