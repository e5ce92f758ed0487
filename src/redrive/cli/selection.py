"""Selection of items in a command: id prefixes, and filter options for the conditions of `find`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.cli.common_options import command_line, pairs
from redrive.errors import InvalidDuration, InvalidName, ItemNotFound, NotFound, OperationNotFound
from redrive.model.declaration import options_of, texts_of
from redrive.model.duration import parse_duration
from redrive.model.ids import HEXADECIMAL, ID_DIGITS
from redrive.model.options import Conditions, SinceInput
from redrive.model.text import suggest

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

SHORTEST = 4
"""The smallest number of digits of an id that is accepted: shorter prefixes match too many items."""
_SHOWN = 10


class Ambiguous(InvalidName):
    """A prefix that matches several ids."""

    def __init__(self, what: str, prefix: str, candidates: Sequence[str]) -> None:
        super().__init__(f"{what} id", prefix, "is the beginning of several")
        self.candidates = tuple(candidates)
        listed = "\n".join(f"  {each}" for each in candidates)
        self.args = (
            f"'{prefix}' is the beginning of several {what} ids; type more digits of the one you mean:\n{listed}",
        )


class GroupNotFound(NotFound):
    """No group of dead letters has that fingerprint."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(
            f"no dead letters are in the group '{fingerprint}'\n  {command_line('dead groups')} lists all groups"
        )


def item_id(broker: Broker, typed: str, queue: str | None = None) -> str:
    """Return the id of the one item with this prefix. A complete id is returned unchanged: it may predate a move.

    queue: search only this queue.
    """
    prefix = _checked("item", typed)
    if len(prefix) == ID_DIGITS:
        return prefix
    where: dict[str, Any] = {"id_prefix": prefix} if queue is None else {"id_prefix": prefix, "queue": queue}
    found = broker.find(status="any", limit=_SHOWN, **where).items
    if not found:
        raise ItemNotFound(prefix)
    if len(found) > 1:
        many = [f"{item.id[: max(12, len(prefix) + 4)]}  {item.status} in {item.queue}" for item in found]
        raise Ambiguous("item", prefix, many)
    return found[0].id


def item_ids(broker: Broker, typed: Iterable[str]) -> list[str]:
    """Return the ids of several items, each once."""
    return list(dict.fromkeys(item_id(broker, each) for each in typed))


def operation_id(broker: Broker, typed: str) -> str:
    """Return the id of the one operation with this prefix."""
    prefix = _checked("operation", typed)
    if len(prefix) == ID_DIGITS:
        return prefix
    found = [each for each in broker.list_operations(limit=1000) if each.id.startswith(prefix)]
    if not found:
        raise OperationNotFound(prefix)
    if len(found) > 1:
        raise Ambiguous("operation", prefix, [f"{each.id}  {each.verb}" for each in found[:_SHOWN]])
    return found[0].id


def fingerprint(broker: Broker, typed: str) -> str:
    """Return the fingerprint of the one group with this prefix."""
    found = [each for each in broker.groups(limit=1000) if each.fingerprint.startswith(typed)]
    exact = [each for each in found if each.fingerprint == typed]
    if not found:
        raise GroupNotFound(typed)
    if len(found) > 1 and not exact:
        raise Ambiguous("group", typed, [f"{each.fingerprint}  {each.title}" for each in found[:_SHOWN]])
    return (exact or found)[0].fingerprint


def _checked(what: str, typed: str) -> str:
    prefix = typed.strip().lower()
    if not prefix or not set(prefix) <= HEXADECIMAL or len(prefix) > ID_DIGITS:
        raise InvalidName(f"{what} id", typed, "is not the beginning of an id: digits 0-9 and a-f, as in 7f3a90c1")
    if len(prefix) < SHORTEST:
        raise InvalidName(f"{what} id", typed, f"is too short: type {SHORTEST} digits at least")
    return prefix


_F = TypeVar("_F", bound=Callable[..., Any])
_HEADER = "headers."
_CONDITIONS = options_of(Conditions)

OPTIONS: dict[str, tuple[str, str, str]] = {
    "queue": ("--queue", "QUEUE", ""),
    "fingerprint": ("--group", "GROUP", " `redrive dead groups` lists them; the first digits are enough."),
    "error_type": ("--error-type", "TYPE", ""),
    "since": ("--since", "TIME", " For example 2h, or a date and time."),
    "until": ("--until", "TIME", ""),
    "words": ("--words", "WORDS", ""),
}
"""Conditions that have their own option: its name, its metavar, and a hint that is added to the help text."""


