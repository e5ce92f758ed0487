"""Checks of a valid file that need this machine and this store: its programs, variables and queues must exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from redrive.config.config import Config, ExternalOptions, WorkerOptions
from redrive.config.line_numbers import KeyPath
from redrive.config.worker_tables import resolve_program, why_not_runnable
from redrive.errors import Problem
from redrive.model.queue_options import parse_settings
from redrive.model.text import suggest
from redrive.worker.command_process import CommandSpec


def chosen_workers(config: Config, chosen: Collection[str] | None) -> dict[str, WorkerOptions]:
    """Return the workers with these names; all of them for None."""
    return {name: options for name, options in config.workers.items() if chosen is None or name in chosen}


def listed_queues(config: Config, workers: Mapping[str, WorkerOptions]) -> dict[str, ExternalOptions]:
    """Return the external queues that at least one of these workers works on."""
    queues = {options.queue for options in workers.values()}
    return {queue: options for queue, options in config.external.items() if queue in queues}


def unknown_workers(config: Config, chosen: Collection[str] | None) -> list[Problem]:
    """Return a problem for each chosen worker that is not in the file."""
    known = tuple(config.workers)
    there = f"; there are {', '.join(known)}" if known else "; it has none"
    return [
        config.problem(("worker", name), f"is not in the file{suggest(name, known, {}) or there}")
        for name in chosen or ()
        if name not in known
    ]


def missing_programs(config: Config, workers: Mapping[str, WorkerOptions]) -> list[Problem]:
    """Return a problem for each program of these workers that cannot run here: it is missing, or lacks variables."""
    programs: dict[KeyPath, CommandSpec] = {("worker", name, "run"): options.run for name, options in workers.items()}
    for queue, external in listed_queues(config, workers).items():
        programs["queue", queue, "list"] = external.list
        if external.claim is not None:
            programs["queue", queue, "claim"] = external.claim
    problems: dict[KeyPath, str] = {}
    for path, program in programs.items():
        whole, unset = resolve_program(program)
        problems |= {(*path[:-1], "env", name): problem for name, problem in unset.items()}
        if (problem := why_not_runnable(whole)) is not None:
            problems[path] = problem
    return [config.problem(path, problem) for path, problem in problems.items()]


def unknown_queues(config: Config, workers: Mapping[str, WorkerOptions], there: Collection[str]) -> list[Problem]:
    """Return a problem for each worker whose queue is neither in the file nor in the store."""
    known = {*there, *config.queues}
    for values in config.queues.values():
        known |= set(parse_settings({"dead_queue": values.get("dead_queue")}).dead_queues())
    return [
        config.problem(
            ("worker", name, "queue"),
            f"'{options.queue}' does not exist{suggest(options.queue, known, {})}; add [queue.{options.queue}] to the "
            f"file, or create it first",
        )
        for name, options in workers.items()
        if options.queue not in known
    ]
