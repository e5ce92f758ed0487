"""Eight orders, four deaths, one command: what Redrive is for, in a terminal. Run it with `./dev demo`.

The worker is a process of its own, so that an order can really kill it. Everything is in one SQLite file.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from redrive import Broker, Item, Lease, Status, connect
from redrive.errors import LeaseLost

ORDERS = ["lamp", "chair", "desk", "mirror", "unicorn", "sofa", "piano", "shelf"]
IN_A_TERMINAL = sys.stdout.isatty()
IN_COLOUR = IN_A_TERMINAL and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
PAUSE_SECONDS = 0.2 if IN_A_TERMINAL else 0.0


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="redrive-demo-"))
    url = f"sqlite:///{folder / 'orders.db'}"
    with connect(url, actor="you") as broker:
        ids = put_orders(broker, url)
        work_until_done(broker, url, "with-bugs")
        dead = [item for item in map(broker.get, ids) if item.status is Status.DEAD]
        show_dead(dead)
        show_history(dead[0])
        bring_back(broker, dead)
        work_until_done(broker, url, "fixed")
        show_end(broker, ids)
    say(f"The database is {folder / 'orders.db'}. Look around in it, or delete the folder.", "dim")


def put_orders(broker: Broker, url: str) -> list[str]:
    title("1. Eight orders are put into a queue")
    say(f"broker = connect('{url}')", "dim")
    say("broker.create_queue('orders', retry={'attempts': 3, 'cooldown': '100ms'}, final_errors=['ValueError'],", "dim")
    say("                    lease_timeout='1s', max_losses=2, keep_completed='1h')", "dim")
    broker.create_queue(
        "orders",
        retry={"attempts": 3, "cooldown": "100ms"},
        final_errors=["ValueError"],
        lease_timeout="1s",
        max_losses=2,
        keep_completed="1h",
    )
    receipts = broker.put_many("orders", [{"number": n, "what": what} for n, what in enumerate(ORDERS, start=1)])
    say(f"A put returns when the orders are on disk. They survive {broker.durability().survives}.")
    return [receipt.id for receipt in receipts]


def work_until_done(broker: Broker, url: str, version: str) -> None:
    """Start a worker, and another one whenever it is killed, until nothing is left to do."""
    title("2. A worker takes them" if version == "with-bugs" else "5. The same worker, repaired")
    while True:
        sys.stdout.flush()
        ended = subprocess.run([sys.executable, __file__, "worker", url, version], check=False)
        if ended.returncode == 0:
            return
        say("            The worker process is gone. Its lease will run out; a new worker starts.", "red")


def worker(url: str, version: str) -> None:
    """Lease, work, and say how it ended."""
    with connect(url) as broker:
        while has_work(broker):
            for lease in broker.lease("orders", wait="200ms", worker=f"worker-{os.getpid()}"):
                try:
                    deliver(broker, lease, version)
                except LeaseLost:
                    continue  # somebody else has the order now


def deliver(broker: Broker, lease: Lease, version: str) -> None:
    try:
        handle(lease, version)
    except Exception as error:
        is_dead = broker.fail(lease, error).status is Status.DEAD
        fate = "dead" if is_dead else "tried again"
        report(lease, f"{type(error).__name__}: {error}: {fate}", "red" if is_dead else "yellow")
    else:
        broker.complete(lease)
        report(lease, "completed", "green")


def has_work(broker: Broker) -> bool:
    stats = broker.stats("orders")
    return stats.pending + stats.failed + stats.active > 0


def handle(lease: Lease, version: str) -> None:
    what = lease.value["what"]
    if what == "chair" and lease.attempts == 1:
        raise TimeoutError("the warehouse did not answer in time")
    if version == "fixed":
        return
    if what in ("mirror", "sofa"):
        charge(what)
    if what == "unicorn":
        raise ValueError("there is no product 'unicorn'")
    if what == "piano":
        report(lease, "kills the process that works on it", "red")
        os._exit(9)


def charge(what: str) -> None:
    raise ConnectionError(f"the payment service refused to charge for '{what}'")


def show_dead(dead: list[Item]) -> None:
    title("3. What died, and why")
    say(f"{'id':10}{'order':10}{'reason':20}{'deliveries':12}last error", "bold")
    for item in dead:
        error = item.last_failure.title if item.last_failure else "none: its worker vanished each time"
        what = item.value["what"]
        say(f"{item.id[:8]:10}{what:10}{item.dead_reason:20}{item.counters.deliveries:<12}{error}", "red")
    say("Nothing was lost, and nobody had to look into a log.")


def show_history(item: Item) -> None:
    say("")
    say(f"broker.get('{item.id[:8]}…').history", "dim")
    for entry in item.history:
        after = (entry.at - item.put_at) / 1_000_000
        text = entry.failure.title if entry.failure else "no error was reported"
        say(f"  {after:5.1f} s  delivery {entry.delivery}  {entry.event}  {text}")
    assert item.last_failure is not None
    assert item.last_failure.traceback is not None
    for line in item.last_failure.traceback.splitlines()[-3:]:
        say(f"           {line}", "dim")


def bring_back(broker: Broker, dead: list[Item]) -> None:
    title("4. The causes are repaired. One command brings the dead back")
    say("broker.redrive(ids)", "dim")
    broker.redrive([item.id for item in dead])
    entry = broker.audit(1)[0]
    say(f"The audit says: {entry.actor} did '{entry.verb}' on {entry.count} items of '{entry.queue}'.")


def show_end(broker: Broker, ids: list[str]) -> None:
    title("6. The end")
    items = [broker.get(id) for id in ids]
    completed = sum(item.status is Status.COMPLETED for item in items)
    say(f"{len(ids)} orders put, {completed} completed, {broker.stats('orders').dead} dead.", "green")
    mirror = items[ORDERS.index("mirror")]
    failures = sum(entry.event == "failed" for entry in mirror.history)
    say(
        f"The mirror needed {mirror.counters.deliveries} deliveries and {mirror.counters.redrives} redrive; "
        f"its {failures} failures stay on record."
    )


def report(lease: Lease, text: str, colour: str) -> None:
    say(f"  {lease.id[:8]}  {lease.value['number']} {lease.value['what']:9}{text}", colour)


def title(text: str) -> None:
    time.sleep(PAUSE_SECONDS)
    say("")
    say(text, "bold")


def say(text: str, colour: str = "plain") -> None:
    codes = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
    print(f"\033[{codes[colour]}m{text}\033[0m" if IN_COLOUR and colour in codes else text, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    else:
        main()
