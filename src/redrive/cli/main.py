"""The command `redrive` and the table of its subcommands. Each is imported when it is used, so that help is fast."""

from __future__ import annotations

import sys

from redrive import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from redrive.cli.root import redrive as redrive

COMMANDS = {
    "queue": ("redrive.cli.command_groups:queue", "Queues and what is in them: create, list, push, watch, pause…"),
    "dead": ("redrive.cli.command_groups:dead", "What died, why, and how it comes back."),
    "capture": (
        "redrive.cli.command_groups:capture",
        "Calls that failed outside a queue: what was captured, what is exhausted, retry it.",
    ),
    "breaker": ("redrive.cli.commands.breaker:breaker", "Circuit breakers: what is open, open one, close one."),
    "operation": (
        "redrive.cli.commands.operation:operation",
        "Changes of many items: list, pause, resume, cancel.",
    ),
    "undo": ("redrive.cli.commands.operation:undo", "Take back a drop, a redrive, or a whole operation."),
    "work": ("redrive.cli.commands.work:work", "Run an app, a group of loops, or the workers of redrive.toml."),
    "config": ("redrive.cli.commands.config:config", "The file redrive.toml: is it right, and what does it say."),
    "serve": ("redrive.cli.commands.serve:serve", "Serve queues over HTTP."),
    "token": ("redrive.cli.commands.token:token", "Who may call a server, and do what."),
    "doctor": ("redrive.cli.commands.doctor:doctor", "See whether all is well, and what to do if not."),
    "audit": ("redrive.cli.commands.audit:audit", "Who changed what by hand."),
    "bench": ("redrive.cli.commands.bench:bench", "Measure how fast this store is, here and now."),
    "demo": ("redrive.cli.commands.demo:demo", "Make a store with trouble in it, to practise on."),
    "completion": (
        "redrive.cli.commands.shell_completion:completion",
        "Print the script that completes commands in your shell.",
    ),
}
"""Each subcommand with its location and its short help. A new one is a line here."""


def main() -> None:
    """Run the command line of this process. The exit codes are in `redrive.cli.error_output`."""
    if sys.argv[1:] == ["--version"]:  # before any slow import
        print(f"redrive {__version__}")
        return
    from redrive.cli.root import redrive

    redrive(prog_name="redrive")


def __getattr__(name: str) -> object:
    if name == "redrive":
        from redrive.cli.root import redrive

        return redrive
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
