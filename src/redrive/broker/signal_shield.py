"""Work that no signal handler can interrupt.

Python runs signal handlers in the main thread, between any two of its instructions. An exception of a handler, such as
Ctrl-C or an alarm used as a time limit, can leave a lock held, a transaction open or a change half made. So the main
thread does no such work: another thread does it, and the main thread waits. If it is interrupted it leaves, and the
work is finished without it.

Handlers run where a call starts or ends, and at each iteration of a loop. Steps that belong together in the main thread
are therefore written without a call in between, or are one call of a function in C, which no handler divides.

All other threads do the work themselves: signal handlers do not run there.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import weakref
from _thread import start_new_thread
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import get_ident
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def shielded(work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
    """Do the work where no signal handler runs, and return its result."""
    if get_ident() != _main_ident:
        return work(*args, **options)
    result: _T = _wait_for(_Job(work, args, options))
    return result


def claimed(work: Callable[[], _T], unclaimed: Callable[[_T], None]) -> _T:
    """Do the work as `shielded` does; if the main thread leaves before it has the result, `unclaimed` gets that."""
    if get_ident() != _main_ident:
        return work()
    result: _T = _wait_for(_Job(work, unclaimed=unclaimed))
    return result


def shielded_later(work: Callable[_P, object], *args: _P.args, **options: _P.kwargs) -> None:
    """Do the work where no signal handler runs, without a wait of the main thread for its end."""
    if get_ident() != _main_ident:
        work(*args, **options)
        return
    job = _Job(work, args, options)
    runner = _free_runner()
    if runner is None:
        job.run()
    else:
        runner.jobs.put(job.run)


class _Job:
    """Work with its result or error."""

    __slots__ = ("args", "context", "done", "error", "has_result", "options", "result", "unclaimed", "work")

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
        self.has_result = False
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self.result = self.context.run(self.work, *self.args, **self.options)
            self.has_result = True
        except BaseException as error:
            self.error = error
        self.done.release()

    def give_up(self) -> None:
        """Dispose of the result of a finished job that the main thread has left."""
        if self.has_result and self.unclaimed is not None:
            self.unclaimed(self.result)


class _Runner:
    """A thread that works for the main thread. It does its jobs, and ends once nothing refers to this object.

    So a runner that the main thread leaves, or never started to use, needs no further step of the main thread.
    """

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.is_busy = False
        """True if the main thread waits for a job here, or has left one. It takes another runner then."""
        # The call is put(None, <the reference>), without a line of Python that a handler could interrupt.
        self.end = weakref.ref(self, partial(self.jobs.put, None))


def _wait_for(job: _Job) -> Any:
    runner = _free_runner()
    if runner is None:
        job.run()
        if job.error is not None:
            raise job.error
        return job.result
    try:
        runner.is_busy = True
        runner.jobs.put(job.run)
        job.done.acquire()
        # No handler runs from here until the caller has it: nothing is called.
        if job.error is not None:
            raise job.error
        runner.is_busy = False
        return job.result
    except BaseException as error:
        if error is job.error:
            runner.is_busy = False
        else:
            runner.is_busy = True
            runner.jobs.put(job.give_up)
        raise
    finally:
        job.error = None  # its traceback refers to this frame
        del runner  # as does the traceback of an interruption, which may be kept


def _free_runner() -> _Runner | None:
    """Return an idle runner. None while Python shuts down: threads neither start nor run then."""
    global _runner
    if sys.is_finalizing():
        return None
    runner = _runner
    if runner is None or runner.is_busy:
        runner = _Runner()
        try:
            start_new_thread(_start, (runner.jobs, runner.end))
        except RuntimeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # by a signal handler
            return None
        _runner = runner
    return runner


def _start(*args: Any) -> None:
    """Start the serving thread. Runs in an unnamed thread: in the main thread `Thread.start` could be interrupted."""
    try:
        threading.Thread(target=_serve, args=args, name="redrive-shield", daemon=True).start()
    except RuntimeError:
        _serve(*args)


def _serve(jobs: SimpleQueue[Callable[[], None] | None], end: weakref.ref[_Runner]) -> None:
    """Run jobs until None. `end` is only kept alive: the callback of a weak reference that is gone is not called."""
    while (work := jobs.get()) is not None:
        work()
        del work  # else the waiting thread would keep the job alive


_main_ident = threading.main_thread().ident
_runner: _Runner | None = None


def _after_fork() -> None:
    """Reset a forked child, whose only and main thread is the one that forked."""
    global _main_ident, _runner
    _main_ident, _runner = get_ident(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
