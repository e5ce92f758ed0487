"""Mailboxes: send, receive and acknowledge beside weakincentives; and what a request costs beside its store calls.

Each side is called in the way that suits it: ours by 64 coroutines, and by 64 threads; theirs has threads only.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks import watch
from benchmarks.harness import ROOT, Bar, Case, NotReady, last_json_line
from benchmarks.load import AsyncStep, Measurement, Step, median_microseconds, rate, run_callers
from benchmarks.mailbox_load import BODY, CALLERS, WARM_UP_SECONDS, Ledger, by_threads
from benchmarks.peers.environment import interpreter
from benchmarks.redis import SYNCS, server
from benchmarks.subject import QUEUE, open_broker, run_async

REDIS = "Redis, appendfsync always: send, receive and acknowledge, 200 B"
MEMORY = "In memory: send, receive and acknowledge, 200 B"
REQUEST = "SQLite, one process: a request and its reply, 200 B"
SYNC = "always"
IN_MEMORY = "memory://"
TIMES = 2.0
REQUEST_TIMES = 1.6
REPEAT, WARM_UP = 1_000, 100
REQUEST_TIMEOUT = "60s"
THREADS = {f"threads{CALLERS}": (CALLERS, f"{CALLERS} threads"), "threads1": (1, "one thread")}


def measure_threads(threads: int, url: str) -> Measurement:
    from redrive import connect
    from redrive.mailbox import Mailbox

    with connect(url, **_durability(url)) as broker:
        return rate(*by_threads(Mailbox(broker, QUEUE), threads), threads=threads)


def measure_callers(callers: int, url: str) -> Measurement:
    return rate(*run_async(_callers(callers, url)), callers=callers)


async def _callers(callers: int, url: str) -> tuple[int, float]:
    from redrive import connect_async
    from redrive.mailbox import AsyncMailbox

    async with connect_async(url, **_durability(url)) as broker:
        mailbox, ledger = AsyncMailbox[Any, Any](broker, QUEUE), Ledger()
        step = _cycle(mailbox, ledger)
        await run_callers(step, callers, WARM_UP_SECONDS)
        items, seconds = await run_callers(step, callers)
        ledger.check(await mailbox.approximate_count())
        return items, seconds


def _cycle(mailbox: Any, ledger: Ledger) -> AsyncStep:
    """As `mailbox_load.cycle`, awaited."""

    async def step() -> int:
        ledger.sent.append(await mailbox.send(BODY))
        message = ledger.only(await mailbox.receive())
        await message.acknowledge()
        ledger.acknowledged.append(message.id)
        return 1

    return step


def measure_peer(threads: int, url: str) -> Measurement:
    """The peer, in an environment of its own."""
    script = ROOT / "benchmarks" / "peers" / "mailbox_weakincentives.py"
    try:
        python = interpreter(script, ROOT / ".bench" / "peers")
    except OSError as error:
        raise NotReady(f"no environment for weakincentives: {error}") from error
    where = "memory" if url == IN_MEMORY else url
    answer = last_json_line([str(python), "-m", "benchmarks.peers.mailbox_weakincentives", str(threads), where])
    facts = {name: value for name, value in answer.items() if isinstance(value, str | int | float)}
    return Measurement({"rate": float(str(answer["items"])) / float(str(answer["seconds"]))}, facts)


def on_redis(measure: Callable[[str], Measurement], directory: Path) -> Measurement:
    """On a server of its own, on disk, that syncs its log at each write. Ours and the peer alike."""
    with server(directory, SYNC) as running:
        return measure(running.url)


def in_memory(measure: Callable[[str], Measurement], directory: Path) -> Measurement:
    return measure(IN_MEMORY)


def _durability(url: str) -> dict[str, Any]:
    return {} if url == IN_MEMORY else {"durability": SYNCS[SYNC]}


def measure_request(in_main_thread: bool, directory: Path) -> Measurement:
    """The median of one `request`, which a thread of the same process answers with the body that it got."""
    from redrive.mailbox import Mailbox

    with watch.connections() as opened, open_broker(directory) as broker:
        mailbox = Mailbox[Any, Any](broker, QUEUE)

        def step() -> int:
            reply = mailbox.request(BODY, timeout=REQUEST_TIMEOUT)
            if reply != BODY:
                raise RuntimeError(f"the reply is {reply!r}")
            return 1

        with answering(mailbox):
            microseconds = _median(step) if in_main_thread else in_thread(_median, step)
        if mailbox.approximate_count():
            raise RuntimeError("a request was answered and is still there")
        return Measurement({"microseconds": microseconds}, {"synchronous": watch.require_full_sync(opened)})


@contextmanager
def answering(mailbox: Any) -> Iterator[None]:
    """A thread that answers every message, until the end of the block."""
    ended = Event()

    def answer() -> None:
        while not ended.is_set():
            for message in mailbox.receive(wait_time_seconds=1):
                message.acknowledge(reply=message.body)

    thread = Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def in_thread(work: Callable[[Step], float], step: Step) -> float:
    """The same in a thread of its own."""
    results: list[float] = []
    thread = Thread(target=lambda: results.append(work(step)))
    thread.start()
    thread.join()
    return results[0]


def measure_store_calls(directory: Path) -> Measurement:
    """What a request is made of, by hand: four calls of the store, one after the other, in one thread."""
    from redrive.mailbox import Mailbox

    with watch.connections() as opened, open_broker(directory) as broker:
        mailbox = Mailbox[Any, Any](broker, QUEUE)
        mailbox.approximate_count()  # the queue is there
        microseconds = _median(store_calls(broker.core.store))
        if mailbox.approximate_count():
            raise RuntimeError("an item was completed and is still there")
        return Measurement({"microseconds": microseconds}, {"synchronous": watch.require_full_sync(opened)})


def store_calls(store: Any) -> Step:
    """Put, lease, complete with a result that is kept, read that: as `request` and who answers it make them."""
    from redrive.contract.item_calls import Complete, LeaseItems, Put
    from redrive.contract.queries import GetResult
    from redrive.mailbox import flows
    from redrive.mailbox.body_types import BodyType
    from redrive.model.duration import SECOND

    body, kept = BodyType[Any]("body", None).encode(BODY), flows.result_timeout(REQUEST_TIMEOUT)
    put = Put(QUEUE, (flows.new_message(body, reply_to=None, request_id=None, keep_result=kept),))
    lease = LeaseItems(QUEUE, 1, "worker", flows.DEFAULT_VISIBILITY_SECONDS * SECOND)

    def step() -> int:
        ((receipt,),) = store.commit((put,)).results
        (leased,) = store.commit((lease,)).results
        store.commit((Complete(leased.leases[0].token, body, keep_result=kept),))
        if store.read(GetResult(receipt.id)).payload != body.payload:
            raise RuntimeError("the result is not there")
        return 1

    return step


def _median(step: Step) -> float:
    return median_microseconds(step, REPEAT, WARM_UP)


WAYS: dict[str, tuple[str, Callable[[str], Measurement]]] = {
    f"redrive.callers{CALLERS}": (f"Redrive: {CALLERS} coroutines", partial(measure_callers, CALLERS)),
    **{f"redrive.{key}": (f"Redrive: {words}", partial(measure_threads, n)) for key, (n, words) in THREADS.items()},
    **{f"peer.{key}": (f"weakincentives: {words}", partial(measure_peer, n)) for key, (n, words) in THREADS.items()},
}
STORES = {"redis": (REDIS, on_redis), "memory": (MEMORY, in_memory)}
CASES = [
    Case(f"{store}.{key}", group, words, partial(place, measure))
    for store, (group, place) in STORES.items()
    for key, (words, measure) in WAYS.items()
] + [
    Case("request.store_calls", REQUEST, "put, lease, complete, read the result: by hand", measure_store_calls),
    Case("request.other", REQUEST, "request, not in the main thread", partial(measure_request, False)),
    Case("request.main", REQUEST, "request, in the main thread", partial(measure_request, True)),
]


def _beside_the_peer(store: str, words: str, at_least: float | None) -> list[Bar]:
    peers = tuple(f"{store}.peer.{key}" for key in THREADS)
    return [
        Bar(f"{words}, {CALLERS} {callers}", f"{store}.redrive.{key}", peers, at_least=at_least)
        for key, callers in ((f"callers{CALLERS}", "coroutines"), (f"threads{CALLERS}", "threads"))
    ]


BARS = [
    *_beside_the_peer("redis", "Redis: send, receive and acknowledge at least 2 × weakincentives", TIMES),
    *_beside_the_peer("memory", "in memory: send, receive and acknowledge beside weakincentives", None),
    *(
        Bar(
            f"SQLite: a request and its reply at most 1.6 × its store calls one after another, {words}",
            f"request.{key}",
            ("request.store_calls",),
            figure="microseconds",
            at_most=REQUEST_TIMES,
            why="it wakes another thread twice, which the store calls one after another do not; 2.0 and 2.4 × at first",
        )
        for key, words in (("other", "not in the main thread"), ("main", "in the main thread"))
    ),
]
