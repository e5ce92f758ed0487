"""The command `redrive` and the table of its subcommands. Each is imported when it is used, so that help is fast."""

from __future__ import annotations

import sys

from redrive import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from redrive.cli.root import redrive as redrive

COMMANDS = {
    "queue": ("redrive.cli.command_groups:queue", "Queues and their items: create, list, push, watch, pause…"),
    "dead": ("redrive.cli.command_groups:dead", "Dead letters: see why items failed, and redrive them."),
    "capture": (
        "redrive.cli.command_groups:capture",
        "Calls that failed outside a queue and were captured: list, retry, archive…",
    ),
    "breaker": ("redrive.cli.commands.breaker:breaker", "Circuit breakers: list, open, close."),
    "operation": (
        "redrive.cli.commands.operation:operation",
        "Bulk operations on items: list, pause, resume, cancel.",
    ),
    "undo": ("redrive.cli.commands.operation:undo", "Undo a drop, a redrive, or a whole operation."),
    "work": ("redrive.cli.commands.work:work", "Run an app, a group of loops, or the workers of redrive.toml."),
    "config": ("redrive.cli.commands.config:config", "The file redrive.toml: check, show, apply, trust."),
    "serve": ("redrive.cli.commands.serve:serve", "Serve queues over HTTP."),
    "token": ("redrive.cli.commands.token:token", "Access tokens of a server: create, list, revoke."),
    "doctor": ("redrive.cli.commands.doctor:doctor", "Check the store and its workers, and suggest remedies."),
    "audit": ("redrive.cli.commands.audit:audit", "Show who changed items, queues and tokens."),
    "bench": ("redrive.cli.commands.bench:bench", "Measure the speed of this store."),
    "demo": ("redrive.cli.commands.demo:demo", "Create an example store with dead letters, to practise on."),
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