def condition_options(*leave_out: str) -> Callable[[_F], _F]:
    """Add the options that select items. The command gets them from the function `conditions`."""

    def add(function: _F) -> _F:
        decorated: Any = click.option(
            "--where",
            "where",
            multiple=True,
            metavar="NAME=VALUE",
            expose_value=False,
            callback=_keep_where,
            help="Any other condition; can be repeated: error_class=network, reason=expired, min_redrives=1, "
            "headers.tenant=blue, id_prefix=7f3a… Names: " + ", ".join(_CONDITIONS) + ".",
        )(function)
        for name, (option, metavar, hint) in reversed(OPTIONS.items()):
            if name in leave_out:
                continue
            names = (option, "-q") if name == "queue" else (option,)
            decorated = click.option(
                *names,
                f"where_{name}",
                metavar=metavar,
                help=texts_of(Conditions)[name] + hint,
                expose_value=False,
                callback=_keep,
            )(decorated)
        result: _F = decorated
        return result

    return add


_META = "redrive.cli.selection"


def _keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        name = str(parameter.name).removeprefix("where_")
        _set(context.meta.setdefault(_META, {}), name, _value(name, value))


def _keep_where(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    kept = context.meta.setdefault(_META, {})
    for name, value in pairs(values, "error_class=network"):
        if name.startswith(_HEADER):
            _set(kept.setdefault("headers", {}), name.removeprefix(_HEADER), value)
        elif name in _CONDITIONS:
            _set(kept, name, _value(name, value))
        else:
            meant = suggest(name, _CONDITIONS, {"group": "fingerprint", "type": "error_type", "state": "status"})
            raise click.BadParameter(f"{name!r} is not a condition{meant}; there are {', '.join(_CONDITIONS)}")


def _set(kept: dict[str, Any], name: str, value: Any) -> None:
    """Keep a condition. Raises if it was given before with another value."""
    if kept.setdefault(name, value) != value:
        raise click.BadParameter(f"{name} was given twice, with two values; omit one")


def _value(name: str, text: str) -> Any:
    if _CONDITIONS[name].type is int:
        if not text.isdecimal():
            raise click.BadParameter(f"{name} is a number, not {text!r}")
        return int(text)
    if _CONDITIONS[name].type is bool:
        if text not in ("true", "false"):
            raise click.BadParameter(f"{name} is true or false, not {text!r}")
        return text == "true"
    if name == "ids":
        return [each for each in text.replace(",", " ").split() if each]
    if _CONDITIONS[name].type == SinceInput:
        return moment(text)
    return text


def moment(text: str) -> str | datetime:
    """Return a time as people type it: how long ago, or a date and time, by default in UTC."""
    try:
        parse_duration(text)
    except InvalidDuration:
        pass
    else:
        return text
    return instant(text, "neither how long ago, as in 30m, 2h or 7d, nor")


def parse_instant(context: click.Context, parameter: click.Parameter, text: str | None) -> datetime | None:
    """Return the date and time of an option, or None."""
    return None if text is None else instant(text)


def instant(text: str, what_not: str = "not") -> datetime:
    """Return a date and time, by default in UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is {what_not} a time, as in 2026-07-01T03:00") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def conditions(broker: Broker, **own: Any) -> dict[str, Any]:
    """Return the given conditions as arguments of `find`, `count` and operations, with those of the command itself."""
    kept = dict(click.get_current_context().meta.get(_META, {}))
    for name, value in own.items():
        if kept.setdefault(name, value) != value:
            raise click.UsageError(f"--where {name}={kept[name]} contradicts the command, for which it is {value}")
    if "fingerprint" in kept:
        kept["fingerprint"] = fingerprint(broker, kept["fingerprint"])
    if "ids" in kept:
        kept["ids"] = item_ids(broker, kept["ids"])
    if "operation" in kept:
        kept["operation"] = operation_id(broker, kept["operation"])
    return kept


def any_given() -> bool:
    """Return whether any condition was given."""
    return bool(click.get_current_context().meta.get(_META))
