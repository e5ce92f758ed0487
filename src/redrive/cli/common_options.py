"""Options that every command has, for the store and the output format; and options that several commands share."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import click
from click.core import ParameterSource

_F = TypeVar("_F", bound=Callable[..., Any])
_META = "redrive.cli."
_PREFIX = "of_every_command_"
FORMATS = ("table", "json")


def get_option(name: str) -> Any:
    """Return the value of one of these options, given before or after the command. None if it was not given."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_META + name)


def as_json() -> bool:
    """Return whether the output is JSON, for a program."""
    return bool(get_option("output") == "json")


def command_line(command: str) -> str:
    """Return a command that can be typed next, with the options of this one that select the store."""
    from redrive.model.url import redact_url

    url = get_option("url")
    named = [("url", url and redact_url(url)), *((name, get_option(name)) for name in ("namespace", "config"))]
    words = [f"--{name} {shlex.quote(value)}" for name, value in named if value is not None]
    return " ".join(["redrive", command, *words])


def was_given(parameter: str) -> bool:
    """Return whether an option of this command was typed, and does not only have its default."""
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def set_option(name: str, value: str) -> None:
    """Set one of these options, if an argument of the command means the same."""
    click.get_current_context().meta[_META + name] = value


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    name = _META + str(parameter.name).removeprefix(_PREFIX)
    if parameter.multiple:
        context.meta[name] = (*context.meta.get(name, ()), *value)
    elif value is not None:  # an option after the command is parsed later, and wins
        context.meta[name] = value


def _options(hidden: bool) -> list[click.Option]:
    def option(*names: str, **settings: Any) -> click.Option:
        # A prefix for the name, because a command may have an argument called `config`.
        names = (*names, _PREFIX + names[-1].strip("-").replace("-", "_"))
        return click.Option(names, expose_value=False, hidden=hidden, callback=_remember, is_eager=True, **settings)

    return [
        option(
            "--url", metavar="URL", help="The store or server: sqlite:///jobs.db, postgresql://…, redis://…, http://…"
        ),
        option("--token", metavar="TOKEN", help="Access token of a server; better in the variable REDRIVE_TOKEN."),
        option("--namespace", metavar="NAME", help="Namespace of the queues; 'default' unless configured."),
        option(
            "--config", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="The redrive.toml to use."
        ),
        option(
            "--allow-variable",
            metavar="NAME",
            multiple=True,
            help="A variable that addresses in redrive.toml may use in addition to REDRIVE_…; can be repeated.",
        ),
        option("-o", "--output", type=click.Choice(FORMATS), help="Output format: table (default) or json."),
    ]


def common_options(function: _F) -> _F:
    """Add the options to a group or command, as part of its help."""
    for option in reversed(_options(hidden=False)):
        _prepend(function, option)
    return function


def _prepend(function: Any, option: click.Option) -> None:
    if not hasattr(function, "__click_params__"):
        function.__click_params__ = []
    function.__click_params__.append(option)


class StoreCommand(click.Command):
    """A command on a store. It accepts the options of every command too, but does not repeat them in its help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        taken = {name for parameter in self.params for name in parameter.opts}
        self.params.extend(option for option in _options(hidden=True) if not taken & set(option.opts))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write where the options that are not repeated are documented."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("--url, --token, --namespace, --config, --allow-variable and -o json: see redrive --help.")


def command(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], StoreCommand]:
    """Return the decorator of a command on a store, as `click.command` does."""
    return click.command(name, cls=StoreCommand, **settings)


def seconds_option(name: str, default: str, text: str) -> Callable[[_F], _F]:
    """Add an option that takes a duration. The command gets seconds."""
    return click.option(name, callback=_seconds, default=default, show_default=True, metavar="TIME", help=text)


def _seconds(context: click.Context, parameter: click.Parameter, value: str) -> float:
    from redrive.errors import InvalidInput
    from redrive.model.duration import SECOND, parse_duration

    try:
        return parse_duration(value, "duration") / SECOND
    except InvalidInput as error:
        raise click.BadParameter(str(error)) from error


def _log_json(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    from redrive.telemetry.events import JSON_VARIABLE

    if asked:
        os.environ[JSON_VARIABLE] = "1"  # for this process, and those that it starts


log_json_option = click.option(
    "--log-json",
    is_flag=True,
    expose_value=False,
    callback=_log_json,
    help="Write the log as JSON, one object on each line; same as the variable REDRIVE_LOG_JSON=1.",
)


def pairs(values: Iterable[str], example: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield the names and values that were given as NAME=VALUE."""
    for each in values:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE{f', as in {example}' if example else ''}")
        yield name, value
