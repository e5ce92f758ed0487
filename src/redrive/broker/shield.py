"""Work that no signal cuts in two.

Python runs signal handlers in the main thread, between any two of its instructions. What a handler raises there, be it
Ctrl-C or an alarm used as a time limit, can leave a lock taken, a transaction open or a change half made. So the main
thread does no such work: another thread does it, and the main thread waits. When it is interrupted it leaves, and the
work is finished without it.

All other threads do the work themselves: signal handlers do not run there.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from threading import get_ident
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def shielded(work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
    """Do the work where no signal handler runs, and give what it gives."""
    if get_ident() != _main_ident:
        return work(*args, **options)
    result: _T = _wait_for(_Job(work, args, options))
    return result


def claimed(work: Callable[[], _T], unclaimed: Callable[[_T], None]) -> _T:
    """The same, and what it gives is handed to `unclaimed` if the main thread left before it was given that."""
    if get_ident() != _main_ident:
        return work()
    result: _T = _wait_for(_Job(work, unclaimed=unclaimed))
    return result


def shielded_later(work: Callable[_P, object], *args: _P.args, **options: _P.kwargs) -> None:
    """Have the work done where no signal handler runs. The main thread does not wait for it."""
    runner = _free_runner() if get_ident() == _main_ident else None
    if runner is None:
        work(*args, **options)
    else:
        runner.jobs.put(_Job(work, args, options))


class _Job:
    """Work, and what came of it."""

    __slots__ = ("args", "context", "done", "error", "is_left", "options", "result", "unclaimed", "work")

    def __init__(
        self,
        work: Callable[..., Any],
        args: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
        unclaimed: Callable[[Any], None] | None = None,
    ) -> None:
        self.work = work
        self.args = args
        self.options = options or {}
        self.unclaimed = unclaimed
        self.context = contextvars.copy_context()
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_left = False
        """The main thread takes nothing of it any more."""
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self.result = self.context.run(self.work, *self.args, **self.options)
        except BaseException as error:
            self.error, self.unclaimed = error, None

    def finish(self) -> None:
        """After it was run, and taken or left."""
        if self.is_left and self.unclaimed is not None:
            self.unclaimed(self.result)


class _Runner:
    """A thread that works for the main thread."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.is_busy = False
        """The main thread waits for a job here, or has left one that is not done. It takes another runner then."""
        self.is_retired = False
        """It gets no more jobs, and ends after those that it has."""
        threading.Thread(target=self._run, name="redrive-shield", daemon=True).start()

    def _run(self) -> None:
        last: _Job | None = None
        while (job := self.jobs.get()) is not None:
            job.run()
            last = job
            self.is_busy = False
            job.done.release()
        if last is not None:
            last.finish()

    def retire(self) -> None:
        self.is_retired = True
        self.jobs.put(None)


def _wait_for(job: _Job) -> Any:
    runner = _free_runner()
    if runner is None:
        job.run()
        return _outcome(job)
    try:
        runner.is_busy = True
        runner.jobs.put(job)
        job.done.acquire()
        return _outcome(job)
    except BaseException as error:
        # No signal handler runs until both are set: nothing is called in between.
        job.is_left = runner.is_retired = error is not job.error
        raise
    finally:
        job.error = None  # its traceback refers to this frame
        if runner.is_retired or runner is not _runner:
            runner.retire()


def _outcome(job: _Job) -> Any:
    if job.error is not None:
        raise job.error
    return job.result


def _free_runner() -> _Runner | None:
    """One that has nothing to do. None while Python shuts down: threads neither start nor run then."""
    global _runner
    if sys.is_finalizing():
        return None
    runner = _runner
    if runner is None or runner.is_busy or runner.is_retired:
        try:
            runner = _Runner()
        except RuntimeError:
            return None
        _runner = runner
    return runner


_main_ident = threading.main_thread().ident
_runner: _Runner | None = None


def _after_fork() -> None:
    """The thread that forked is the main thread of the child, and the only one."""
    global _main_ident, _runner
    _main_ident, _runner = get_ident(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
