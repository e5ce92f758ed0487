"""Makes a store with trouble in it, to practise on: `python examples/trouble.py jobs.db`.

Of 140 orders and mails, 110 died of three causes. Everything in docs/guides/on-call.md can be tried on it.
"""

import sys

from redrive import Broker, Lease, connect

ORDERS = 120
MAILS = 20


def main(path: str = "jobs.db") -> None:
    with connect(f"sqlite:///{path}", actor="deploy", lifecycle=False) as broker:
        broker.create_queue("orders-dead")
        broker.create_queue("orders", dead_queue="orders-dead")
        broker.create_queue("mails")
        broker.put_many("orders", [order(number) for number in range(ORDERS)])
        broker.put_many("mails", [{"to": f"user{number}@example.com"} for number in range(MAILS)])
        for queue, handler in (("orders", charge), ("mails", send)):
            work(broker, queue, handler)
        dead = sum(broker.stats(queue.name).dead_letters for queue in broker.list_queues())
        print(f"{path}: {dead} dead letters in {len(broker.groups())} groups")


def order(number: int) -> dict[str, object]:
    amount: object = "12,50" if number % 10 == 3 else 12.5
    return {"order": number, "amount": amount, "customer": {"name": "Ann", "api_key": f"key-{number}-0815"}}


def work(broker: Broker, queue: str, handler: object) -> None:
    while leases := broker.lease(queue, 50, worker="worker-1"):
        for lease in leases:
            try:
                handler(lease)  # type: ignore[operator]
            except Exception as error:
                broker.fail(lease, error)
            else:
                broker.complete(lease)


def charge(lease: Lease) -> None:
    value = lease.value
    if not isinstance(value["amount"], float):
        raise ValueError(f"order {value['order']}: amount {value['amount']!r} is no number")
    if value["order"] % 4:
        raise ConnectionError(f"order {value['order']}: the payment gateway at 10.0.0.{value['order']} refused")


def send(lease: Lease) -> None:
    raise TimeoutError(f"the mail server did not take the mail to {lease.value['to']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
