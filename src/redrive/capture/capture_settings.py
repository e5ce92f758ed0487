"""Settings of a capture queue: from arguments, the environment, and what a config file applied to the store."""

# Without `from __future__ import annotations`: `declaration` reads types, not texts.
import os
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from redrive.broker.flow import Flow
from redrive.broker.flows.registrations import CAPTURE_KIND, list_registrations
from redrive.capture.retry_policies import CapturePolicy
from redrive.errors import InvalidSetting
from redrive.model.declaration import options_of
from redrive.model.text import suggest

DEFAULT_QUEUE = "captured"
"""The default queue of a DeadLetterQueue, and the one of `[capture]` in a config file."""
PREFIX = "REDRIVE_DLQ_"
_YES_NO = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class CaptureOptions(TypedDict, total=False):
    """The settings of a capture queue. An unset one is read from its variable `REDRIVE_DLQ_…`, then from the config
    file that was applied to the store; else the default applies."""

    enabled: bool | None
    """Capture failed calls; false captures none, and `enqueue` raises `CaptureDisabledError`."""
    max_size: Annotated[int, Meta(ge=100, le=100_000)] | None
    """The highest number of tasks that are pending, in retry or exhausted; more are refused."""
    default_retry_policy: CapturePolicy | str | None
    """The retry policy of tasks that name none."""
    default_max_retries: Annotated[int, Meta(ge=0, le=10)] | None
    """The highest number of retries of tasks that name none."""
    retry_processor_enabled: bool | None
    """True if `start_dlq_processor` starts a retry processor."""
    retry_interval_seconds: Annotated[int, Meta(ge=10, le=3600)] | None
    """The longest time between two polls of a retry processor, as statistics report it; workers poll every second."""


class CaptureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a capture queue, with their defaults. `CaptureOptions` describes each."""

    enabled: bool = True
    max_size: int = 10_000
    default_retry_policy: str = CapturePolicy.EXPONENTIAL.value
    default_max_retries: int = 3
    retry_processor_enabled: bool = True
    retry_interval_seconds: int = 60


RANGES: Mapping[str, tuple[Any, Any]] = {
    name: (option.bounds.ge, option.bounds.le)
    for name, option in options_of(CaptureOptions).items()
    if option.type is int
}
"""The ranges of settings in files and variables. An argument of a program may be any whole number of 0 or more."""
NAMES = CaptureSettings.__struct_fields__


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()


def read_settings(queue: str, given: Mapping[str, Any]) -> Flow[CaptureSettings]:
    """Return the settings of a queue: from these arguments, the variables of this process, and a config file."""
    found = yield from list_registrations(CAPTURE_KIND, queue)
    return resolve_settings(given, found[0].value if found else None)


def resolve_settings(
    given: Mapping[str, Any], stored: bytes | None, environ: Mapping[str, str] | None = None
) -> CaptureSettings:
    """Return the settings, in this order of precedence: argument, variable, config file (`stored`), default.

    Raises InvalidSetting, which names the argument or variable and its range; also for a variable `REDRIVE_DLQ_…` that
    names no setting.
    """
    variables = os.environ if environ is None else environ
    for unknown in sorted(name for name in variables if name.startswith(PREFIX)):
        if (named := unknown.removeprefix(PREFIX).lower()) not in NAMES:
            meant = suggest(named, NAMES, {}) or f"; there are {', '.join(NAMES)}"
            raise InvalidSetting(unknown, f"names no setting of capture{meant}")
    values: dict[str, Any] = {} if stored is None else dict(msgspec.json.decode(stored))
    for name in NAMES:
        variable = variable_of(name)
        if name in given and given[name] is not None:
            values[name] = _argument(name, given[name])
        elif variable in variables:
            values[name] = parse_setting(name, variables[variable], variable)
    return CaptureSettings(**{name: value for name, value in values.items() if name in NAMES})


def parse_setting(name: str, value: object, where: str) -> Any:
    """Return a setting from a file or a variable, within its range. `where` names it in the error."""
    if name in RANGES:
        return _number(value, where, *RANGES[name])
    if name == "default_retry_policy":
        if value not in tuple(CapturePolicy):
            raise InvalidSetting(where, f"must be one of {', '.join(CapturePolicy)}, not {value!r:.40}")
        return str(value)
    read = value if isinstance(value, bool) else _YES_NO.get(str(value).strip().lower())
    if read is None:
        raise InvalidSetting(where, f"must be true or false, not {value!r:.40}")
    return read


def _argument(name: str, value: Any) -> Any:
    if name in RANGES:
        return _number(value, name, 0, None)
    wanted, words = (str, "the name of a policy") if name == "default_retry_policy" else (bool, "true or false")
    if not isinstance(value, wanted):
        raise InvalidSetting(name, f"must be {words}, not {value!r:.40}")
    return value


def _number(value: object, where: str, least: int, most: int | None) -> int:
    limits = f"a whole number of {least} or more" if most is None else f"a whole number from {least:,} to {most:,}"
    try:
        number = int(str(value))  # str: int() itself would accept 1.5 and True
    except ValueError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        raise InvalidSetting(where, f"must be {limits}, not {value!r:.40}")
    return number
