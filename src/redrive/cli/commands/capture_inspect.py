"""`redrive capture status|list|show|templates`: tasks that failed outside a queue."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from redrive.broker.flows.registrations import SHOWN, disclose
from redrive.capture import administration
from redrive.capture.capture_settings import DEFAULT_QUEUE
from redrive.capture.captured_task import DeadLetterStatus, ErrorCategory, next_retry_at
from redrive.capture.failure_templates import FailureTemplate, list_templates
from redrive.capture.flows import TaskFilter
from redrive.capture.task_view import TaskView, task_view
from redrive.cli.commands.shell_completion import complete_queue
from redrive.cli.common_options import as_json, command, command_line
from redrive.cli.item_output import MAX_SHOWN_CHARS, TRACEBACK_LINES
from redrive.cli.output import (
    COLOURS,
    ago,
    escape_line,
    fields,
    in_colour,
    now,
    print_json,
    print_line,
    print_note,
    table,
)
from redrive.cli.selection import item_id, moment
from redrive.cli.store_target import find_target, open_target
from redrive.errors import Forbidden, InvalidName, ItemNotFound, NotFound, QueueNotFound
from redrive.model.duration import parse_duration
from redrive.model.text import format_counts, format_instant, pluralize

if TYPE_CHECKING:
    from redrive.broker.broker import Broker
    from redrive.capture.capture_errors import TaskNotFoundError
    from redrive.clock import Instant
    from redrive.model.group import Group
    from redrive.model.item import Item
    from redrive.model.worker_info import WorkerInfo

_COLUMNS = {"task": "~", "status": "<", "category": "<", "retries": ">", "next": ">", "failed": ">", "error": "~"}
_CAUSES = {"count": ">", "last": ">", "cause": "~"}
_TEMPLATES = {"template": "<", "category": "<", "policy": "<", "retries": ">", "advice": "~"}
_FULL_PERCENT = 80
"""The utilization from which on a queue is nearly full."""
queue_option = click.option(
    "--queue",
    "-q",
    default=DEFAULT_QUEUE,
    show_default=True,
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="The capture queue.",
)


class NoCaptureQueue(NotFound):
    """A capture queue that does not exist: nothing was captured in it."""

    code = "queue_not_found"

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"nothing was captured in '{queue}' yet: there is no such queue\n"
            f"  the first captured task creates it, and so does [capture] in redrive.toml; "
            f"{command_line('queue list')} shows all queues"
        )


@contextmanager
def open_queue(queue: str) -> Iterator[Broker]:
    """Open a broker on the store of this command, for a capture queue."""
    try:
        with open_target() as broker:
            yield broker
    except QueueNotFound as error:
        raise NoCaptureQueue(error.queue) from None if error.queue == queue else error


def find_task(broker: Broker, queue: str, typed: str, *, redacted: bool = True) -> Item:
    """Return the item of a task: by its task id, or by the first digits of the id of its item."""
    try:
        return broker.run_flow(administration.get_item(broker.core, queue, typed, redacted=redacted))
    except (NotFound, Forbidden) as error:
        if isinstance(error, QueueNotFound):
            raise
        return _by_item_id(broker, queue, typed, error, redacted)


def _by_item_id(
    broker: Broker, queue: str, typed: str, error: NotFound | Forbidden | TaskNotFoundError, redacted: bool
) -> Item:
    try:
        id = item_id(broker, typed, queue)
    except (ItemNotFound, InvalidName) as problem:
        raise problem if hasattr(problem, "candidates") else error from None
    return broker.run_flow(administration.get_item(broker.core, queue, id, redacted=redacted))


@command("status")
@queue_option
def status(queue: str) -> None:
    """Show an overview: what was captured, which tasks wait, which are exhausted and why, whether retries run, and the
    commands to type next."""
    with open_queue(queue) as broker:
        found = broker.run_flow(administration.statistics(broker.core, queue))
        if as_json():
            print_json(found)
            return
        causes = broker.groups(queue, limit=3) if found["status_breakdown"]["exhausted"] else ()
        workers = [worker for worker in broker.workers() if queue in worker.queues]
        waiting, more = broker.run_flow(administration.list_items(broker.core, queue, _WAITING, 1_000, None))
    due = [] if more else [at for item in waiting if (at := next_retry_at(item)) is not None]
    _print_counts(queue, found, min(due, default=None))
    _print_processor(found, workers)
    _print_causes(causes)
    print_note("")
    for line in _next_steps(queue, found, causes):
        print_note(line)


_WAITING = TaskFilter(status=DeadLetterStatus.PENDING)


def _print_counts(queue: str, found: Mapping[str, Any], due: Instant | None) -> None:
    counts, totals = found["status_breakdown"], found["lifetime_stats"]
    size, share = pluralize(found["queue_size"], "task"), f"{found['utilization_percent']:g} %"
    print_line(f"{queue} at {find_target().shown}: {size}, {share} of {found['max_size']:,}")
    print_line()
    said = {
        "pending": "" if due is None else _due_text(due),
        "exhausted": "not retried automatically any more" if counts["exhausted"] else "",
        "completed": "in the last day" if counts["completed"] else "",
    }
    for name, count in counts.items():
        colour = {"exhausted": "dead", "retrying": "active"}.get(name, name)
        word = coloured_as(f"{name:<11}", colour if count else "")
        print_line(f"  {word}{count:>9,}  {said.get(name, '')}".rstrip())
    print_line()
    ended = totals["retry_success"] + totals["retry_failed"]
    rate = f", success rate {100 * totals['retry_success'] / ended:.0f} %" if ended else ""
    if found["queue_size"]:
        print_line(f"  categories  {_by_category(found)}")
    print_line(f"  captured    {totals['enqueued_total']:,} in all")
    succeeded, failed = totals["retry_success"], totals["retry_failed"]
    print_line(f"  retries     {ended:,} in all: {succeeded:,} succeeded, {failed:,} failed{rate}")


def _due_text(due: Instant) -> str:
    return f"overdue: the first was due {ago(due)}" if due < now() else f"the next retry is due {ago(due)}"


def coloured_as(text: str, status: str) -> str:
    """Return a text in the colour of a status, if that has one."""
    return click.style(text, fg=COLOURS.get(status)) if status and in_colour() else text


def _by_category(found: Mapping[str, Any]) -> str:
    return format_counts({name: count for name, count in found["error_categories"].items() if count})


def _print_processor(found: Mapping[str, Any], workers: list[WorkerInfo]) -> None:
    if workers:
        names = ", ".join(f"{worker.name} on {worker.host}" for worker in workers[:3])
        more = f" and {len(workers) - 3} more" if len(workers) > 3 else ""
        print_line(escape_line(f"  processor   running: {names}{more}"))
    else:
        print_line("  processor   not running in any process: nothing is retried", style="red")


def _print_causes(causes: tuple[Group, ...]) -> None:
    if causes:
        print_line()
        print_line("Why tasks are exhausted:")
        table(_CAUSES, [(f"{each.count:,}", ago(each.last_at), each.title) for each in causes])


def _next_steps(queue: str, found: Mapping[str, Any], causes: tuple[Group, ...]) -> Iterator[str]:
    """Yield the commands to type next, the most urgent first."""
    at = "" if queue == DEFAULT_QUEUE else f" -q {queue}"
    counts = found["status_breakdown"]
    waits = counts["pending"] + counts["retrying"]
    if waits and not found["is_processor_running"]:
        yield "  start retries:   redrive work MODULE:DLQ    your DeadLetterQueue, as in calls:dlq"
    if counts["exhausted"]:
        if causes:
            yield f"  show one:        {command_line(f'capture show{at} {causes[0].sample[:8]}')}"
        yield f"  list them:       {command_line(f'capture list{at} --status exhausted')}"
        yield f"  retry them all:  {command_line(f'capture retry{at} --exhausted')}"
    if found["utilization_percent"] >= _FULL_PERCENT:
        yield f"  make room:       {command_line(f'capture archive{at} --exhausted')}"
    if not counts["exhausted"] and (found["is_processor_running"] or not waits):
        yield "Nothing to do." if not waits else "Nothing to do: retries run."


@command("list")
@queue_option
@click.option("--status", type=click.Choice([*map(str, DeadLetterStatus)]), help="Only tasks in this status.")
@click.option(
    "--category", type=click.Choice([*map(str, ErrorCategory)]), help="Only tasks whose error is of this kind."
)
@click.option("--policy", metavar="NAME", help="Only tasks with this retry policy.")
@click.option("--since", metavar="TIME", help="Only tasks that failed since then: as in 2h, or a date and time.")
@click.option("--before", metavar="TIME", help="Only tasks that failed before then.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of tasks.")
@click.option("--cursor", help="Continue after the page that printed this cursor.")
def list_(
    queue: str,
    status: str | None,
    category: str | None,
    policy: str | None,
    since: str | None,
    before: str | None,
    limit: int,
    cursor: str | None,
) -> None:
    """List captured tasks that meet all given conditions, the newest first."""
    where = TaskFilter.parse(status, category, policy, _time(since), _time(before), None)
    with open_queue(queue) as broker:
        items, position = broker.run_flow(administration.list_items(broker.core, queue, where, limit, cursor))
    views = [task_view(item) for item in items]
    if as_json():
        more = {} if position is None else {"cursor": position}
        print_json({"tasks": msgspec.to_builtins(views), **more})
    elif not views:
        print_line("No task matches.")
    else:
        rows = [_row(view, item) for view, item in zip(views, items, strict=True)]
        table(_COLUMNS, rows, coloured="status", least=("category", "failed", "retries"))
        if position is not None:
            print_note(f"\nThere are more: --cursor {position}, or --limit")


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    at = moment(text)
    if isinstance(at, datetime):
        return at
    return datetime.fromtimestamp(now() / 1_000_000, UTC) - timedelta(microseconds=parse_duration(at))


def _row(view: TaskView, item: Item) -> tuple[object, ...]:
    return (
        view.task_id if not view.hidden else view.item_id[:8],
        view.status.value,
        view.error_category or "",
        f"{view.retry_count}/{view.max_retries}",
        ago(next_retry_at(item)),
        ago(item.put_at),
        view.last_error or view.error,
    )


@command("show")
@click.argument("task", metavar="TASK")
@queue_option
@click.option("--secrets", is_flag=True, help="Also show redacted values: passwords, keys, tokens.")
def show(task: str, queue: str, secrets: bool) -> None:
    """Show one task: its error, the end of the traceback, its retries, and the commands to type next.

    TASK is its task id, or the first digits of the id of its item. Passwords, keys and tokens are shown as [redacted].
    The audit records who uses --secrets.
    """
    with open_queue(queue) as broker:
        item = find_task(broker, queue, task, redacted=not secrets)
        if secrets:
            broker.run_flow(disclose(broker.core, SHOWN, queue, f"item {item.id}"))
    view = task_view(item)
    if as_json():
        print_json(msgspec.to_builtins(view))
        return
    print_line(f"{escape_line(view.task_id)}  {coloured_as(view.status.value, item.status.value)} in {queue}")
    print_line(escape_line(_error_line(view)), style="red")
    for line in _traceback(view):
        print_line(line)
    if view.advice:
        print_line(escape_line(view.advice))
    print_line()
    _print_facts(view, item)
    for name in ("task", "extra", "metadata", "result"):
        if (value := getattr(view, name)) is not None:
            print_line(f"\n{name}: {escape_line(msgspec.json.encode(value).decode()[:MAX_SHOWN_CHARS])}")
    for line in _steps_of(view, queue):
        print_note(line)


def _error_line(view: TaskView) -> str:
    text = view.last_error or view.error
    return f"{view.error_type}: {text}" if view.error_type else text


def _traceback(view: TaskView) -> list[str]:
    lines = (view.traceback or "").rstrip().splitlines()
    return [f"  {escape_line(line)}" for line in lines[-TRACEBACK_LINES:]]


def _print_facts(view: TaskView, item: Item) -> None:
    due = next_retry_at(item)
    fields(
        [
            ("captured", f"{format_instant(item.put_at)} ({ago(item.put_at)})"),
            ("first error", view.error if view.error != view.last_error else None),
            ("category", view.error_category),
            ("template", view.template),
            ("policy", view.retry_policy),
            ("retries", f"{view.retry_count} of {view.max_retries}, {pluralize(view.total_attempts, 'run')} in all"),
            ("next retry", None if due is None else f"{format_instant(due)} ({ago(due)})"),
            ("group", (view.fingerprint or "")[:8]),
            ("item", view.item_id),
        ]
    )


def _steps_of(view: TaskView, queue: str) -> list[str]:
    at = "" if queue == DEFAULT_QUEUE else f" -q {queue}"
    id = shlex.quote(view.item_id[:8] if view.hidden else view.task_id)
    match view.status:
        case DeadLetterStatus.EXHAUSTED:
            return [
                "\nNext steps:",
                f"  retry it:           {command_line(f'capture retry{at} {id}')}",
                f"  run it here:        redrive capture retry {id} --app MODULE:DLQ",
                f"  archive it:         {command_line(f'capture archive{at} {id}')}",
                f"  its whole history:  {command_line(f'dead show {view.item_id[:8]}')}",
            ]
        case DeadLetterStatus.PENDING:
            return [f"\nRetry it now: {command_line(f'capture retry{at} {id}')}"]
        case DeadLetterStatus.ARCHIVED:
            return [f"\nRestore it from the archive: {command_line(f'capture restore{at} {id}')}"]
        case _:
            return []


@command("templates")
@click.option("--category", type=click.Choice([*map(str, ErrorCategory)]), help="Only failures of this kind.")
def templates(category: str | None) -> None:
    """List the common failures that errors are compared with, in this order: category, policy, retries, and advice for
    operators. It reads no store. Templates that a program adds with add_template are not listed."""
    found = [each for each in list_templates() if category in (None, each.category)]
    if as_json():
        print_json({"templates": [_template_form(each) for each in found]})
        return
    rows = [(each.name, each.category.value, str(each.policy), each.max_retries, each.advice) for each in found]
    table(_TEMPLATES, rows, least=("retries", "category"))
    print_note("\nThe template of a task is in: redrive capture show TASK")


def _template_form(template: FailureTemplate) -> dict[str, object]:
    return {
        "name": template.name,
        "category": template.category.value,
        "policy": str(template.policy),
        "max_retries": template.max_retries,
        "advice": template.advice,
    }
