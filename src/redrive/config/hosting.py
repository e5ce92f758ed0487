"""One worker of a file, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from redrive.broker.broker import Broker
from redrive.config.commands import complete
from redrive.config.config import ExternalOptions, WorkerOptions
from redrive.config.external import claiming
from redrive.errors import AccessError, Closed, NotFound, RedriveError
from redrive.model.duration import DurationInput
from redrive.task.app import App
from redrive.telemetry import events
from redrive.worker.command_ends import Command
from redrive.worker.command_runner import CommandRunner
from redrive.worker.worker import Worker, worker_name

_log = events.logger("redrive.file")


class Hosted:
    """A worker in a thread. `failed` is set if it ends with an error that nobody foresaw."""

    def __init__(
        self,
        name: str,
        options: WorkerOptions,
        external: ExternalOptions | None,
        worker: Worker,
        runner: CommandRunner,
        failed: threading.Event,
        *,
        until_idle: bool = False,
    ) -> None:
        self.name = name
        self.what = (options, external)
        """What it does: where the file says otherwise, another one takes its place."""
        self._worker = worker
        self._runner = runner
        self._failed = failed
        self._until_idle = until_idle
        self._is_stopping = False
        self.refusal: RedriveError | None = None
        """What refused it its queue, where it ended because of that."""
        self.thread = threading.Thread(target=self._run, name=f"redrive-worker-{name}", daemon=True)

    @property
    def slots_in_use(self) -> int:
        """How many slots it keeps from who takes its place: all of them while it may still lease something."""
        if not self.thread.is_alive():
            return 0
        return self._runner.in_use if self._worker.is_finishing else self._runner.most

    def retire(self) -> None:
        """Let it finish what it runs, however long that takes, and end."""
        self._worker.retire()

    def stop(self) -> None:
        """Let it end. A second time changes nothing. From any thread, or a signal handler."""
        if not self._is_stopping:
            self._is_stopping = True
            self._worker.stop()

    def hurry(self) -> None:
        """Let it end at once."""
        self._is_stopping = True
        self._worker.stop(at_once=True)

    def _run(self) -> None:
        try:
            self._worker.run(until_idle=self._until_idle)
        except Closed:
            pass
        except Exception as error:
            if self._until_idle and isinstance(error, AccessError | NotFound):
                self.refusal = error
                return
            _log.exception("worker_failed", worker=self._worker.name)
            self._failed.set()


def host(
    broker: Broker,
    name: str,
    options: WorkerOptions,
    external: ExternalOptions | None,
    failed: threading.Event,
    before: Sequence[Hosted],
    *,
    shutdown_timeout: DurationInput,
    metrics: bool,
    until_idle: bool,
) -> Hosted:
    """The worker that a file describes, in the place of those `before`: it begins as they finish, slot by slot.

    `external`: how its queue is listed, where it is an external one.
    """
    claim = None
    if external is not None and external.take is not None:
        claim = claiming(broker, options.queue, complete(external.take)[0], options.release_delay)
    command = Command(name, complete(options.run)[0], options.release_delay, options.keep_result)
    runner = CommandRunner(
        command,
        options.concurrency,
        broker._core.store.namespace,
        claim,
        lambda: sum(each.slots_in_use for each in before),
    )
    worker = Worker(
        App(),
        broker=broker,
        queues=[options.queue],
        concurrency=options.concurrency,
        shutdown_timeout=shutdown_timeout,
        name=f"{name}:{worker_name()}",
        metrics=metrics,
        runner=runner,
    )
    return Hosted(name, options, external, worker, runner, failed, until_idle=until_idle)
