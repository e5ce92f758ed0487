"""Children of a worker and the zygote that forks them."""

from __future__ import annotations

import selectors
import threading
import time

from redrive.telemetry import events
from redrive.worker.child_queue import ChildQueue
from redrive.worker.child_slot import IDLE_DEATH_PAUSES, ExitingChild, Slot
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import Channel, FromChild, ZygoteSetup
from redrive.worker.zygote_process import ZygoteProcess

SUSPICION_SECONDS = 0.1
"""A child whose socket is closed has died. If nothing was heard of that after this long, it is killed to make sure."""
REPORT_SECONDS = 2.0
"""How long the end of a child is waited for before its item is settled without knowing more."""
STALL_SECONDS = 0.01
"""A child that has not reported for this long runs something that takes longer: what it has not taken is reclaimed."""
ZYGOTE_PAUSES = (0.0, 0.2, 1.0, 5.0)
"""How long before a zygote is replaced that died without having forked, by how often that happened in a row."""
_log = events.logger("redrive.worker")


class ChildPool:
    """The children of one worker, one in each slot, and the zygote that forks them. For one thread at a time."""

    def __init__(self, setup: ZygoteSetup, processes: int, in_flight_log: InFlightLog, most_items: int) -> None:
        self._setup = setup
        self._in_flight_log = in_flight_log
        self._most_items = most_items
        self.slots = [Slot(number, in_flight_log) for number in range(processes)]
        self.dying: dict[int, ExitingChild] = {}
        """By process id."""
        self.selector = selectors.DefaultSelector()
        self.zygote: ZygoteProcess | None = None
        self.zygote_at = 0.0
        """When the next one may be started."""
        self._zygote_deaths = 0
        self.ready = threading.Event()
        """The app is imported; or it cannot be, and `problem` says why."""
        self.problem: str | None = None
        self.is_closing = False
        """Whether nothing that dies is replaced."""

    def can_fork(self) -> bool:
        """Whether a slot may have a child now."""
        return not self.is_closing and self.zygote is not None and self.zygote.is_ready

    def timeout(self, longest: float) -> float:
        """Seconds until something is due."""
        now = time.monotonic()
        due = [slot.start_at for slot in self.slots if slot.channel is None and self.can_fork()]
        due += [each.since + (REPORT_SECONDS if each.suspected else SUSPICION_SECONDS) for each in self.dying.values()]
        due += [slot.heard_at + STALL_SECONDS for slot in self.slots if len(slot.jobs) > 1]
        if self.zygote is None and not self.is_closing:
            due.append(self.zygote_at)
        return max(0.0, min([at - now for at in due] + [longest]))

    def kill(self, slot: Slot, because: str) -> None:
        """End the child of a slot now, unless it was killed before."""
        if slot.because is None and self.zygote is not None:
            slot.because = because
            self.zygote.kill(slot.pid)

    def fork(self, slot: Slot) -> None:
        """Ask for a child."""
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
        """Be woken when there is room for what could not be sent."""
        if slot.channel is None:
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if slot.channel.is_full else 0)
        if self.selector.get_key(slot.channel).events != wanted:
            self.selector.modify(slot.channel, wanted, slot)

    def detach(self, slot: Slot) -> None:
        """Let the child of a slot go: it ends when it reads that nobody is there."""
        if slot.channel is None or slot.queue is None:
            return
        self.selector.unregister(slot.channel)
        slot.channel.close()
        slot.queue.close()
        slot.channel = slot.queue = None
        slot.fork = slot.pid = 0
        self._in_flight_log.clear(slot.number)
        self._in_flight_log.assign_process(slot.number, 0)

    def start_zygote(self) -> None:
        """Start one; where that cannot be, it is tried again later."""
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
        """The zygote forked a child, which has nothing to do now, or could not."""
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
        """Its children die with it. What they ran was running when they did."""
        self.selector.unregister(zygote)
        zygote.close()
        self.zygote = None
        if not self.ready.is_set():
            self.problem = zygote.problem or f"the process that imports {self._setup.app} ended before it had done so"
            self.ready.set()
            return
        pause = ZYGOTE_PAUSES[min(self._zygote_deaths, len(ZYGOTE_PAUSES) - 1)]
        self._zygote_deaths += 1
        self.zygote_at = time.monotonic() + pause
        _log.error("zygote_died", problem=zygote.problem, retry_in_seconds=pause)
        for slot in self.slots:
            if slot.pid:
                zygote.kill(slot.pid)  # where the system does not do it
            if not slot.jobs:
                self.detach(slot)

    def close(self) -> None:
        """Let the zygote end, and all children with it."""
        for slot in self.slots:
            for end in (slot.channel, slot.queue):
                if end is not None:
                    end.close()
            self._in_flight_log.assign_process(slot.number, 0)  # its id may soon be that of another process
        if self.zygote is not None:
            self.zygote.close()
