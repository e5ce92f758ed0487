"""Runs the tasks of an app: leases, handlers, outcomes."""

TYPE_CHECKING = False  # as in the package above
if TYPE_CHECKING:
    from redrive.worker.worker import Worker as Worker
else:

    def __getattr__(name: str) -> object:
        """Import `Worker` on first use: the parent of commands does without it, to start fast."""
        if name != "Worker":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from redrive.worker.worker import Worker

        return Worker
