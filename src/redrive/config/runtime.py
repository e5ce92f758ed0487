"""Running a config file: it is applied and watched, and its workers run. Used by `redrive work` and `redrive serve`."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from redrive.broker.broker import Broker
from redrive.config.apply import apply
from redrive.config.config import Config, ExternalOptions, WorkerOptions
from redrive.config.external_queue import Poller, claim_command
from redrive.config.preflight import chosen_workers, listed_queues, missing_programs, unknown_queues, unknown_workers
from redrive.config.watcher import ConfigWatcher
from redrive.config.worker_tables import resolve_program
from redrive.errors import AccessError, Closed, Forbidden, NotFound, RedriveError
from redrive.model.duration import DurationInput
from redrive.task.app import App
from redrive.telemetry import events
from redrive.worker.command_outcome import CommandHandler
from redrive.worker.command_runner import CommandRunner
from redrive.worker.worker import Worker, worker_name

_log = events.logger("redrive.config")


class HostedWorker:
    """A worker in a thread. `failed` is set if it ends with an unexpected error."""

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
        """The options that it runs with; if those of the file differ, another worker replaces it."""
        self._worker = worker
        self._runner = runner
        self._failed = failed
        self._until_idle = until_idle
        self._is_stopping = False
        self.refusal: RedriveError | None = None
        """The error that refused it access to its queue, if it ended because of that."""
        self.thread = threading.Thread(target=self._run, name=f"redrive-worker-{name}", daemon=True)

    @property
    def slots_in_use(self) -> int:
        """The slots that its replacement cannot use yet: all of them while it may still lease items."""
        if not self.thread.is_alive():
            return 0
        return self._runner.in_use if self._worker.is_finishing else self._runner.most

    def retire(self) -> None:
        """Lease nothing more, finish all running commands without a time limit, then end."""
        self._worker.drain()

    def stop(self) -> None:
        """Ask it to end. A second call has no effect. Safe in any thread and in a signal handler."""
        if not self._is_stopping:
            self._is_stopping = True
            self._worker.stop()

    def stop_now(self) -> None:
        """End it immediately."""
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


def start_hosted_worker(
    broker: Broker,
    name: str,
    options: WorkerOptions,
    external: ExternalOptions | None,
    failed: threading.Event,
    before: Sequence[HostedWorker],
    *,
    shutdown_timeout: DurationInput,
    metrics: bool,
    until_idle: bool,
) -> HostedWorker:
    """Return a worker of a file. It replaces those in `before`: it gets their slots one by one as they finish.

    `external`: the options of its queue, if that is an external one.
    """
    claim = None
    if external is not None and external.claim is not None:
        claim = claim_command(broker, options.queue, resolve_program(external.claim)[0], options.release_delay)
    command = CommandHandler(name, resolve_program(options.run)[0], options.release_delay, options.keep_result)
    runner = CommandRunner(
        command,
        options.concurrency,
        broker.core.store.namespace,
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
    return HostedWorker(name, options, external, worker, runner, failed, until_idle=until_idle)


class ConfigRuntime:
    """The config file of a project, running on a broker from `start` to `stop`.

    workers: those of the file that run here; all of them by default, and none with an empty list. External queues are
    listed here if one of these works on them.
    shutdown_timeout: how long `stop` waits for running commands; then it ends them, and their attempts do not count.
    watch: true to apply edits of the file while this runs.
    metrics: true to include the workers in the metrics of the broker.
    """

    def __init__(
        self,
        broker: Broker,
        config: Config,
        *,
        workers: Collection[str] | None = None,
        shutdown_timeout: DurationInput = 30,
        watch: bool = True,
        metrics: bool = False,
    ) -> None:
        self._broker = broker
        self._config = config
        self._chosen = workers
        self._shutdown_timeout = shutdown_timeout
        self._metrics = metrics
        self._hosted: dict[str, HostedWorker] = {}
        self._leaving: list[HostedWorker] = []
        self._pollers: dict[str, tuple[ExternalOptions, Poller]] = {}
        self._watch = ConfigWatcher(config, self._changed) if watch else None
        self._deferred: Collection[str] = ()
        """The queues that keep their old dead queue until its store is available."""
        self._changing = threading.Lock()
        self._is_stopping = False
        self.has_failed = threading.Event()
        """Set if a worker ended with an unexpected error, which is in the log."""

    def start(self) -> None:
        """Apply the file, and start. Raises `InvalidConfig` if the file cannot be used here; then nothing runs."""
        self._apply(self._config)
        with self._changing:
            self._reconcile(self._config)
        if self._watch is not None:
            self._watch.start()

    def run_until_idle(self) -> None:
        """Apply the file, list external queues once, and work until no item is eligible.

        If a worker was refused access to its queue, raises that error after all workers have ended.
        """
        config = self._config
        self._apply(config)
        workers = chosen_workers(config, self._chosen)
        for queue, options in listed_queues(config, workers).items():
            Poller(self._broker, queue, options).poll()
        self._hosted = {name: self._host(config, name, until_idle=True) for name in workers}
        for hosted in self._hosted.values():
            hosted.thread.start()
        if self._is_stopping:
            self.request_stop()
        for hosted in self._hosted.values():
            hosted.thread.join()
        for hosted in self._hosted.values():
            if hosted.refusal is not None:
                raise hosted.refusal

    def check(self) -> bool:
        """Check now whether the file was edited. Return whether an edit was applied."""
        return self._watch is not None and self._watch.check()

    def stop(self) -> None:
        """Lease nothing more, let running commands finish, and end. Returns when all workers have ended."""
        self.request_stop()
        if self._watch is not None:
            self._watch.close()
        self.request_stop()  # again, for workers that the last edit started
        for _, poller in self._pollers.values():
            poller.close()
        for hosted in self._all_workers():
            if hosted.thread.ident is not None:
                hosted.thread.join()

    def request_stop(self) -> None:
        """Ask all workers to end, without waiting. Safe in any thread and in a signal handler."""
        self._is_stopping = True
        for hosted in self._all_workers():
            hosted.stop()

    def stop_now(self) -> None:
        """End running commands immediately. Safe in any thread and in a signal handler."""
        self._is_stopping = True
        for hosted in self._all_workers():
            hosted.stop_now()

    def _all_workers(self) -> list[HostedWorker]:
        return [*self._hosted.values(), *self._leaving]

    def _apply(self, config: Config) -> None:
        """Run the checks that need this machine and this store, and report all problems together; then apply the file.

        A server may allow this program to work but not to change queues: then their current settings are used.
        """
        workers = chosen_workers(config, self._chosen)
        problems = [*unknown_workers(config, self._chosen), *missing_programs(config, workers)]
        with suppress(Forbidden):  # then `apply` is refused too: it lists queues
            problems += unknown_queues(config, workers, [queue.name for queue in self._broker.list_queues()])
        if problems:
            raise config.invalid(*problems)
        try:
            applied = apply(self._broker, config, defer=True)
        except Forbidden as error:
            _log.warning("config_not_applied", file=str(config.file), error=str(error))
        else:
            if applied.deferred and applied.deferred.keys() != self._deferred:
                errors = sorted(set(applied.deferred.values()))
                _log.warning("config_deferred", file=str(config.file), queues=tuple(applied.deferred), errors=errors)
            self._deferred = applied.deferred.keys()
            if applied.deferred and self._watch is not None:
                self._watch.check_again()

    def _changed(self, config: Config) -> None:
        """Apply an edit of the file that is valid, and adapt the workers."""
        self._apply(config)
        with self._changing:
            if self._is_stopping:
                return
            before, self._config = self._config, config
            self._reconcile(config)
        was = _read_once(before)
        if keys := [key for key, value in _read_once(config).items() if value != was[key]]:
            _log.warning("config_needs_restart", file=str(config.file), keys=keys)

    def _reconcile(self, config: Config) -> None:
        """Adapt the workers to the file: new ones start, removed ones finish their commands and end, and changed ones
        replace their predecessors slot by slot as these finish."""
        wanted = chosen_workers(config, self._chosen)
        self._leaving = [hosted for hosted in self._leaving if hosted.thread.is_alive()]
        for name, hosted in list(self._hosted.items()):
            if name not in wanted or hosted.what != (wanted[name], config.external.get(wanted[name].queue)):
                hosted.retire()
                self._leaving.append(hosted)
                del self._hosted[name]
        for name in wanted:
            if name not in self._hosted:
                self._hosted[name] = self._host(config, name)
                self._hosted[name].thread.start()
        self._reconcile_pollers(listed_queues(config, wanted))

    def _reconcile_pollers(self, wanted: Mapping[str, ExternalOptions]) -> None:
        for queue, (options, poller) in list(self._pollers.items()):
            if wanted.get(queue) != options:
                poller.close()
                del self._pollers[queue]
        for queue, options in wanted.items():
            if queue not in self._pollers:
                self._pollers[queue] = (options, Poller(self._broker, queue, options))
                self._pollers[queue][1].start()

    def _host(self, config: Config, name: str, *, until_idle: bool = False) -> HostedWorker:
        options = config.workers[name]
        return start_hosted_worker(
            self._broker,
            name,
            options,
            config.external.get(options.queue),
            self.has_failed,
            [hosted for hosted in self._leaving if hosted.name == name],
            shutdown_timeout=self._shutdown_timeout,
            metrics=self._metrics,
            until_idle=until_idle,
        )


def _read_once(config: Config) -> dict[str, Any]:
    """Return the values that are read only at the start of the program, by key."""
    store = config.store
    return {"url": store.url, "namespace": store.namespace, "name": store.name, "stores": store.stores} | {
        "server": config.server
    }
