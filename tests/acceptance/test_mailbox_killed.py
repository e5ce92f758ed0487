"""Consumers of mailboxes are killed anywhere: each request is answered once, and by the delivery that ended it.

An answer names the delivery that gave it. So a reply of a consumer that had lost its message cannot pass for another.
"""

from __future__ import annotations

import os
import random
import select
import selectors
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.children import BEAT, Say, fork, join, run
from tests.acceptance.crashing import Plant, crash_everywhere, prepare
from tests.acceptance.faults import Fault
from tests.acceptance.histories import Entry, Journal, read_journal
from tests.acceptance.operations import Operation, furnish
from tests.acceptance.places import Broken, State, places
from tests.acceptance.test_moves_killed import count_transactions
from tests.acceptance.test_planted_bugs import forget_the_transaction
from tests.sizes import THOROUGH

from redrive import Broker, Lease, connect
from redrive.broker.flow import commit_call
from redrive.contract.item_calls import Complete, Put
from redrive.contract.replies import REPLY_TO, make_reply
from redrive.errors import LeaseLost
from redrive.mailbox import Mailbox, Message, flows
from redrive.mailbox.flows import Delivered

FEWEST_POINTS = 10
KILLS = 200 if THOROUGH else 8
REQUESTS = 10 * KILLS
"""More than the consumers that are killed can end."""
MOST_ROUNDS = 4
"""Messages that a consumer settles before it is killed."""
PAIRS = 1_000 if THOROUGH else 40
CLIENTS, CONSUMERS = 16, 4
REPLIES_PER_KILL = 3
BEATS = 3
"""Of a consumer before it settles a message: it waits until all but the last are read."""
VISIBILITY_SECONDS = 0.5
AT_ONCE = 3
PATIENCE = "2m"
LASTING = {"max_attempts": 0, "max_losses": 0}
"""However often consumers are killed, a request does not die of it."""
MOSTLY_GOOD = ["acknowledge", "acknowledge", "nack"]
Report = Callable[[str, object], None]


# Killed at every write of a file


def held_message(broker: Broker) -> Lease:
    """A message that a consumer holds, and one that waits behind it, in a mailbox whose dead go to another queue."""
    furnish(broker)
    requests = Mailbox(broker, "moving")
    for text in ("how deep", "how wide"):
        requests.send(text, reply_to=Mailbox(broker, "answers"), expire_timeout="1h")
    return broker.lease("moving")[0]


def acknowledge(broker: Broker, lease: Lease) -> None:
    Message(Mailbox(broker, "moving"), Delivered(lease, None)).acknowledge(reply="250 meters")


ACKNOWLEDGED = Operation("acknowledge with a reply", held_message, [acknowledge])
FAILED = Operation("death", held_message, [lambda broker, lease: broker.fail(lease, ValueError("boom"), final=True)])
EXPIRED = Operation("expiry", held_message, [lambda broker, _: broker.run_maintenance()], later="2h")


def counts(state: State) -> tuple[int, int, int]:
    """How many messages are waiting, how many are dead, and how many replies there are."""
    found = Counter(each.queue for each in state.items)
    return found["moving"], found["morgue"], found["answers"]


@pytest.mark.parametrize(
    ("operation", "after"),
    [(ACKNOWLEDGED, (1, 0, 1)), (FAILED, (1, 1, 1)), (EXPIRED, (0, 2, 2))],
    ids=["acknowledgement", "death", "expiry"],
)
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.POWER_CUT])
def test_message_and_its_reply_end_together_at_every_write(
    operation: Operation, after: tuple[int, int, int], fault: Fault, tmp_path: Path, record_property: Report
) -> None:
    """A crash leaves the first or the last state of a run without one; the last one if the call returned."""
    (tmp_path / "undisturbed").mkdir()
    states = prepare(operation, tmp_path / "undisturbed").states
    assert [counts(state) for state in states] == [(2, 0, 0), after]
    points = crash_everywhere(operation, tmp_path, fault)
    record_property("points", points)
    print(f"{operation.name}: {points} points ({fault})")
    assert points >= FEWEST_POINTS


