"""The turn to write: a fair lock between connections and processes."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, TypeVar

from redrive.errors import Closed, StoreBusy
from redrive.stores.sqlite.database_files import open_lock
from redrive.stores.sqlite.lock_holder import find_holder

try:
    import fcntl
except ImportError:  # Windows: SQLite's own lock, which works but is not fair
    fcntl = None  # type: ignore[assignment]

LONGEST_WAIT_SECONDS = 30.0
"""Maximum wait for a turn. Processes that write release it within milliseconds."""

_T = TypeVar("_T")


class WriteLock:
    """A place in the line of writers: `flock` on a file beside the database. `run` is for one thread at a time.

    SQLite's own lock is not fair, and with many processes some would hardly ever get it. The turn of a process that
    dies is released, and correctness does not depend on it: SQLite's lock is what keeps writers apart.

    The kernel's line is fair, but a wait in it has no time limit and cannot be cancelled. So if the turn is not free, a
    thread waits in that line and executes the work when the turn comes, while the caller waits for the thread. A thread
    that only woke the caller would let all others wait for the wake-up, too, and cost a quarter of the throughput.
    """

    def __init__(self, database: str, mode: int) -> None:
        self._database = database
        self._mode = mode
        self._file: int | None = None if fcntl is None else open_lock(database, mode)
        self._line: _Line | None = None
        self._job: _Job | None = None
        self._cancelled = False

    def run(self, work: Callable[[], _T]) -> _T:
        """Execute the work in a turn. Raises `StoreBusy`, with nothing done, if the turn does not come in time."""
        if self._file is None:
            return work()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._run_in_line(work)
        try:
            return work()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def cancel(self) -> None:
        """Let every wait for a turn, now and later, raise `Closed`. For any thread."""
        self._cancelled = True
        if self._job is not None:
            self._job.cancel()

    def close(self) -> None:
        """Leave the line. A second call does nothing."""
        if self._line is not None:
            self._line.close()
        self._forget()

    def detach_after_fork(self) -> None:
        """Close in a forked child what would keep the parent's turn after the parent has died."""
        if self._line is not None:
            os.close(self._line.file)  # the thread that usually closes it is in the parent only
        self._forget()

    def _forget(self) -> None:
        self._line = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _run_in_line(self, work: Callable[[], _T]) -> _T:
        line = self._line = self._line or _Line(open_lock(self._database, self._mode))
        job = self._job = _Job(work)
        if self._cancelled:
            raise Closed
        line.enter(job)
        match job.wait(LONGEST_WAIT_SECONDS):
            case _Fate.CANCELLED:
                raise Closed
            case _Fate.GIVEN_UP:
                raise StoreBusy(self._database, LONGEST_WAIT_SECONDS, *(find_holder(line.file) or ()))
        if job.error is not None:
            raise job.error
        result: _T = job.result
        return result


class _Fate(Enum):
    """The fate of a job, decided once."""

    BEGUN = auto()
    GIVEN_UP = auto()
    CANCELLED = auto()


class _Job:
    """Work that waits for its turn, in the thread of a line."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._fates: dict[None, _Fate] = {}
        self._running = threading.Lock()
        self._running.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def wait(self, seconds: float) -> _Fate:
        """Wait up to `seconds` for the start, and then for the end. An interrupted caller waits for the end, too."""
        try:
            if self._running.acquire(timeout=seconds):
                self._running.release()
        finally:
            fate = self.decide(_Fate.GIVEN_UP)
            while fate is _Fate.BEGUN and self._running.locked():
                try:
                    with self._running:
                        pass
                except BaseException:  # a second interrupt: the first one is raised
                    continue
        return fate

    def decide(self, fate: _Fate) -> _Fate:
        """Set the fate unless it is decided, and return the decided one. Atomic, for any thread."""
        return self._fates.setdefault(None, fate)

    def cancel(self) -> None:
        """Wake the caller, unless the job has started."""
        if self.decide(_Fate.CANCELLED) is _Fate.CANCELLED:
            self.end()

    def run(self) -> bool:
        """Execute the work in its turn. False if the caller has given up."""
        if self.decide(_Fate.BEGUN) is not _Fate.BEGUN:
            return False
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error
        return True

    def end(self) -> None:
        """Wake the caller."""
        if self._running.locked():
            self._running.release()


class _Line:
    """A thread that waits in the kernel's line for one caller after the other. A caller that gives up leaves it there.

    It opens the lock file separately: a lock belongs to an open file, not to a thread.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="redrive-turn", daemon=True).start()

    def enter(self, job: _Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread once the kernel returns from its wait."""
        self._jobs.put(None)

    def _serve(self) -> None:
        for job in iter(self._jobs.get, None):
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX)
                begun = job.run()
                fcntl.flock(self.file, fcntl.LOCK_UN)
            except OSError as error:  # of the lock; errors of the work are in the job
                begun = job.decide(_Fate.BEGUN) is _Fate.BEGUN
                job.error = error
            if begun:
                job.end()
        os.close(self.file)
