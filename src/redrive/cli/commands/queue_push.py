"""`redrive queue push`: put one item or many."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from redrive.cli import error_output
from redrive.cli.bulk_change import progress_bar
from redrive.cli.commands.shell_completion import complete_queue
from redrive.cli.common_options import as_json, command, command_line, pairs
from redrive.cli.output import print_json, print_line, print_note, short, to_json_value
from redrive.cli.selection import parse_instant
from redrive.cli.setting_options import written_value
from redrive.cli.store_target import open_target
from redrive.errors import InvalidPayload
from redrive.model.declaration import texts_of
from redrive.model.limits import MIB
from redrive.model.options import ItemOptions
from redrive.model.payload import TEXT
from redrive.model.text import pluralize

if TYPE_CHECKING:
    from redrive.broker.broker import Broker
    from redrive.contract.item_calls import NewItem

LINES_AT_ONCE = 1_000
"""The largest number of lines in one transaction."""
BYTES_AT_ONCE = 8 * MIB
TEXTS = texts_of(ItemOptions)
"""The help text of each option of an item."""


def _headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    return dict(pairs(values))


def _retry(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    return None if text is None else written_value(text)


@command("push")
@click.argument("queue", shell_complete=complete_queue)
@click.argument("payload", required=False)
@click.option("--file", "path", type=click.File("rb"), help="Read the payload from a file; - is stdin.")
@click.option("--text", is_flag=True, help="The payload is text, not JSON.")
@click.option("--lines", is_flag=True, help="Put one item for each line, in batches of 1,000; skip empty lines.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", callback=_headers, help=TEXTS["headers"])
@click.option("--delay", default="0", metavar="TIME", help=TEXTS["delay"])
@click.option("--priority", type=click.IntRange(0, 9), default=5, help=TEXTS["priority"])
@click.option("--key", metavar="KEY", help=TEXTS["idempotency_key"])
@click.option("--expire", metavar="TIME", help=TEXTS["expire_timeout"])
@click.option("--expire-at", metavar="INSTANT", callback=parse_instant, help=TEXTS["expire_at"])
@click.option("--retry", metavar="TABLE", callback=_retry,
              help=f"{TEXTS['retry']} In TOML or JSON: '{{attempts=5, cooldown=\"1m\"}}'.")  # fmt: skip
@click.option("--content-type", metavar="TYPE", help=TEXTS["content_type"])
def push(
    queue: str,
    payload: str | None,
    path: IO[bytes] | None,
    text: bool,
    lines: bool,
    headers: dict[str, str],
    delay: str,
    priority: int,
    key: str | None,
    expire: str | None,
    expire_at: datetime | None,
    retry: Any,
    content_type: str | None,
) -> None:
    """Put items into a queue. The PAYLOAD is JSON; if it is - or missing, it is read from stdin.

    \b
    redrive queue push emails '{"to": "ann@example.com"}'
    redrive queue push notes --text 'no JSON at all'
    redrive queue push emails --lines --file many.jsonl

    For an external queue of redrive.toml, no payload means: the processes that run the queue list it now. Stdin is not
    read then. If no process runs it, nothing is done, and the exit code is 1.
    """
    if payload is not None and path is not None:
        raise click.UsageError("A payload and --file were given; omit one")
    if text and content_type is not None:
        raise click.UsageError("--text and --content-type were given; omit one")
    if expire is not None and expire_at is not None:
        raise click.UsageError("--expire and --expire-at were given; omit one")
    if lines and key is not None:
        raise click.UsageError("--key is for one item, and --lines puts many; omit one")
    options: dict[str, Any] = {
        "headers": headers,
        "delay": delay,
        "priority": priority,
        "idempotency_key": key,
        "expire_timeout": expire,
        "expire_at": expire_at,
        "retry": retry,
        "content_type": content_type or (TEXT if text else None),
    }
    with open_target() as broker:
        if payload is None and path is None and not lines and _list_anew(broker, queue):
            return
        if lines:
            _push_lines(broker, queue, _lines_of(payload, path), options)
            return
        receipt = broker.put(queue, _value(_data(payload, path), options, 0), **options)
        if as_json():
            print_json({**to_json_value(receipt), "queue": queue})
        else:
            known = " was there already under this key" if receipt.duplicate else f" is in {queue}"
            print_line(f"{short(receipt.id)}{known}")


def _list_anew(broker: Broker, queue: str) -> bool:
    """Request a listing of an external queue now. Return false if it is no external queue."""
    from redrive.broker.flows import external_polls

    if broker.run_flow(external_polls.external_queue(queue)) is None:
        return False
    workers = [worker.name for worker in broker.workers() if queue in worker.queues]
    if workers:
        broker.run_flow(external_polls.request(queue))
    if as_json():
        print_json({"queue": queue, "requested": bool(workers), "workers": workers})
    elif workers:
        print_line(f"{queue} is listed now by {', '.join(workers)}")
        print_note(f"Show the result: {command_line(f'queue show {queue}')}")
    else:
        print_line(
            f"{queue} is an external queue, and no process lists it now. {command_line('work')} lists it when it starts"
        )
    if not workers:
        click.get_current_context().exit(error_output.FAILED)
    return True


def _data(payload: str | None, path: IO[bytes] | None) -> bytes:
    if path is not None:
        return path.read()
    if payload is not None and payload != "-":
        return payload.encode()
    if sys.stdin.isatty():
        raise click.UsageError("There is no payload: give it as an argument, with --file, or through a pipe")
    return sys.stdin.buffer.read()


def _lines_of(payload: str | None, path: IO[bytes] | None) -> Iterator[bytes]:
    source: Any = path
    if source is None:
        if payload is not None and payload != "-":
            raise click.UsageError("--lines takes lines from a --file or from stdin, not from the command line")
        source = sys.stdin.buffer
    return (line for line in (line.rstrip(b"\r\n") for line in source) if line.strip())


def _value(data: bytes, options: dict[str, Any], line: int) -> Any:
    """Return the value to put: bytes if there is a content type, else the decoded JSON."""
    if options["content_type"] is not None:
        return data
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(data, str(error), line) from None


def _not_json(data: bytes, problem: str, line: int) -> InvalidPayload:
    what = f"line {line:,}" if line else "the payload"
    refused = InvalidPayload(what if line else "$", f"is not JSON ({problem})")
    told = f'{what} is not JSON ({problem}); write texts with --text, or "in quotes"'
    if not data.strip():
        told = "there is no payload: nothing came through the pipe; give it as an argument, with --file, or on stdin"
    refused.args = (told,)
    return refused


def _push_lines(broker: Broker, queue: str, lines: Iterator[bytes], options: dict[str, Any]) -> None:
    from redrive.broker.flows.deliveries import new_item

    count = 0
    broker.get_queue(queue)
    with progress_bar(f"push to {queue}", None) as shown:
        try:
            while batch := _batch(lines):
                items: list[NewItem] = [
                    new_item(_value(data, options, count + number), **options)
                    for number, data in enumerate(batch, start=1)
                ]
                count += len(broker.put_many(queue, items))
                shown.at(count)
        except BaseException:
            if count:
                click.echo(f"redrive: before this, {pluralize(count, 'item')} were put into {queue}", err=True)
            raise
    if as_json():
        print_json({"queue": queue, "put": count})
    else:
        print_line(f"{pluralize(count, 'item')} put into {queue}")
    if not count:
        click.get_current_context().exit(error_output.NOTHING)


def _batch(lines: Iterator[bytes]) -> list[bytes]:
    batch: list[bytes] = []
    size = 0
    for line in islice(lines, LINES_AT_ONCE):
        batch.append(line)
        size += len(line)
        if size >= BYTES_AT_ONCE:
            break
    return batch
