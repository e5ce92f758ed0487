"""Runs the tasks of an app: leases, handlers, outcomes."""

from redrive.worker.worker import Worker as Worker
