"""Settings of a queue as options of `queue create` and `queue update`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
import msgspec

from redrive.cli.common_options import pairs
from redrive.model.declaration import texts_of
from redrive.model.duration import DurationInput
from redrive.model.queue import QueueSettings
from redrive.model.queue_options import SETTINGS, QueueOptions
from redrive.model.retry_policy import RetryPolicy, format_retry_policy
from redrive.model.text import suggest

_F = TypeVar("_F", bound=Callable[..., Any])
UNSET = "unset"
"""The word for no value, as in --max-size unset."""

RETRIES: dict[str, tuple[str, str]] = {
    "attempts": ("N", "Attempts of a failing item, including the first. Not given: the first failure is final."),
    "cooldown": ("TIME", "Constant delay between attempts."),
    "backoff": ("TIME", "Delay after the first failure; it doubles after each further one."),
    "cap": ("TIME", "Longest delay between attempts."),
}
"""Keys of the setting `retry` that have their own option."""

_METAVARS = {"final_errors": "TYPE,…", "dead_queue": "QUEUE", "feed": "all|none|KIND,…", "max_payload_size": "BYTES"}
_NUMBERS = {"attempts", *(name for name, option in SETTINGS.items() if option.type is int)}
_LISTS = frozenset({"final_errors", "feed"})
_SCHEDULES = ("delay", "base", "cooldown", "delays", "function")
_META = "redrive.cli.setting_options"


def setting_options(function: _F) -> _F:
    """Add an option for each setting. The command gets them from `given_settings`."""
    decorated: Any = click.option(
        "--set",
        "set_",
        multiple=True,
        metavar="NAME=VALUE",
        expose_value=False,
        callback=_keep_set,
        help='Any setting, with its value as in TOML or JSON: \'retry={attempts=5, delays=["1s", "1m"]}\', '
        'retry.jitter=true, \'dead_queue={network="later", default="dead"}\', '
        "'breakers.network={share=0.5}'. The value `unset` resets it.",
    )(function)
    texts = texts_of(QueueOptions)
    named = [(name, metavar, texts[name], _keep) for name in SETTINGS if (metavar := metavar_of(name))]
    retries = [(name, metavar, text, _keep_retry) for name, (metavar, text) in RETRIES.items()]
    for name, metavar, text, keep in reversed(retries + named):
        option = f"--{name.replace('_', '-')}"
        decorated = click.option(option, metavar=metavar, help=text, expose_value=False, callback=keep)(decorated)
    result: _F = decorated
    return result


def metavar_of(name: str) -> str | None:
    """Return the metavar of the option of a setting. None: it is a table, and can be set only with --set."""
    kind, choices = SETTINGS[name].type, SETTINGS[name].choices
    if name in _METAVARS or choices is not None:
        return _METAVARS.get(name) or "|".join(choices or ())
    return "TIME" if kind == DurationInput else {int: "N", bool: "true|false"}.get(kind)


def _kept(context: click.Context) -> dict[str, Any]:
    kept: dict[str, Any] = context.meta.setdefault(_META, {})
    return kept


def _keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        _set(_kept(context), str(parameter.name), _value(str(parameter.name), value))


def _keep_retry(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        _set(_part(_kept(context), "retry"), str(parameter.name), _value(str(parameter.name), value))


def _keep_set(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    kept = _kept(context)
    for path, text in pairs(values, "max_size=1000"):
        name, _, key = path.partition(".")
        if name not in SETTINGS:
            meant = suggest(name, SETTINGS, {})
            raise click.BadParameter(f"{name!r} is not a setting{meant}; there are {', '.join(SETTINGS)}")
        if key:
            _set(_part(kept, name), key, written_value(text))
        else:
            _set(kept, name, written_value(text))


def _part(kept: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the given keys of a setting that is a table."""
    part: dict[str, Any] = kept.setdefault(name, {})
    if not isinstance(part, dict):
        raise click.BadParameter(f"{name} was given as a whole, and also a part of it; omit one")
    return part


def _set(kept: dict[str, Any], name: str, value: Any) -> None:
    """Keep a setting. Raises if it was given before with another value."""
    if kept.setdefault(name, value) != value:
        raise click.BadParameter(f"{name} was given twice, with two values; omit one")


def _value(name: str, text: str) -> Any:
    if text == UNSET:
        return None
    if name in _NUMBERS:
        if not text.replace("_", "").isdecimal():
            raise click.BadParameter(f"{text!r} is not a number")
        return int(text)
    if name in SETTINGS and SETTINGS[name].type is bool:
        if text not in ("true", "false"):
            raise click.BadParameter(f"{text!r} is neither true nor false")
        return text == "true"
    if name in _LISTS and text not in ("all", "none"):
        return [each.strip() for each in text.split(",") if each.strip()]
    return text


def written_value(text: str) -> Any:
    """Return a value parsed as TOML or JSON, else the text itself."""
    if text == UNSET:
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def given_settings(present: QueueSettings | None = None) -> dict[str, Any]:
    """Return the given settings as arguments of `create_queue`, or of `update_queue` if there are `present` ones."""
    kept = dict(_kept(click.get_current_context()))
    if isinstance(kept.get("retry"), Mapping):
        before = RetryPolicy() if present is None else present.retry
        kept["retry"] = _retry({} if before == RetryPolicy() else format_retry_policy(before), kept["retry"])
    if isinstance(kept.get("redact"), Mapping) and present is not None:
        kept["redact"] = {**msgspec.structs.asdict(present.redact), **kept["redact"]}
    if isinstance(kept.get("breakers"), Mapping):
        rules = {**({} if present is None else present.breakers), **kept["breakers"]}
        kept["breakers"] = {key: rule for key, rule in rules.items() if rule is not None}
    return kept


def _retry(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the retry policy with the changes: a new schedule replaces the one before."""
    changed = dict(changes)
    if "backoff" in changed:
        changed |= {"delay": "exponential", "base": changed.pop("backoff")}
    kept = {} if set(changed) & {"delay", "cooldown", "delays", "function"} else {
        key: value for key, value in before.items() if key in _SCHEDULES
    }  # fmt: skip
    if "base" in changed:
        kept.pop("cooldown", None)  # a cooldown is a base that does not grow
    rest = {key: value for key, value in before.items() if key not in _SCHEDULES}
    return {key: value for key, value in {**rest, **kept, **changed}.items() if value is not None}
