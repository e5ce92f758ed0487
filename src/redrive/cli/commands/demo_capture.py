"""`redrive demo capture`: calls of a service that fails are captured and retried, and one command retries the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from typing import TYPE_CHECKING, Any

from redrive.capture import DeadLetterQueue
from redrive.capture.capture_settings import DEFAULT_QUEUE
from redrive.cli.commands.demo import check_new
from redrive.cli.common_options import as_json
from redrive.cli.output import in_colour, print_json, print_line
from redrive.cli.store_target import StoreTarget, open_place
from redrive.errors import Refused
from redrive.telemetry import events

if TYPE_CHECKING:
    from rich.table import Table

ORDERS = 60
RETRIES = 2
COLUMNS = ("captured", "retried", "pending", "retrying", "exhausted", "completed")
_CALL_SECONDS = 0.06
"""The duration of a call in a terminal, so that the user can follow the demo."""
_LOOK_SECONDS = 0.1


class PaymentService:
    """A service that fails: of five orders, one is charged, three at a retry, and one only after a repair."""

    def __init__(self, pause: float) -> None:
        self.is_repaired = False
        self._pause = pause
        self._calls: Counter[int] = Counter()

    def charge(self, order: int) -> str:
        """Charge an order."""
        sleep(self._pause)
        self._calls[order] += 1
        needed = (1, 2, 2, 3, 1_000)[order % 5]
        if self._calls[order] < needed and not self.is_repaired:
            raise ConnectionError(f"order {order}: the payment service does not answer")
        return f"order {order} is paid"


def run(place: StoreTarget) -> None:
    """Run the demo on a store."""
    if place.is_memory:
        raise Refused("memory:// exists only in this process, and another one retries the tasks in it; name a file")
    in_terminal = sys.stdout.isatty() and not as_json()
    with events.muted(), open_place(place, create=True) as broker:
        check_new(broker, (DEFAULT_QUEUE,))
        with DeadLetterQueue(broker, concurrency=4) as dlq:
            service = PaymentService(_CALL_SECONDS if in_terminal else 0)

            @dlq.guard(policy="immediate", max_retries=RETRIES, on_failure="handle", name="charge")
            def charge(order: int) -> str:
                return service.charge(order)

            _say(f"{ORDERS} orders are charged. The payment service fails most calls; each failed call is captured.")
            with _live(dlq) as show:
                dlq.start_retry_processor()
                for order in range(ORDERS):
                    charge(order)
                    show()
                _wait(dlq, show, lambda counts: counts["pending"] + counts["retrying"] == 0)
            exhausted = _counts(dlq)["exhausted"]
            _say(f"\n{exhausted} are exhausted: their {RETRIES} retries failed too. They are kept.")
            _say("The service is repaired, and one command retries them:")
            service.is_repaired = True
            _retry_the_rest(place, exhausted)
            with _live(dlq) as show:
                _wait(dlq, show, lambda counts: counts["completed"] == counts["captured"])
            found = _counts(dlq)
    if as_json():
        print_json({"url": place.shown, "namespace": place.namespace, "brought_back": exhausted, **found})
        return
    _say(f"\nAll {found['captured']} captured calls are completed. Nothing was lost. Type next:\n")
    _say(f"  export REDRIVE_URL={place.shown}\n  redrive capture status\n  redrive capture list\n  redrive audit")


def _say(text: str) -> None:
    if not as_json():
        print_line(text)


def _retry_the_rest(place: StoreTarget, count: int) -> None:
    """Run the command that an operator types."""
    words = ["capture", "retry", "--exhausted", "--yes", str(count)]
    _say(f"\n$ redrive {' '.join(words)}")
    named = {"REDRIVE_URL": place.url, "REDRIVE_NAMESPACE": place.namespace, "REDRIVE_TOKEN": place.token or ""}
    done = subprocess.run(
        [sys.executable, "-m", "redrive", *words],
        env={**os.environ, **named},
        capture_output=True,
        text=True,
        check=False,
    )
    _say(done.stdout)
    if done.returncode:
        raise Refused(f"the command ended with {done.returncode}: {done.stderr}")


def _counts(dlq: DeadLetterQueue) -> dict[str, int]:
    statistics = dlq.get_statistics()
    totals = statistics["lifetime_stats"]
    return {
        "captured": totals["enqueued_total"],
        "retried": totals["retry_success"] + totals["retry_failed"],
        **{name: statistics["status_breakdown"][name] for name in COLUMNS[2:]},
    }


def _wait(dlq: DeadLetterQueue, show: Callable[[], object], is_done: Callable[[dict[str, int]], bool]) -> None:
    while not is_done(_counts(dlq)):
        show()
        sleep(_LOOK_SECONDS)
    show()


@contextmanager
def _live(dlq: DeadLetterQueue) -> Iterator[Callable[[], object]]:
    """Show a live table in a terminal; elsewhere print the counts once, at the end."""
    if as_json() or not sys.stdout.isatty():
        yield lambda: None
        if not as_json():
            print_line("  ".join(f"{name} {count}" for name, count in _counts(dlq).items()))
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        yield lambda: live.update(_drawing(_counts(dlq)), refresh=True)


def _drawing(counts: dict[str, int]) -> Table:
    from rich.table import Table

    styles: dict[str, Any] = {"exhausted": "red", "completed": "green", "retrying": "blue"} if in_colour() else {}
    drawn = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        drawn.add_column(name, justify="right", style=styles.get(name))
    drawn.add_row(*(f"{counts[name]:,}" for name in COLUMNS))
    return drawn
