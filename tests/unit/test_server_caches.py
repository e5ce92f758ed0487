"""What a server remembers between requests: answers it gave, and what arrived."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from redrive.broker.notifier import Notifier
from redrive.server import long_poll as arrivals_module
from redrive.server.long_poll import ArrivalLog
from redrive.server.replay_cache import ReplayCache

pytestmark = pytest.mark.anyio


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def _give(answer: str) -> str:
    return answer


async def _end(answers: ReplayCache[str], id: str, answer: str) -> None:
    work = asyncio.ensure_future(_give(answer))
    answers.add(id, work)
    await work
    await asyncio.sleep(0)


async def test_answer_is_known_for_a_minute() -> None:
    time = Time()
    answers: ReplayCache[str] = ReplayCache(len, clock=time)
    before = answers.number
    await _end(answers, "a", "first")
    seen = answers.number
    time.now += 59
    await _end(answers, "b", "second")
    work = answers.get("a")
    assert work is not None
    assert await work == "first"
    assert answers.covers_since(before)
    time.now += 2
    await _end(answers, "c", "third")
    assert answers.get("a") is None
    assert not answers.covers_since(before)
    assert answers.covers_since(seen)


async def test_work_that_is_not_done_yet_is_known() -> None:
    answers: ReplayCache[str] = ReplayCache(len)
    gate = asyncio.Event()

    async def wait() -> str:
        await gate.wait()
        return "done"

    answers.add("a", asyncio.ensure_future(wait()))
    work = answers.get("a")
    gate.set()
    assert work is not None
    assert await work == "done"


async def test_work_that_raised_is_forgotten_at_once() -> None:
    answers: ReplayCache[str] = ReplayCache(len)

    async def refuse() -> str:
        raise ValueError

    work = asyncio.ensure_future(refuse())
    answers.add("a", work)
    with pytest.raises(ValueError):  # noqa: PT011
        await work
    await asyncio.sleep(0)
    assert answers.get("a") is None
    assert answers.covers_since(0)


@pytest.mark.parametrize("bound", [{"limit": 3}, {"max_bytes": 12}])
async def test_what_is_too_much_is_forgotten_and_that_is_known(bound: dict[str, Any]) -> None:
    time = Time()
    answers: ReplayCache[str] = ReplayCache(len, clock=time, **bound)
    seen = []
    for n in range(5):
        time.now += 1
        seen.append(answers.number)
        await _end(answers, f"{n}", "four")
    assert [answers.get(f"{n}") is not None for n in range(5)] == [False, False, True, True, True]
    assert len(answers) == 3
    assert [answers.covers_since(number) for number in seen] == [False, False, True, True, True]


async def test_what_came_early_and_ended_late_does_not_hide_what_was_forgotten_before() -> None:
    answers: ReplayCache[str] = ReplayCache(len, limit=1)
    gate = asyncio.Event()

    async def wait() -> str:
        await gate.wait()
        return "late"

    late = asyncio.ensure_future(wait())
    answers.add("late", late)
    seen = answers.number
    await _end(answers, "a", "first")
    await _end(answers, "b", "second")
    assert not answers.covers_since(seen)
    gate.set()
    await late
    await asyncio.sleep(0)
    await _end(answers, "c", "third")
    assert answers.get("late") is None
    assert not answers.covers_since(seen)


class Source:
    """Where arrivals come from."""

    def __init__(self) -> None:
        self.tell: Callable[[Mapping[str, int] | None], None] = lambda _: None

    def subscribe(self, follower: Callable[[Mapping[str, int] | None], None]) -> None:
        self.tell = follower


@pytest.fixture
async def source() -> Source:
    return Source()


@pytest.fixture
async def arrivals(source: Source) -> ArrivalLog:
    notify: Any = source
    assert hasattr(Notifier, "subscribe")
    return ArrivalLog(notify)


async def _waiting(arrivals: ArrivalLog, *queues: str, seconds: float = 30.0) -> asyncio.Task[None]:
    """A client that waits for queues, and is waiting when this returns."""
    task = asyncio.ensure_future(arrivals.wait(arrivals.number, queues, seconds))
    await asyncio.sleep(0)
    return task


async def _told(tasks: list[asyncio.Task[None]]) -> list[bool]:
    for _ in range(5):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def _drop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_arrival_is_told_to_who_waits_for_that_queue(arrivals: ArrivalLog, source: Source) -> None:
    tasks = [await _waiting(arrivals, "jobs"), await _waiting(arrivals, "mails")]
    known = arrivals.number
    source.tell({"jobs": 1})
    assert await _told(tasks) == [True, False]
    assert arrivals.since(known, ("jobs", "mails")) == ("jobs",)
    assert arrivals.since(arrivals.number, ("jobs", "mails")) == ()
    await _drop(tasks)


async def test_as_many_are_told_at_once_as_items_arrived_and_those_that_waited_longest(
    arrivals: ArrivalLog, source: Source
) -> None:
    tasks = [await _waiting(arrivals, "jobs") for _ in range(5)]
    source.tell({"jobs": 2})
    assert await _told(tasks) == [True, True, False, False, False]
    source.tell({"jobs": 0})
    assert await _told(tasks) == [True, True, True, False, False]
    await _drop(tasks)


async def test_others_are_told_a_moment_later(
    arrivals: ArrivalLog, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals_module, "LATER_SECONDS", 0.01)
    tasks = [await _waiting(arrivals, "jobs") for _ in range(3)]
    source.tell({"jobs": 1})
    await asyncio.wait_for(asyncio.gather(*tasks), 30)


async def test_what_arrived_before_the_wait_is_told_at_once(arrivals: ArrivalLog, source: Source) -> None:
    known = arrivals.number
    source.tell({"jobs": 1})
    await asyncio.wait_for(arrivals.wait(known, ("jobs",), 600), 120)


async def test_change_that_nobody_knows_is_told_to_all(arrivals: ArrivalLog, source: Source) -> None:
    tasks = [await _waiting(arrivals, "jobs"), await _waiting(arrivals, "mails")]
    known = arrivals.number
    source.tell(None)
    assert await _told(tasks) == [True, True]
    assert arrivals.since(known, ("jobs",)) is None


async def test_changes_that_nobody_knows_are_told_together(
    arrivals: ArrivalLog, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals_module, "ANYWHERE_SECONDS", 1.0)
    source.tell(None)
    await _told([])
    known = arrivals.number
    task = await _waiting(arrivals, "jobs")
    for _ in range(10):
        source.tell(None)
    assert await _told([task]) == [False]
    await asyncio.wait_for(task, 30)
    assert arrivals.number == known + 1
    assert arrivals.since(known, ("jobs",)) is None


async def test_commit_without_arrivals_is_told_after_a_while(
    arrivals: ArrivalLog, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals_module, "ANYTHING_SECONDS", 1.0)
    known = arrivals.number
    (task,) = [await _waiting(arrivals, "jobs")]
    source.tell({})
    assert await _told([task]) == [False]
    await asyncio.wait_for(task, 30)
    assert arrivals.number > known
    assert arrivals.since(known, ("jobs",)) == ()


async def test_wait_ends_when_its_time_is_over(arrivals: ArrivalLog) -> None:
    await asyncio.wait_for(arrivals.wait(arrivals.number, ("jobs",), 0.01), 30)


async def test_who_waits_for_all_queues_is_told_of_each(arrivals: ArrivalLog, source: Source) -> None:
    task = asyncio.ensure_future(arrivals.wait(arrivals.number, None, 30))
    await asyncio.sleep(0)
    known = arrivals.number
    source.tell({"jobs": 1, "mails": 1})
    assert await _told([task]) == [True]
    assert sorted(arrivals.since(known, None) or ()) == ["jobs", "mails"]