def _answer_afterwards() -> None:
    """In a transaction of its own."""

    def acknowledge(core: Any, lease: Lease, reply: Any) -> Iterator[Any]:
        yield from commit_call(Complete(lease.token))
        yield from commit_call(Put(lease.headers[REPLY_TO], (make_reply(lease.id, lease.headers, reply),)))

    flows.acknowledge = acknowledge  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("operation", "plant"), [(ACKNOWLEDGED, _answer_afterwards), (FAILED, forget_the_transaction)], ids=["ack", "death"]
)
def test_reply_outside_the_transaction_is_found(operation: Operation, plant: Plant, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        crash_everywhere(operation, tmp_path, plant=plant)


# Consumers


def consume(
    broker: Broker, journal: Path, draw: random.Random, calls: list[str], say: Say, is_done: Callable[[], object]
) -> None:
    """Receive messages and end them in one of these ways, until it is done. Each is told before it is ended."""
    written = Journal(journal)
    requests = Mailbox(broker, "requests", body=int, reply=list[int])
    while not is_done():
        for message in requests.receive(
            max_messages=AT_ONCE, visibility_timeout=VISIBILITY_SECONDS, wait_time_seconds=0.1
        ):
            say(BEAT * BEATS)
            settle(broker, message, draw.choice(calls), written)


def settle(broker: Broker, message: Message[int, list[int]], call: str, written: Journal) -> None:
    """End a message by a call, and write down how that went."""
    write = partial(written.write, call, values=[message.body], delivery=message.delivery_count)
    write(phase="invoke")
    try:
        match call:
            case "acknowledge":
                message.acknowledge(reply=[message.body, message.delivery_count])
            case "nack":
                message.nack()
            case _:
                broker.fail(message.receipt_handle, ValueError("boom"), final=call == "bury")
    except LeaseLost:
        write(phase="lost")  # it ran out on a busy machine, and the message comes again
    else:
        write(phase="ok")


def kill_soon(pid: int, reader: int, draw: random.Random) -> None:
    """Kill a consumer that is about to settle a message: any time until it is about to settle the next one."""
    select.select([reader], [], [], 10 ** draw.uniform(-4, -2))
    kill(pid, reader)


def kill(pid: int, reader: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert join(pid, reader).killed, "a consumer ended by itself"


def of(entries: list[Entry], call: str, *phases: str) -> list[tuple[int, int]]:
    """The value and the delivery of each such entry."""
    return [(entry.values[0], entry.delivery) for entry in entries if entry.call == call and entry.phase in phases]


def check_answers(answers: list[tuple[int, int]], entries: list[Entry]) -> None:
    """Each answer comes from the delivery that acknowledged its request, and none that was acknowledged is missing."""
    assert Counter(of(entries, "acknowledge", "ok")) <= Counter(answers), "a reply is lost, or was acknowledged twice"
    assert set(answers) <= set(of(entries, "acknowledge", "invoke")), "a reply comes from nowhere"
    assert not set(answers) & set(of(entries, "acknowledge", "lost")), "a reply comes from a consumer that was late"


# One consumer, killed at random


@pytest.mark.parametrize("max_losses", [0, 1], ids=["delivered again", "dead"])
@pytest.mark.parametrize("store", ["postgres", "redis"])
@pytest.mark.timeout(3600 if THOROUGH else 300)
def test_every_request_has_one_terminal_reply(
    store: str, max_losses: int, request: pytest.FixtureRequest, tmp_path: Path, record_property: Report
) -> None:
    url, journal = request.getfixturevalue(f"{store}_url"), tmp_path / "journal"
    settings = {"dead_queue": "morgue", "retry": {"attempts": 2}, "max_attempts": 0, "max_losses": max_losses}
    with connect(url, maintenance=False) as broker:
        broker.create_queue("morgue")
        broker.create_queue("answers")
        requests = Mailbox(broker, "requests", body=int, settings=settings)
        sent = {requests.send(n, reply_to="answers"): n for n in range(REQUESTS)}
    _kill_at_random(url, journal)
    entries = read_journal(journal)
    answers, reasons = _replies(url, sent)
    deaths = [value for value, _ in reasons]
    assert Counter([value for value, _ in answers] + deaths) == Counter(sent.values()), "not one terminal reply each"
    check_answers(answers, entries)
    assert {value for value, _ in of(entries, "bury", "ok")} <= set(deaths), "a death is undone"
    left = places(url)
    assert {each.queue for each in left} <= {"morgue"}
    assert Counter(int(each.payload) for each in left) == Counter(deaths), "not one dead letter for each death"
    report = f"{KILLS} kills, {len(answers)} answers, deaths: {dict(Counter(reason for _, reason in reasons))}"
    record_property("replies", report)
    print(report)
    assert min(len(answers), len(deaths)) >= KILLS, "a run that did too little proves nothing"


def _kill_at_random(url: str, journal: Path) -> None:
    """Consumers die at any moment, and before and after transactions, one after the other; the last one drains."""

    def work(life: int, calls: list[str], boundary: int, say: Say) -> None:
        with connect(url) as broker:
            requests = Mailbox(broker, "requests")
            tell = (lambda _: count_transactions([broker], boundary)) if boundary else say  # from the first settle on
            consume(broker, journal, random.Random(life), calls, tell, lambda: not requests.approximate_count())

    draw, every_call = random.Random(0), ["acknowledge", "acknowledge", "nack", "fail", "bury"]
    for life in range(KILLS // 2):
        pid, reader = fork(partial(work, life, every_call, 0), pipe_bytes=len(BEAT))
        for _ in range(BEATS * draw.randint(1, MOST_ROUNDS)):  # it waits until the beats of a message are read
            assert os.read(reader, len(BEAT)), "a consumer ended before it was killed"
        kill_soon(pid, reader, draw)
        assert run(partial(work, life, ["bury"] if life % 2 else ["acknowledge"], 1 + life // 2)).killed
    run(partial(work, KILLS, every_call, 0))


def _replies(url: str, sent: dict[str, int]) -> tuple[list[tuple[int, int]], list[tuple[int, str]]]:
    """Take all replies: value and delivery of each answer, value and reason of each death."""
    answers: list[tuple[int, int]] = []
    deaths: list[tuple[int, str]] = []
    with connect(url, maintenance=False) as broker:
        mailbox = Mailbox(broker, "answers", body=list[int])
        while messages := mailbox.receive(max_messages=10):
            for message in messages:
                assert message.reply_for is not None
                value = sent[message.reply_for]
                if message.error is None:
                    assert message.body[0] == value, "the answer to another request"
                    answers.append((value, message.body[1]))
                else:
                    deaths.append((value, message.error.reason))
                message.acknowledge()
    return answers, deaths


# Many requests at once


@pytest.mark.timeout(3600 if THOROUGH else 300)
def test_every_requester_gets_one_correct_reply_in_memory(tmp_path: Path) -> None:
    done = tmp_path / "done"
    with connect("memory://") as broker, ThreadPoolExecutor(CONSUMERS) as threads:
        broker.create_queue("requests", **LASTING)

        def work(number: int) -> None:
            journal = tmp_path / f"{number}.journal"
            consume(broker, journal, random.Random(number), MOSTLY_GOOD, lambda _: None, done.exists)

        consumers = [threads.submit(work, number) for number in range(CONSUMERS)]
        try:
            _ask(broker, tmp_path / "clients.journal", lambda _: None)
        finally:
            done.touch()
        assert [consumer.result() for consumer in consumers] == [None] * CONSUMERS
    _check_replies(tmp_path)


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
@pytest.mark.timeout(3600 if THOROUGH else 300)
def test_every_requester_gets_one_correct_reply(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, record_property: Report
) -> None:
    path = tmp_path / "redrive.db"
    url = f"sqlite:///{path}" if store == "sqlite" else request.getfixturevalue(f"{store}_url")
    with connect(url, maintenance=False) as broker:
        broker.create_queue("requests", **LASTING)
    kills = _ask_and_kill(url, tmp_path)
    lost = _check_replies(tmp_path)
    assert places(path if store == "sqlite" else url) == [], "a message is left"
    report = f"{PAIRS} pairs, {kills} kills, {lost} lost deliveries"
    record_property("kills", report)
    print(report)
    assert min(lost, kills) >= PAIRS // 8, "a run that was hardly disturbed proves nothing"


def _ask(broker: Broker, journal: Path, say: Say) -> None:
    """Clients send all requests, and write down each reply that they get."""
    requests = Mailbox(broker, "requests", body=int, reply=list[int])
    written = Journal(journal)

    def ask(n: int) -> None:
        value, delivery = requests.request(n, timeout=PATIENCE)
        assert value == n, "the reply to another request"
        written.write("request", "ok", values=[n], delivery=delivery)
        say(b".")

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(ask, range(PAIRS)))


def _ask_and_kill(url: str, folder: Path) -> int:
    """Kill consumers that hold messages, and start others, until all clients have their replies.

    Every other kill strikes before a message that is held is settled, the others anywhere.
    """
    done, draw, kills, replies, beats = folder / "done", random.Random(0), 0, 0, Counter[int]()
    waiting = selectors.DefaultSelector()

    def ask(say: Say) -> None:
        with connect(url, maintenance=False) as broker:
            _ask(broker, folder / "clients.journal", say)

    def work(number: int, say: Say) -> None:
        with connect(url) as broker:
            consume(broker, folder / f"{number}.journal", random.Random(number), MOSTLY_GOOD, say, done.exists)

    def start(child: Callable[[Say], None]) -> int:
        pid, reader = fork(child, pipe_bytes=len(BEAT))
        waiting.register(reader, selectors.EVENT_READ, pid)
        return pid

    for number in range(CONSUMERS):
        start(partial(work, number))
    clients, failed = start(ask), 0
    while waiting.get_map():
        for (_, reader, _, pid), _ in waiting.select():
            data = os.read(reader, len(BEAT))
            beats[pid] += 1
            holds = beats[pid] % BEATS == 1
            if pid == clients:
                replies += len(data)
            elif data and replies >= (kills + 1) * REPLIES_PER_KILL and (holds or kills % 2):
                waiting.unregister(reader)
                kill_soon(pid, reader, draw) if kills % 2 else kill(pid, reader)
                kills += 1
                start(partial(work, CONSUMERS + kills))
            if not data:
                waiting.unregister(reader)
                failed += join(pid, reader).code != 0
                done.touch()  # the clients end first, or a consumer failed
    assert not failed, "children failed; see their tracebacks"
    return kills


def _check_replies(folder: Path) -> int:
    """Each client got one reply, and the right one. Gives how many deliveries ended without a call."""
    entries = [entry for journal in folder.glob("*.journal") for entry in read_journal(journal)]
    replies = of(entries, "request", "ok")
    assert sorted(value for value, _ in replies) == list(range(PAIRS))
    check_answers(replies, entries)
    return sum(delivery - 1 for _, delivery in replies) - len(of(entries, "nack", "ok"))
