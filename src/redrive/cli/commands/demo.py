"""`redrive demo`: an example store with dead letters, to practise on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redrive.cli.common_options import as_json, command, get_option
from redrive.cli.output import print_json, print_line
from redrive.cli.store_target import StoreTarget, find_target, open_place
from redrive.errors import Refused
from redrive.model.limits import DEFAULT_NAMESPACE
from redrive.model.text import pluralize

if TYPE_CHECKING:
    from redrive.broker.broker import Broker
    from redrive.model.item import Lease

ORDERS = 120
MAILS = 20
QUEUES = ("orders-dead", "orders", "mails")


@command("demo", short_help="Create an example store with dead letters, to practise on.")
@click.argument("what", required=False, type=click.Choice(["capture"]), metavar="[capture]")
def demo(what: str | None) -> None:
    """Create an example store to practise on: 140 orders and mails, of which 110 died of three causes.

    With `capture`, calls of a failing service are captured and retried while you watch, and one command retries the
    rest.

    It is a new file in a temporary folder, regardless of the environment; with --url it is the store that you name,
    which must not have queues with the same names.
    """
    if get_option("url") is None:
        folder = Path(tempfile.mkdtemp(prefix="redrive-demo-"))
        place = StoreTarget(f"sqlite:///{folder / 'demo.db'}", DEFAULT_NAMESPACE, "demo")
    else:
        place = find_target()
    if what is not None:
        from redrive.cli.commands.demo_capture import run

        run(place)
        return
    with open_place(place, create=True) as broker:
        check_new(broker, QUEUES)
        fill(broker)
        top = broker.groups()[0]
        queues = {stats.queue: stats.dead_letters for stats in broker.list_stats(QUEUES)}
        dead = sum(queues.values())
    if as_json():
        print_json({"url": place.shown, "namespace": place.namespace, "dead": dead, "queues": queues})
        return
    print_line(
        f"{ORDERS + MAILS} orders and mails were put and processed; {pluralize(dead, 'item')} died. Type this first:"
    )
    print_line()
    print_line(f"  export REDRIVE_URL={place.shown}")
    print_line()
    print_line("Then inspect the failed items, and redrive them:")
    print_line()
    print_line("  redrive dead groups")
    print_line(f"  redrive dead show {top.sample[:8]}")
    print_line(f"  redrive dead redrive --group {top.fingerprint[:8]} --dry-run")
    print_line(f"  redrive dead redrive --group {top.fingerprint[:8]} --rate 50/s --note 'the gateway is back'")
    print_line("  redrive queue list")
    print_line("  redrive audit")


def check_new(broker: Broker, queues: Iterable[str]) -> None:
    """Raise Refused if the store has queues of these names."""
    taken = {queue.name for queue in broker.list_queues()} & set(queues)
    if taken:
        raise Refused(f"there are queues called {' and '.join(sorted(taken))} already; name a new store with --url")


def fill(broker: Broker) -> None:
    """Put orders and mails, of which 110 die of three causes."""
    broker.create_queue("orders-dead")
    broker.create_queue("orders", dead_queue="orders-dead")
    broker.create_queue("mails")
    broker.put_many("orders", [_order(number) for number in range(ORDERS)])
    broker.put_many("mails", [{"to": f"user{number}@example.com"} for number in range(MAILS)])
    _work(broker, "orders", _charge)
    _work(broker, "mails", _send)


def _order(number: int) -> dict[str, object]:
    amount: object = "12,50" if number % 10 == 3 else 12.5
    return {"order": number, "amount": amount, "customer": {"name": "Ann", "api_key": f"key-{number}-0815"}}


def _work(broker: Broker, queue: str, handle: Callable[[Lease], None]) -> None:
    while leases := broker.lease(queue, 50, worker="worker-1"):
        for lease in leases:
            try:
                handle(lease)
            except Exception as error:
                broker.fail(lease, error)
            else:
                broker.complete(lease)


def _charge(lease: Lease) -> None:
    value = lease.value
    if not isinstance(value["amount"], float):
        raise ValueError(f"order {value['order']}: amount {value['amount']!r} is no number")
    if value["order"] % 4:
        raise ConnectionError(f"order {value['order']}: the payment gateway at 10.0.0.{value['order']} refused")


def _send(lease: Lease) -> None:
    raise TimeoutError(f"the mail server did not take the mail to {lease.value['to']}")
