"""Children of a worker and the zygote that forks them."""

from __future__ import annotations

import selectors
import threading
import time

from redrive.model.failure import Failure
from redrive.telemetry import events
from redrive.worker.child_queue import ChildQueue
from redrive.worker.child_slot import IDLE_DEATH_PAUSES, ExitingChild, Slot
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import Channel, FromChild, ZygoteSetup
from redrive.worker.zygote_process import ZygoteProcess

SUSPICION_SECONDS = 0.1
"""Seconds to wait for the exit report of a child whose socket is closed, before it is killed to make sure."""
REPORT_SECONDS = 2.0
"""Seconds to wait for the exit report of a child before its item is settled without one."""
STALL_SECONDS = 0.01
"""Seconds without a report after which the items that a child has not taken are reclaimed: it runs a long one."""
ZYGOTE_PAUSES = (0.0, 0.2, 1.0, 5.0)
"""Seconds before a zygote that died is replaced, by the number of deaths since the last fork."""
_log = events.logger("redrive.worker")


class ChildPool:
    """The children of one worker, one in each slot, and the zygote that forks them. For one thread at a time."""

    def __init__(self, setup: ZygoteSetup, processes: int, in_flight_log: InFlightLog, most_items: int) -> None:
        self._setup = setup
        self._in_flight_log = in_flight_log
        self._most_items = most_items
        self.slots = [Slot(number, in_flight_log) for number in range(processes)]
        self.dying: dict[int, ExitingChild] = {}
        """Children whose exit is not reported yet, by process id."""
        self.selector = selectors.DefaultSelector()
        self.zygote: ZygoteProcess | None = None
        self.zygote_at = 0.0
        """Earliest time to start the next zygote."""
        self._zygote_deaths = 0
        self.ready = threading.Event()
        """Set once the app is imported, or cannot be: then `problem` has the reason."""
        self.problem: str | None = None
        self.is_closing = False
        """True if processes that die are not replaced."""

    def can_fork(self) -> bool:
        """Return whether a slot can get a child now."""
        return not self.is_closing and self.zygote is not None and self.zygote.is_ready

    def timeout(self, longest: float) -> float:
        """Return the seconds until something is due, at most `longest`."""
        now = time.monotonic()
        due = [slot.start_at for slot in self.slots if slot.channel is None and self.can_fork()]
        due += [each.since + (REPORT_SECONDS if each.suspected else SUSPICION_SECONDS) for each in self.dying.values()]
        due += [slot.heard_at + STALL_SECONDS for slot in self.slots if slot.may_reclaim]
        if self.zygote is None and not self.is_closing:
            due.append(self.zygote_at)
        return max(0.0, min([at - now for at in due] + [longest]))

    def kill(self, slot: Slot, because: str | Failure) -> None:
        """Kill the child of a slot, unless it was killed before."""
        if slot.because is None and self.zygote is not None:
            slot.because = because
            self.zygote.kill(slot.pid)

    def fork(self, slot: Slot) -> None:
        """Ask the zygote for a child in a slot. If it cannot be asked, the slot pauses before the next attempt."""
        assert self.zygote is not None
        queue = ChildQueue()
        try:
            number, connection = self.zygote.fork(slot.number, queue)
        except OSError as error:
            queue.close()
            slot.start_at = time.monotonic() + IDLE_DEATH_PAUSES[-1]
            _log.warning("fork_failed", error=str(error))
            return
        channel: Channel[FromChild] = Channel(connection, FromChild)
        slot.attach(self.zygote, number, channel, queue, self._most_items)
        self.selector.register(channel, selectors.EVENT_READ, slot)

    def watch(self, slot: Slot) -> None:
        """Wait for room in the channel of a slot if it has unsent data, else only for reports."""
        if slot.channel is None:
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if slot.channel.is_full else 0)
        if self.selector.get_key(slot.channel).events != wanted:
            self.selector.modify(slot.channel, wanted, slot)

    def detach(self, slot: Slot) -> None:
        """Close the channel and queue of the child of a slot, which ends when it reads that, and free the slot."""
        if slot.channel is None or slot.queue is None:
            return
        self.selector.unregister(slot.channel)
        slot.channel.close()
        slot.queue.close()
        slot.channel = slot.queue = None
        slot.fork = slot.pid = 0
        self._in_flight_log.clear(slot.number)
        self._in_flight_log.assign_process(slot.number, 0)

    def retire(self, slot: Slot) -> None:
        """Let the child of a slot end, and replace it."""
        self.detach(slot)
        slot.start_at = 0.0

    def start_zygote(self) -> None:
        """Start a zygote, or schedule a retry if the system refuses; before the first import, set `problem` as well."""
        try:
            self.zygote = ZygoteProcess(self._setup)
        except OSError as error:
            _log.error("zygote_not_started", error=str(error), retry_in_seconds=ZYGOTE_PAUSES[-1])
            self.zygote_at = time.monotonic() + ZYGOTE_PAUSES[-1]
            if not self.ready.is_set():
                self.problem = f"no process can be started to import {self._setup.app}: {error}"
                self.ready.set()
            return
        self.selector.register(self.zygote, selectors.EVENT_READ, self.zygote)

    def forked(self, number: int, pid: int, problem: str | None) -> None:
        """Handle the answer to a fork: record the process id, or free the slot and let it pause."""
        slot = next((slot for slot in self.slots if slot.fork == number), None)
        if slot is None:
            return
        if problem is not None:
            _log.warning("fork_failed", error=problem)
            self.detach(slot)
            slot.start_at = time.monotonic() + IDLE_DEATH_PAUSES[-1]
            return
        slot.pid = pid
        self._zygote_deaths = 0
        self._in_flight_log.assign_process(slot.number, pid)

    def lose_zygote(self, zygote: ZygoteProcess) -> None:
        """Kill the children of a dead zygote, and schedule the next one.

        Before the first import, set `problem`, unless it was killed: then a few more are tried.
        """
        self.selector.unregister(zygote)
        zygote.close()
        self.zygote = None
        if not self.ready.is_set() and not (zygote.was_killed and self._zygote_deaths < len(ZYGOTE_PAUSES) - 1):
            self.problem = zygote.problem or f"the process that imports {self._setup.app} ended before it had done so"
            self.ready.set()
            return
        pause = ZYGOTE_PAUSES[min(self._zygote_deaths, len(ZYGOTE_PAUSES) - 1)]
        self._zygote_deaths += 1
        self.zygote_at = time.monotonic() + pause
        _log.error("zygote_died", problem=zygote.problem, retry_in_seconds=pause)
        for slot in self.slots:
            if slot.pid:
                zygote.kill(slot.pid)  # not every system kills children with their parent
            if not slot.jobs:
                self.detach(slot)

    def close(self) -> None:
        """Close all channels, which ends the zygote and all children, and wait for the zygote."""
        for slot in self.slots:
            for end in (slot.channel, slot.queue):
                if end is not None:
                    end.close()
            self._in_flight_log.assign_process(slot.number, 0)  # its id may soon be that of another process
        if self.zygote is not None:
            self.zygote.close()
