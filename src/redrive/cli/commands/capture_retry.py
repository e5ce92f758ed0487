"""`redrive capture retry|archive|restore|clear`: change captured tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from redrive.capture import administration, flows
from redrive.capture.async_dead_letter_queue import AsyncDeadLetterQueue
from redrive.capture.captured_task import task_of_item
from redrive.capture.dead_letter_queue import DeadLetterQueue
from redrive.cli import bulk_change, error_output
from redrive.cli.bulk_change import confirm_options
from redrive.cli.commands.capture_inspect import NoCaptureQueue, find_task, open_queue, queue_option
from redrive.cli.common_options import as_json, command, command_line, get_option, was_given
from redrive.cli.output import escape_line, print_json, print_line, print_note
from redrive.errors import InvalidInput, NotFound, QueueNotFound, RedriveError
from redrive.model.item import Status
from redrive.model.state_machine import Verb
from redrive.model.text import format_instant, pluralize, to_rfc3339
from redrive.worker.app_loader import load_program

if TYPE_CHECKING:
    from redrive.broker.broker import Broker
    from redrive.model.item import Item

Outcome = dict[str, Any]
tasks_argument = click.argument("tasks", nargs=-1, metavar="[TASK]...")
exhausted_option = click.option("--exhausted", is_flag=True, help="All exhausted tasks of the queue.")


@command("retry")
@tasks_argument
@queue_option
@exhausted_option
@click.option(
    "--app", metavar="MODULE:NAME", help="Run the tasks in this process, with the DeadLetterQueue of this module."
)
@bulk_change.operation_options
@confirm_options(final=False)
def retry(
    tasks: tuple[str, ...],
    queue: str,
    exhausted: bool,
    app: str | None,
    dry_run: bool,
    yes: int | str | None,
    **options: Any,
) -> None:
    """Make tasks due now, with their retries counted from 0: a retry processor runs them.

    TASK is a task id, or the first digits of the id of its item. With --app each task runs once, here, by the callback
    or the guarded function of the module; if that fails, the task is unchanged, and the exit code is 5.

    \b
    redrive capture retry wf_abc123
    redrive capture retry wf_abc123 --app calls:dlq
    redrive capture retry --exhausted --rate 10/s
    """
    _check_choice(tasks, exhausted, app)
    if app is not None:
        _run_here(tasks, app)
        return
    with open_queue(queue) as broker:
        if exhausted:
            where = {"queue": queue, "status": Status.DEAD}
            bulk_change.run(broker, "retry", where, yes=yes, dry_run=dry_run, **options)
            return
        is_running = broker.run_flow(flows.has_processor(queue))
        message = administration.due_message(queue, is_running)

        def make_due(item: Item) -> Outcome:
            broker.run_flow(administration.change(broker.core, item, Verb.RETRY, None))
            return {"success": False, "is_due": True, "is_processor_running": is_running, "message": message}

        _change(broker, queue, tasks, make_due)


def _check_choice(tasks: Sequence[str], exhausted: bool, app: str | None = None) -> None:
    if bool(tasks) == exhausted:
        raise click.UsageError("Give task ids, or --exhausted for all exhausted tasks")
    if app is not None and exhausted:
        raise click.UsageError("--app is for named tasks; redrive work runs all tasks that are due")
    given = [name for name in bulk_change.OF_MANY if was_given(name)]
    if tasks and given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is for --exhausted; omit it")


@command("archive")
@tasks_argument
@queue_option
@exhausted_option
@bulk_change.operation_options
@confirm_options(final=False)
def archive(
    tasks: tuple[str, ...], queue: str, exhausted: bool, dry_run: bool, yes: int | str | None, **options: Any
) -> None:
    """Archive tasks: they are not retried, do not count for max_size, and can be restored."""
    _check_choice(tasks, exhausted)
    with open_queue(queue) as broker:
        if exhausted:
            where = {"queue": queue, "status": Status.DEAD}
            bulk_change.run(broker, "archive", where, yes=yes, dry_run=dry_run, **options)
        else:
            _change(broker, queue, tasks, lambda item: _moved(broker, item, Verb.ARCHIVE))


@command("restore")
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
@queue_option
def restore(tasks: tuple[str, ...], queue: str) -> None:
    """Restore tasks from the archive."""
    with open_queue(queue) as broker:
        _change(broker, queue, tasks, lambda item: _moved(broker, item, Verb.RESTORE))


@command("clear")
@queue_option
@click.option("--final", is_flag=True, help="Remove them permanently.")
@confirm_options(final=False)
def clear(queue: str, final: bool, dry_run: bool, yes: int | str | None) -> None:
    """Drop all waiting and exhausted tasks. They can be restored for keep_dropped of the queue.

    Tasks that are being retried now are not dropped, nor are completed and archived ones.
    """
    word = "removed" if final else "dropped"
    with open_queue(queue) as broker:
        count = broker.run_flow(administration.count_clearable(queue))
        cleared, until = 0, None
        if count and not dry_run:
            bulk_change.confirm(f"clear {queue} and {'remove' if final else 'drop'}", count, yes, final=final)
            result = broker.run_flow(administration.clear(broker.core, queue, count if final else None))
            cleared, until = result.cleared, result.undo_until
    if as_json():
        undo_until = None if until is None else to_rfc3339(until)
        print_json({"dry_run": dry_run, "matched": count, word: cleared, "undo_until": undo_until})
    elif dry_run:
        print_line(f"{pluralize(count, 'task')} would be {word}")
    else:
        print_line(f"{pluralize(cleared, 'task')} {word}" if count else f"There is nothing to be {word}.")
        if until is not None:
            restore = command_line(f"dead restore -q {queue} --where dropped=true")
            print_note(f"  until {format_instant(until)}, this restores all dropped tasks: {restore}")
    click.get_current_context().exit(error_output.OK if dry_run or cleared else error_output.NOTHING)


def _moved(broker: Broker, item: Item, verb: Verb) -> Outcome:
    status = broker.run_flow(administration.change(broker.core, item, verb, None))
    return {"status": status.value, "message": f"is {status} now"}


def _change(broker: Broker, queue: str, tasks: Sequence[str], act: Callable[[Item], Outcome]) -> None:
    """Change each task, print each outcome, and exit with the code of the failures."""

    def outcome(task: str) -> Outcome | RedriveError:
        try:
            item = find_task(broker, queue, task)
            return {"item_id": item.id, **act(item)}
        except RedriveError as error:
            return error

    _report({task: outcome(task) for task in tasks})


def _run_here(tasks: Sequence[str], app: str) -> None:
    """Run tasks in this process. The module determines the store and the queue."""
    for option in ("url", "token", "namespace"):
        if get_option(option) is not None:
            raise click.UsageError(f"--{option} is not for --app: the module says which store it is")
    if was_given("queue"):
        raise click.UsageError("--queue is not for --app: the module says which queue it is")
    program = load_program(app)
    if isinstance(program, AsyncDeadLetterQueue):
        _report(asyncio.run(_retry_async(program, tasks)))
    elif isinstance(program, DeadLetterQueue):
        with program:
            _report({task: _retry_here(program, task) for task in tasks})
    else:
        raise InvalidInput(f"{app} is {type(program).__name__}, not a DeadLetterQueue")


def _retry_here(dlq: DeadLetterQueue, task: str) -> Outcome | RedriveError:
    id = _task_id(dlq, task)
    return id if isinstance(id, RedriveError) else _outcome_of(dlq.retry_task(id))


async def _retry_async(dlq: AsyncDeadLetterQueue, tasks: Sequence[str]) -> dict[str, Outcome | RedriveError]:
    outcomes: dict[str, Outcome | RedriveError] = {}
    async with dlq:
        for task in tasks:
            id = _task_id(dlq, task)
            outcomes[task] = id if isinstance(id, RedriveError) else _outcome_of(await dlq.retry_task(id))
    return outcomes


def _task_id(dlq: DeadLetterQueue | AsyncDeadLetterQueue, typed: str) -> str | NotFound:
    """Return the id of the task that was typed, or the error."""
    (broker,) = dlq.brokers
    try:
        return task_of_item(find_task(broker, dlq.name, typed, redacted=False)).task_id
    except QueueNotFound:
        return NoCaptureQueue(dlq.name)
    except NotFound as error:
        return error


class RetryFailed(RedriveError):
    """A task that ran here and failed, or that did not run."""

    code = "task_failed"


def _outcome_of(answer: Outcome) -> Outcome | RedriveError:
    if answer["success"]:
        return {name: value for name, value in answer.items() if name != "task_id"}
    message, error = answer["message"], answer["error"]
    return RetryFailed(message if message == error else f"{message}: {error}")


def _report(outcomes: dict[str, Outcome | RedriveError]) -> None:
    """Print the outcome of each task. If there is only one and it was refused, that is the error of the command."""
    refused = [outcome for outcome in outcomes.values() if isinstance(outcome, RedriveError)]
    if len(outcomes) == 1 and refused:
        raise refused[0]
    if as_json():
        print_json([_form(task, outcome) for task, outcome in outcomes.items()])
    else:
        for task, outcome in outcomes.items():
            is_error = isinstance(outcome, RedriveError)
            text = error_output.one_of_several(outcome) if isinstance(outcome, RedriveError) else outcome["message"]
            print_line(escape_line(f"{task}  {text}"), style="red" if is_error else None)
    if refused:
        click.get_current_context().exit(error_output.exit_for(refused, len(outcomes)))


def _form(task: str, outcome: Outcome | RedriveError) -> Outcome:
    if isinstance(outcome, RedriveError):
        return {"task_id": task, "error": {"code": outcome.code, "message": error_output.error_text(outcome)}}
    return {"task_id": task, **outcome}
