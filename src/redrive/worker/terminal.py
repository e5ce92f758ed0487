"""A worker for the tasks of an app, as `redrive work module:app` runs it: in the terminal, or as a service."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from redrive.worker.frames import Orders
from redrive.worker.loading import load_app
from redrive.worker.supervised import serving_metrics, worker_of


def can_supervise() -> bool:
    """Whether this system lets a worker have a supervisor: one that can fork."""
    return hasattr(os, "fork")


def supervise(orders: Orders, *, watchdog_seconds: float, reload: bool, view: bool) -> int:
    """Run a worker with a supervisor, until it is told to stop. Gives the exit code."""
    from redrive.worker.reload import Sources
    from redrive.worker.supervisor import Supervisor

    sources = Sources(Path.cwd()) if reload else None
    if not view:
        return Supervisor(orders, watchdog_seconds=watchdog_seconds, sources=sources).run()
    from redrive.worker.view import LiveView

    with LiveView(f"redrive work {orders.app}") as live:
        return Supervisor(orders, watchdog_seconds=watchdog_seconds, sources=sources, view=live).run()


def work_here(orders: Orders) -> None:
    """Without a supervisor, in this process."""
    with load_app(orders.app, orders.url) as app:
        worker = worker_of(app, orders, None)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: worker.stop())
        with serving_metrics(app, orders):
            worker.run(until_idle=orders.until_idle)
