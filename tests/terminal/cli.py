"""The command line in this process: what it prints, and what it exits with."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from redrive import Broker, connect
from redrive.cli.main import redrive


def run_here(folder: Path, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Result:
    """Run a command in this process as if it were typed in a folder. One of its own takes twenty times as long."""
    if environment is None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    with contextlib.chdir(folder):
        result = CliRunner().invoke(
            redrive, [*words], env={**dict.fromkeys(os.environ), **environment}, prog_name="redrive"
        )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


class Cli:
    """Commands on one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._runner = CliRunner()

    def __call__(self, *arguments: str, input: str | bytes | None = None, exits: int = 0) -> Result:
        """Run a command. It must end with that exit code, and never by an exception that nobody caught."""
        result = self._runner.invoke(
            redrive, [*arguments], input=input, env={"REDRIVE_URL": self.url}, prog_name="redrive"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == exits, result.output
        return result

    def json(self, *arguments: str, input: str | bytes | None = None, exits: int = 0) -> Any:
        """What a command prints with `-o json`."""
        return json.loads(self(*arguments, "-o", "json", input=input, exits=exits).stdout)

    def error(self, *arguments: str, exits: int) -> Any:
        """The error that a command prints with `-o json`."""
        result = self(*arguments, "-o", "json", exits=exits)
        assert result.stdout == ""
        return json.loads(result.stderr)

    def broker(self) -> Broker:
        """The store itself, to be closed."""
        return connect(self.url, maintenance=False, actor="test")


def kill(broker: Broker, queue: str, values: list[Any], error: str | BaseException = "broken") -> list[str]:
    """Put these and let them die. Their ids as they were put."""
    ids: list[str] = [receipt.id for receipt in broker.put_many(queue, values)]
    for lease in broker.lease(queue, len(values), worker="worker-1"):
        broker.fail(lease, error, final=True)
    return ids
