"""An error at every line of a delivery, and of every callback: it is the failure of its message, and the loop goes on.

The loops run in the main thread, where an exit or a cancellation is no interruption unless a signal handler raised it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import pytest
from tests.acceptance.interrupted import forget_async_exceptions, is_between
from tests.acceptance.interruptions import SOURCES
from tests.sizes import THOROUGH
from tests.until import until

from redrive import Item, Status, connect
from redrive.capture import DeadLetterQueue
from redrive.errors import Closed, PayloadTooLarge, QueueNotFound
from redrive.mailbox import (
    DeadLetter,
    Discard,
    DLQAction,
    DLQConsumer,
    DLQPolicy,
    EvalLoop,
    EvalRequest,
    EvalResult,
    Keep,
    Mailbox,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    Message,
    MessageLoop,
    Replay,
    RequestFailedError,
    RequestLoop,
    Score,
)
from redrive.model.death import DeadReason
from redrive.model.item import HistoryEvent
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import FakeClock

# Of the handler of a letter, which is struck before it is awaited.
pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore:coroutine 'consumer"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
STRIDE = 1 if THOROUGH else 3
Ask = MainLoopRequest[str]
Answer = MainLoopResult[str]
DELIVER = MessageLoop._deliver.__code__


class Unreadable(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


KINDS: tuple[Callable[[], BaseException], ...] = (
    Unreadable,
    lambda: KeyError("struck"),
    lambda: SystemExit("struck"),
    lambda: asyncio.CancelledError("struck"),
    lambda: PayloadTooLarge("struck", 2, 1, None),
    lambda: QueueNotFound("struck"),
    Closed,
)
TYPES = {type(kind()) for kind in KINDS}


class Own(Exception):
    """The error of a handler."""


class Strike:
    """Raises once in the first delivery, before its n-th line of Redrive."""

    def __init__(self, nth: int, error: BaseException) -> None:
        self._left = itertools.count(nth, -1)
        self._error = error
        self._deliveries = 0
        self._is_inside = False
        self.place = ""

    def run(self, work: Callable[[], None]) -> None:
        forget_async_exceptions()
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            work()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is DELIVER and event in ("call", "return"):
            self._deliveries += event == "call"
            self._is_inside = event == "call" and self._deliveries == 1
        if not self._is_inside or not frame.f_code.co_filename.startswith(SOURCES):
            return None
        if event == "line" and not is_between(frame) and next(self._left) == 1:
            self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
            sys.settrace(None)
            raise self._error
        return self._trace


class Post:
    """Mailboxes in one store, whose clock the test moves."""

    def __init__(self, url: str) -> None:
        self.clock = FakeClock()
        self.broker = connect(url, clock=self.clock, maintenance=False)
        kept: Any = {"keep_completed": "1d"}
        self.requests: Mailbox[Ask, Answer] = Mailbox(self.broker, "requests", body=Ask, reply=Answer, settings=kept)
        self.evaluations: Mailbox[EvalRequest[str, str], EvalResult] = Mailbox(
            self.broker, "evaluations", body=EvalRequest[str, str], reply=EvalResult, settings=kept
        )
        self.replies: Mailbox[Answer, None] = Mailbox(self.broker, "replies", body=Answer)
        self.replies.approximate_count()  # it exists
        self.dead: Mailbox[DeadLetter[Ask], None] = Mailbox(
            self.broker, "requests-dlq", body=DeadLetter[Ask], settings=kept
        )
        self.policy: DLQPolicy[Ask, Answer] = DLQPolicy(self.dead, max_delivery_count=1)
        self.handled: list[str] = []

    def handle(self, text: str) -> str:
        self.handled.append(text)
        return text.upper()

    def refuse(self, text: str) -> str:
        self.handled.append(text)
        raise Own(text)

    def send_requests(self) -> list[str]:
        return [self.requests.send(MainLoopRequest(text), reply_to=self.replies) for text in ("struck", "next")]

    def send_evaluations(self) -> list[str]:
        return [self.evaluations.send(EvalRequest(text, text), reply_to="replies") for text in ("struck", "next")]

    def send_letters(self) -> list[str]:
        ids = self.send_requests()
        loop: MainLoop[str, str] = MainLoop(requests=self.requests, handler=self.refuse, dlq=self.policy)
        loop.run(max_iterations=2, wait_time_seconds=0)
        self.handled.clear()
        return ids

    def answered(self) -> int:
        received = self.replies.receive(max_messages=10)
        for message in received:
            message.acknowledge()
        return len(received)

    def clear(self) -> None:
        self.handled.clear()
        for mailbox in (self.requests, self.evaluations, self.replies, self.dead):
            mailbox.purge(mailbox.approximate_count())

    def settled(self, id: str) -> Item:
        """The item, after its visibility timeout if it is still held; then it has a loss, and is there again."""
        item = self.broker.get(id)
        if item.status is not Status.ACTIVE:
            return item
        self.clock.advance("10m")
        self.broker.run_maintenance()
        item = self.broker.get(id)
        assert item.counters.losses == 1 or (item.death is not None and item.death.counters.losses == 1)
        return item


class Plain(MessageLoop[Ask, Answer]):
    """A loop that a program has written."""

    def __init__(self, post: Post) -> None:
        super().__init__(post.requests, 300)
        self._post = post

    def handle(self, message: Message[Ask, Answer], visibility_timeout: float) -> None:
        text = self._post.handle(message.body.request)
        message.acknowledge(reply=MainLoopResult(message.body.request_id, text))


@dataclass(frozen=True)
class Case:
    """A loop, what it receives, and how a delivery without an error ends."""

    send: Callable[[Post], list[str]]
    loop: Callable[[Post], MessageLoop[Any, Any]]
    ends: Callable[[Item], bool]
    may_complete: bool = True


def consumer(post: Post, action: DLQAction | None, error: Exception | None = None) -> DLQConsumer[Ask]:
    async def handler(letter: DeadLetter[Ask]) -> DLQAction | None:
        post.handled.append(letter.body.request)
        if error is not None:
            raise error
        return action

    return DLQConsumer(mailbox=post.dead, handler=handler)


def evaluating(post: Post) -> EvalLoop[str, str, str]:
    loop: MainLoop[str, str] = MainLoop(requests=post.requests, handler=post.handle)
    score = lambda output, expected: Score(1.0, output == expected)  # noqa: E731
    return EvalLoop(loop=loop, evaluator=score, requests=post.evaluations)


def is_completed(item: Item) -> bool:
    return item.status is Status.COMPLETED


def is_kept(item: Item) -> bool:
    """It is in the dead-letter mailbox, and comes back in an hour."""
    return (item.queue, item.status) == ("requests-dlq", Status.PENDING) and item.ready_at is not None


CASES = {
    "answered": Case(
        Post.send_requests, lambda post: MainLoop(requests=post.requests, handler=post.handle), is_completed
    ),
    "dead": Case(
        Post.send_requests,
        lambda post: MainLoop(requests=post.requests, handler=post.refuse, dlq=post.policy),
        lambda item: item.queue == "requests-dlq" and item.status is Status.PENDING,
        may_complete=False,
    ),
    "retried": Case(
        Post.send_requests,
        lambda post: MainLoop(requests=post.requests, handler=post.refuse),
        lambda item: item.status is Status.FAILED,
        may_complete=False,
    ),
    "evaluated": Case(Post.send_evaluations, evaluating, is_completed),
    "plain": Case(Post.send_requests, Plain, is_completed),
    "processed": Case(Post.send_letters, lambda post: consumer(post, None), is_completed),
    "replayed": Case(
        Post.send_letters,
        lambda post: consumer(post, Replay),
        lambda item: item.queue == "requests",
        may_complete=False,
    ),
    "discarded": Case(
        Post.send_letters,
        lambda post: consumer(post, Discard),
        lambda item: item.status is Status.ARCHIVED,
        may_complete=False,
    ),
    "kept": Case(Post.send_letters, lambda post: consumer(post, Keep), is_kept, may_complete=False),
    "letter refused": Case(Post.send_letters, lambda post: consumer(post, None, Own()), is_kept, may_complete=False),
}


@pytest.fixture(params=["memory", "sqlite"])
def post(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Post]:
    caplog.set_level(logging.CRITICAL, "redrive")
    post = Post("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/mail.db")
    yield post
    post.broker.close()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_error_at_any_line_of_a_delivery_is_its_failure_and_the_loop_goes_on(post: Post, case: Case) -> None:
    held: set[str] = set()
    for nth in itertools.count(1, STRIDE):
        error = KINDS[nth % len(KINDS)]()
        strike = Strike(nth, error)
        ids = case.send(post)
        post.answered()
        loop = case.loop(post)
        strike.run(lambda loop=loop: loop.run(max_iterations=2, wait_time_seconds=0))  # type: ignore[misc]
        until(lambda id=ids[1]: case.ends(post.broker.get(id)))  # type: ignore[misc]
        check(post, case, ids[0], strike, error, held)
        post.clear()
        if not strike.place:
            break
    assert nth > 100
    assert held <= {"_deliver"}, held


def check(post: Post, case: Case, id: str, strike: Strike, error: BaseException, held: set[str]) -> None:
    """The struck message: ended as without an error, or failed by it; or held until its visibility timeout."""
    where = f"{type(error).__name__} at {strike.place}"
    if post.broker.get(id).status is Status.ACTIVE:
        held.add(strike.place.rpartition(" ")[2])
    item = post.settled(id)
    assert case.may_complete or item.status is not Status.COMPLETED, where
    if item.status is Status.COMPLETED:
        assert "struck" in post.handled, where
    if case.ends(item) or HistoryEvent.LOST in [entry.event for entry in item.history]:
        return
    if item.queue == "requests-dlq":  # a letter never dies of its handler
        assert is_kept(item), where
        return
    failure = item.last_failure
    assert failure is not None, where
    known = f"{failure.type} {failure.text} {failure.traceback}"
    assert type(error).__name__ in known or "Own" in known, f"{where}: {known}"
    if "struck" in post.handled and not case.may_complete:
        assert "Own" in known, f"{where}: {known}"


# Callbacks of the program.


@dataclass
class Picky:
    """A body, and a reply, that raises when it is decoded."""

    text: str
    raised: ClassVar[list[BaseException]] = []

    def __post_init__(self) -> None:
        if self.raised and self.text == "struck":
            raise self.raised[0]


@pytest.fixture(params=KINDS, ids=[type(kind()).__name__ for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Callable[[], BaseException]:
    found: Callable[[], BaseException] = request.param
    return found


def raiser(post: Post, kind: Callable[[], BaseException]) -> Callable[..., Any]:
    """A callback that raises while the first message is handled."""

    def call(*arguments: Any) -> Any:
        if arguments[:1] == ("struck",) or post.handled == ["struck"]:
            raise kind()
        return arguments[0].upper()

    return call


def with_callback(post: Post, name: str, call: Callable[..., Any]) -> MessageLoop[Any, Any]:
    """A loop with one callback that raises."""
    requests = post.requests

    @dataclass(frozen=True)
    class Policy(DLQPolicy[Ask, Answer]):
        def should_dead_letter(self, message: Message[Ask, Any], error: Exception) -> bool:
            return bool(call(message)) if name == "policy" else super().should_dead_letter(message, error)

        def route(self, message: Message[Ask, Any], error: Exception) -> Any:
            return call(message) if name == "route" else super().route(message, error)

    class Adapted:
        def evaluate(self, request: str) -> Any:
            return call(request)

    class Processing(MainLoop[str, str]):
        def process(self, request: str) -> Any:
            return call(request)

    async def awaited(request: str) -> Any:
        await asyncio.sleep(0)
        return call(request)

    match name:
        case "handler":
            return MainLoop(requests=requests, handler=call)
        case "coroutine":
            return MainLoop(requests=requests, handler=awaited)
        case "adapter":
            return MainLoop(requests=requests, adapter=Adapted())
        case "process":
            return Processing(requests=requests)
        case "policy" | "route":
            return MainLoop(requests=requests, handler=post.refuse, dlq=Policy(post.dead, 1))
        case "retry":
            config = MainLoopConfig(retry=lambda count: call(count))
            return MainLoop(requests=requests, handler=post.refuse, config=config)
        case "evaluator":
            loop: MainLoop[str, str] = MainLoop(requests=requests, handler=post.handle)
            evaluator = lambda output, expected: call(expected) and Score(1.0, True)  # noqa: E731
            return EvalLoop(loop=loop, evaluator=evaluator, requests=post.evaluations)
    raise AssertionError(name)


@pytest.mark.parametrize("name", ["handler", "coroutine", "adapter", "process", "evaluator"])
def test_error_of_a_handler_is_the_failure_of_its_message(
    post: Post, name: str, kind: Callable[[], BaseException]
) -> None:
    loop = with_callback(post, name, raiser(post, kind))
    first, second = post.send_evaluations() if name == "evaluator" else post.send_requests()
    loop.run(max_iterations=2, wait_time_seconds=0)
    item = post.broker.get(first)
    assert item.last_failure is not None
    assert (item.status, item.last_failure.type.rpartition(".")[2]) == (Status.FAILED, type(kind()).__name__)
    assert post.broker.get(second).status is Status.COMPLETED


@pytest.mark.parametrize("name", ["policy", "route", "retry"])
def test_error_of_a_rule_leaves_the_failure_of_its_message_what_it_is(
    post: Post, name: str, kind: Callable[[], BaseException]
) -> None:
    loop = with_callback(post, name, raiser(post, kind))
    for id in post.send_requests():
        loop.run(max_iterations=1, wait_time_seconds=0)
        item = post.broker.get(id)
        assert item.last_failure is not None
        assert item.last_failure.type.endswith("Own")
        assert item.queue == ("requests" if name == "retry" else "requests-dlq")


@pytest.mark.parametrize("kind", [each for each in KINDS if isinstance(each(), Exception)])
def test_error_of_the_log_ends_no_loop(post: Post, kind: Callable[[], BaseException]) -> None:
    class Refusing(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise kind()

    log = logging.getLogger("redrive.mailbox")
    refusing = Refusing()
    loop: MainLoop[str, str] = MainLoop(requests=post.requests, handler=post.refuse, dlq=post.policy)
    ids = post.send_requests()
    log.setLevel(logging.INFO)
    log.addFilter(refusing)
    try:
        loop.run(max_iterations=2, wait_time_seconds=0)
        consumer(post, Keep).run(max_iterations=2, wait_time_seconds=0)
    finally:
        log.removeFilter(refusing)
        log.setLevel(logging.NOTSET)
    assert all(is_kept(post.broker.get(id)) for id in ids)


def test_error_of_the_type_of_a_body_or_of_a_reply_ends_no_loop(
    post: Post, kind: Callable[[], BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: Mailbox[Picky, str] = Mailbox(post.broker, "bodies", body=Picky, reply=str)
    replies: Mailbox[str, Picky] = Mailbox(post.broker, "replied", body=str, reply=Picky)
    sent = [bodies.send(Picky(text)) for text in ("struck", "next")]
    asked = [replies.send(text, reply_to="replies") for text in ("struck", "next")]
    monkeypatch.setattr(Picky, "raised", [kind()])

    class Echo(RequestLoop[Any, Any]):
        def respond(self, request: Any) -> Any:
            post.handled.append(request)
            if isinstance(request, Picky):
                return request.text
            made = Picky("")
            made.text = request
            return made

    Echo(bodies).run(max_iterations=2, wait_time_seconds=0)
    assert [each.text for each in post.handled] == ["next"]  # type: ignore[attr-defined]
    assert post.broker.get(sent[0]).dead_reason is DeadReason.UNDECODABLE
    Echo(replies).run(max_iterations=2, wait_time_seconds=0)
    item = post.broker.get(asked[0])
    assert (item.status, item.last_failure is None) == (Status.FAILED, False)
    assert post.replies.approximate_count() == 1
    assert not post.broker.find(queue="replied", status="active").items


def test_inner_task_that_is_cancelled_is_a_failure_that_counts(post: Post) -> None:
    async def handler(text: str) -> str:
        inner = asyncio.ensure_future(asyncio.sleep(3600))
        inner.cancel()
        await inner
        return text

    (id, _) = post.send_requests()
    MainLoop(requests=post.requests, handler=handler).run(max_iterations=2, wait_time_seconds=0)
    assert post.broker.get(id).counters.failures == 1


def test_reply_that_is_too_large_fails_its_request(post: Post) -> None:
    asked = Background(lambda: post.requests.request(MainLoopRequest("struck"), "10m"))
    until(lambda: post.requests.approximate_count())
    loop: MainLoop[str, str] = MainLoop(
        requests=post.requests, handler=lambda text: text * 1_000_000 if text == "struck" else text, dlq=post.policy
    )
    loop.run(max_iterations=1, wait_time_seconds=0)
    with pytest.raises(RequestFailedError, match="the limit is"):
        asked.result()
    (item,) = post.broker.find(queue="requests-dlq").items
    assert item.last_failure is not None
    assert item.last_failure.type == "redrive.errors.PayloadTooLarge"


def test_ctrl_c_ends_the_loop_and_returns_its_message_uncounted(post: Post) -> None:
    def handler(text: str) -> str:
        signal.raise_signal(signal.SIGINT)
        return text

    (id, _) = post.send_requests()
    with pytest.raises(KeyboardInterrupt):
        MainLoop(requests=post.requests, handler=handler).run(max_iterations=2, wait_time_seconds=0)
    item = post.broker.get(id)
    assert (item.status, item.counters.attempts) == (Status.PENDING, 0)


def test_exit_of_a_signal_handler_ends_the_loop_and_returns_its_message_uncounted(post: Post) -> None:
    def handler(text: str) -> str:
        signal.raise_signal(signal.SIGUSR2)
        return text

    before = signal.signal(signal.SIGUSR2, lambda *_: sys.exit("stop"))
    try:
        (id, _) = post.send_requests()
        with pytest.raises(SystemExit):
            MainLoop(requests=post.requests, handler=handler).run(max_iterations=2, wait_time_seconds=0)
    finally:
        signal.signal(signal.SIGUSR2, before)
    item = post.broker.get(id)
    assert (item.status, item.counters.attempts) == (Status.PENDING, 0)


# Retries of captured tasks.


@pytest.mark.parametrize("where", ["callback", "coroutine", "is_failure", "hook"])
def test_error_of_a_retry_is_its_failure_and_the_retries_continue(
    post: Post, where: str, kind: Callable[[], BaseException]
) -> None:

    def call(part: str, id: str) -> Any:
        if part == where and id == "struck":
            raise kind()
        return {"id": id}

    async def awaited(task: Any) -> Any:
        return call("coroutine", task["id"])

    def is_failure(result: Any) -> bool:
        return not call("is_failure", result["id"])

    callback = awaited if where == "coroutine" else lambda task: call("callback", task["id"])
    dlq = DeadLetterQueue(post.broker, is_failure=is_failure)
    dlq.set_callback(callback)
    dlq.on_succeeded(lambda task: call("hook", task.task_id))
    for id in ("struck", "next"):
        dlq.enqueue(id, {"id": id}, "refused", retry_policy="linear", max_retries=3)
    post.clock.advance("5m")
    dlq.run_due_tasks()
    struck, following = dlq.get_task("struck"), dlq.get_task("next")
    assert struck is not None
    assert following is not None
    assert following.status == "completed"
    if where == "hook":
        assert struck.status == "completed"
    else:
        assert (struck.status, struck.retry_count) == ("pending", 1)
        failure = post.broker.get(struck.item_id).last_failure
        assert failure is not None
        assert failure.type.rpartition(".")[2] == type(kind()).__name__
