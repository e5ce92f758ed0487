"""The `[worker.NAME]` tables and commands of a file, parsed into programs that can be run."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from redrive.config.config import WorkerOptions
from redrive.config.table_reader import Table, described, expand_variables, find_syntax_error
from redrive.model.duration import SECOND
from redrive.worker.command_process import CommandSpec

WORKER_KEYS = (
    "queue",
    "run",
    "shell",
    "concurrency",
    "timeout",
    "kill_grace",
    "release_delay",
    "keep_result",
    "env",
    "cwd",
)
ELSEWHERE = {
    "cmd": "run",
    "command": "run",
    "dir": "cwd",
    "directory": "cwd",
    "environment": "env",
    "processes": "concurrency",
    "queues": "queue",
    "threads": "concurrency",
    "time_limit": "timeout",
    "workers": "concurrency",
}
"""Names of the keys in other programs, for suggestions."""
MAX_CONCURRENCY = 1_000
SHELL = "/bin/sh"


def read_worker(table: Table, folder: str, hidden: Iterable[str]) -> WorkerOptions | None:
    """Read a worker of the file; None if it is invalid."""
    table.check_keys(WORKER_KEYS, ELSEWHERE)
    queue = table.text("queue")
    if queue is not None:
        queue = table.named("queue", queue)
    elif "queue" not in table.values:
        table.add_problem("queue", "is missing: say which queue it works on")
    program = program_from(table, "run", folder, hidden)
    concurrency = table.count("concurrency", 1, 1, MAX_CONCURRENCY)
    delay = table.duration("release_delay", 30 * SECOND, positive=False)
    keep = table.duration("keep_result")
    if queue is None or program is None or delay is None:
        return None
    return WorkerOptions(queue, program, concurrency, delay, keep)


def program_from(
    table: Table, key: str, folder: str, hidden: Iterable[str], timeout: int | None = None
) -> CommandSpec | None:
    """Return the program under a key: a text that is split as a shell does, or a list of words."""
    value = table.values.get(key)
    shell = table.flag("shell")
    limit = table.duration("timeout", timeout)
    grace = table.duration("kill_grace", 5 * SECOND, positive=False)
    variables = _variables(table)
    where = str(Path(folder, table.text("cwd") or "."))
    words: tuple[str, ...] = ()
    if key not in table.values:
        table.add_problem(key, "is missing: say which command is run")
    elif shell and isinstance(value, str) and value.strip():
        words = (SHELL, "-c", value)
    elif shell:
        table.add_problem(key, f"is a text where shell = true, not {described(value)}")
    elif isinstance(value, str):
        words = _split(table, key, value)
    elif isinstance(value, list) and value and all(isinstance(word, str) and "\0" not in word for word in value):
        words = tuple(value)
    else:
        table.add_problem(key, f"is a text, or a list of texts, not {described(value)}")
    if not words:
        return None
    return CommandSpec(words, where, variables, tuple(hidden), limit, grace or 0)


def _split(table: Table, key: str, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        table.add_problem(key, f"cannot be split into words ({error}); give a list of words instead")
        return ()
    if not words or "\0" in text:
        table.add_problem(key, f"is a command, not {described(text)}")
        return ()
    return words


def _variables(table: Table) -> dict[str, str]:
    found = table.subtable("env")
    variables = {}
    for name, value in found.values.items():
        if not name or "=" in name or "\0" in name:
            found.add_problem(name, "is not the name of a variable")
        elif not isinstance(value, str) or "\0" in value:
            found.add_problem(name, f"is a text, not {described(value)}")
        elif problem := find_syntax_error(value):
            found.add_problem(name, problem)
        else:
            variables[name] = value
    return variables


def resolve_program(program: CommandSpec) -> tuple[CommandSpec, dict[str, str]]:
    """Return the program with its variables expanded from this environment, and the problem of each that cannot be.

    Called only before it runs: a process that reads the file for another purpose does not need its secrets.
    """
    variables, problems = {}, {}
    for name, text in program.variables.items():
        variables[name], problem = expand_variables(text, os.environ)
        if problem is not None:
            problems[name] = problem
    return msgspec.structs.replace(program, variables=variables), problems


def why_not_runnable(program: CommandSpec) -> str | None:
    """Return the reason why a program cannot be started here; None if it can."""
    name = program.argv[0]
    if not os.path.isdir(program.cwd):
        return f"the folder {program.cwd} does not exist"
    if "/" not in name:
        path = program.variables.get("PATH", os.environ.get("PATH"))
        return None if shutil.which(name, path=path) else f"there is no program {name} in the PATH"
    file = Path(program.cwd, name)
    if not file.is_file():
        return f"there is no file {file}"
    return None if os.access(file, os.X_OK) else f"{file} is not executable; chmod +x makes it so"
