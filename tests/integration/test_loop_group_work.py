"""`redrive work module:group`: what happens to messages when its worker is stopped, killed, hung or refused."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.reserved_port import ReservedPort
from tests.until import until

from redrive import Item, Status, connect
from redrive.mailbox import DeadLetter, Mailbox, MainLoopRequest, MainLoopResult, Message
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.worker import supervisor

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no supervisor without fork")

ROOT = Path(__file__).resolve().parents[2]
Ask = MainLoopRequest[str]
Answer = MainLoopResult[str]

PROGRAM = """
import os, time
from redrive import connect
from redrive.mailbox import (
    DeadLetter, DLQConsumer, DLQPolicy, LoopGroup, Mailbox, MainLoop, MainLoopConfig, MainLoopRequest, MainLoopResult
)

Ask, Answer = MainLoopRequest[str], MainLoopResult[str]
broker = connect("{url}")
dead = Mailbox(broker, "requests-dlq", body=DeadLetter[Ask])

def begun(name):
    with open(name + ".begun", "a") as file:
        file.write(f"{{os.getpid()}}\\n")

def handle(name):
    begun(name)
    if name == "notices-the-stop":
        while not group._end.is_set():
            time.sleep(0.005)
        begun(name)
    while not os.path.exists(name):
        if name == "busy":
            second.heartbeat.beat()
        time.sleep(0.005)
    return name.upper()

def make_loop(mailbox, broker=broker, **options):
    return MainLoop(
        requests=Mailbox(broker, mailbox, body=Ask, reply=Answer),
        handler=handle,
        config=MainLoopConfig(visibility_timeout=36_000),
        **options,
    )

loop = make_loop("requests", dlq=DLQPolicy(dead, max_delivery_count=2))
group = LoopGroup([loop])
"""


class Mail:
    """A module with a group, its store, and `redrive work` on it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.name = f"mail_{os.getpid()}_{time.monotonic_ns()}"
        self.source = folder / f"{self.name}.py"
        self.program()
        self.processes: list[subprocess.Popen[str]] = []
        self.broker = connect(url, maintenance=False)
        self.requests = Mailbox(self.broker, "requests", body=Ask, reply=Answer)
        self.answers = Mailbox(self.broker, "answers", body=Answer)

    def program(self, more: str = "", url: str | None = None) -> None:
        """Write the module, with these lines at its end."""
        self.source.write_text(PROGRAM.format(url=self.url if url is None else url) + more)

    def start(self, *options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "redrive", "work", f"{self.name}:group", *options],
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.processes.append(process)
        return process

    def send(self, name: str) -> str:
        """Send a request that ends when `go` has the same name."""
        return self.requests.send(MainLoopRequest(name), reply_to=self.answers)

    def begun(self, name: str, times: int = 1) -> int:
        """The process in which a handler was called for this the given time, once it was."""
        path = self.folder / f"{name}.begun"
        until(lambda: path.exists() and path.read_text().count("\n") >= times)
        return int(path.read_text().splitlines()[times - 1])

    def go(self, name: str) -> None:
        (self.folder / name).touch()

    def answer(self) -> Answer:
        """The next reply, once it is there."""
        received: list[Message[Answer, None]] = []
        until(lambda: received or received.extend(self.answers.receive(wait_time_seconds=1)))
        received[0].acknowledge()
        return received[0].body

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.broker.close()


@pytest.fixture
def mail(tmp_path: Path) -> Iterator[Mail]:
    yield from opened(tmp_path, f"sqlite:///{tmp_path}/mail.db")


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def any_mail(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mail]:
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/mail.db" if sqlite else request.getfixturevalue(f"{request.param}_url")
    yield from opened(tmp_path, url)


def opened(folder: Path, url: str) -> Iterator[Mail]:
    mail = Mail(folder, url)
    yield mail
    for name in ("a", "b", "busy", "notices-the-stop"):
        mail.go(name)  # what still waits ends
    mail.close()


def ended(process: subprocess.Popen[str], number: int | None = signal.SIGTERM) -> str:
    """What it wrote, after a signal. It ends with 0."""
    if number is not None:
        process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, output
    return output


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """The next line that a process writes with this text in it."""
    assert process.stdout is not None
    line = ""
    while text not in line:
        line = process.stdout.readline()
        assert line, f"it ended without {text!r}"
    return line


def charged(item: Item) -> tuple[int, int, int]:
    return item.counters.attempts, item.counters.failures, item.counters.losses


def test_requests_are_answered_and_the_worker_is_registered(any_mail: Mail) -> None:
    process = any_mail.start()
    any_mail.go("a")
    reply = any_mail.requests.request(MainLoopRequest("a"), f"{PATIENCE_SECONDS}s")
    assert reply.output == "A"
    (worker,) = any_mail.broker.workers()
    assert (worker.queues, worker.handlers, worker.concurrency) == (("requests",), None, 1)
    assert worker.pid == any_mail.begun("a")
    output = ended(process)
    assert f"worker_started worker={worker.name}" in output
    assert "queues=requests slots=1" in output
    assert f"worker_stopped worker={worker.name} completed=1 not_completed=0" in output
    assert any_mail.broker.workers() == ()


def test_message_that_kills_its_process_is_delivered_again_and_dies_of_it(any_mail: Mail) -> None:
    id = any_mail.send("a")
    process = any_mail.start()
    first = any_mail.begun("a")
    os.kill(first, signal.SIGKILL)
    again = any_mail.begun("a", times=2)  # not after its visibility timeout of ten hours
    assert again != first
    item = any_mail.broker.get(id)
    assert charged(item) == (2, 0, 1)
    assert item.last_failure is not None
    assert (item.last_failure.type, item.last_failure.signal) == ("WorkerLost", "SIGKILL")
    os.kill(again, signal.SIGKILL)
    answer = any_mail.answer()
    assert answer.error is not None
    assert answer.error.startswith("Dead-lettered after 2 attempts: ")
    (letter,) = Mailbox(any_mail.broker, "requests-dlq", body=DeadLetter[Ask]).receive()
    assert (letter.body.message_id, letter.body.reason, letter.body.delivery_count) == (id, "worker_lost", 2)
    output = ended(process)
    assert output.count("item_lost") == 1, output
    assert output.count(f"item_dead item={id} queue=requests") == 1, output
    assert "reason=worker_lost" in output


def test_messages_that_a_kill_has_hit_are_handled_alone(any_mail: Mail) -> None:
    any_mail.program('group = LoopGroup([loop, make_loop("requests", dlq=DLQPolicy(dead, max_delivery_count=2))])')
    ids = {name: any_mail.send(name) for name in ("a", "b")}
    begun = {name: any_mail.folder / f"{name}.begun" for name in ids}
    process = any_mail.start()
    killed = any_mail.begun("a")
    any_mail.begun("b")
    os.kill(killed, signal.SIGKILL)
    runs = lambda: [name for name in ids if begun[name].read_text().count("\n") == 2]  # noqa: E731
    until(lambda: runs() and all(charged(any_mail.broker.get(id)) == (2, 0, 1) for id in ids.values()))
    (killer,) = runs()
    (neighbour,) = ids.keys() - {killer}  # received, and waits for its turn
    any_mail.go(neighbour)
    os.kill(any_mail.begun(killer, times=2), signal.SIGKILL)
    replies = [any_mail.answer() for _ in range(2)]
    assert {reply.output for reply in replies} == {None, neighbour.upper()}
    assert any_mail.broker.get(ids[killer]).queue == "requests-dlq"
    ended(process)


def test_error_of_a_loop_after_its_start_starts_the_worker_again(mail: Mail) -> None:
    process = mail.start()
    until(lambda: mail.broker.workers())
    mail.broker.delete_queue("requests", confirm=0)
    line_with(process, "loop_failed")
    line_with(process, "worker_started")
    mail.go("a")
    mail.requests = Mailbox(mail.broker, "requests", body=Ask, reply=Answer)
    mail.send("a")
    assert mail.answer().output == "A"
    ended(process)


def test_every_store_of_a_group_is_settled(mail: Mail) -> None:
    with connect(f"sqlite:///{mail.folder}/others.db", maintenance=False) as others:
        elsewhere = Mailbox(others, "elsewhere", body=Ask, reply=Answer)
        mail.program(
            f'others = connect("sqlite:///{mail.folder}/others.db", store_name="others")\n'
            f'group = LoopGroup([loop, make_loop("elsewhere", others), make_loop("same-file", "{mail.url}")])'
        )
        ids = mail.send("a"), elsewhere.send(MainLoopRequest("b"))
        process = mail.start()
        killed = mail.begun("a")
        mail.begun("b")
        until(lambda: others.workers() and mail.broker.workers())
        assert others.workers()[0].queues == ("elsewhere",)
        assert mail.broker.workers()[0].queues == ("requests", "same-file")
        os.kill(killed, signal.SIGKILL)
        for broker, id in zip((mail.broker, others), ids, strict=True):
            until(lambda broker=broker, id=id: charged(broker.get(id)) == (2, 0, 1))  # type: ignore[misc]
        for name in ("a", "b"):
            mail.go(name)
        until(lambda: not elsewhere.approximate_count() and not mail.requests.approximate_count())
        ended(process)


def test_first_signal_waits_for_what_is_handled(any_mail: Mail) -> None:
    any_mail.send("notices-the-stop")
    process = any_mail.start()
    any_mail.begun("notices-the-stop")
    process.send_signal(signal.SIGTERM)
    any_mail.begun("notices-the-stop", times=2)
    later = any_mail.send("a")
    any_mail.go("notices-the-stop")
    assert any_mail.answer().output == "NOTICES-THE-STOP"
    output = ended(process, None)
    assert "completed=1 not_completed=0" in output
    item = any_mail.broker.get(later)
    assert (item.status, charged(item), item.history) == (Status.PENDING, (0, 0, 0), ())


def test_second_signal_waits_for_nothing_and_charges_nothing(any_mail: Mail) -> None:
    id = any_mail.send("a")
    process = any_mail.start()
    any_mail.begun("a")
    process.send_signal(signal.SIGTERM)
    line_with(process, "stopping")
    window = time.monotonic() + supervisor.SECOND_SIGNAL_WINDOW_SECONDS
    until(lambda: time.monotonic() > window)
    assert process.poll() is None
    ended(process)
    item = any_mail.broker.get(id)
    assert (item.status, charged(item)) == (Status.PENDING, (0, 0, 0))
    assert item.history[-1].note == "its worker was stopped while it ran"


def test_what_takes_longer_than_the_shutdown_timeout_is_returned_uncounted(mail: Mail) -> None:
    id = mail.send("a")
    process = mail.start("--shutdown-timeout", "100ms")
    mail.begun("a")
    ended(process)
    item = mail.broker.get(id)
    assert (item.status, charged(item)) == (Status.PENDING, (0, 0, 0))


def test_worker_that_does_not_stop_is_killed_and_charges_nothing(mail: Mail) -> None:
    id = mail.send("a")
    process = mail.start("--shutdown-timeout", "100ms")
    os.kill(mail.begun("a"), signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1, output
    item = mail.broker.get(id)
    assert (item.status, charged(item)) == (Status.PENDING, (0, 0, 0))


def test_hang_up_starts_the_worker_again(mail: Mail) -> None:
    mail.send("a")
    process = mail.start()
    first = mail.begun("a")
    process.send_signal(signal.SIGHUP)
    mail.go("a")
    assert mail.answer().output == "A"
    mail.send("b")
    assert mail.begun("b") != first
    mail.go("b")
    assert mail.answer().output == "B"
    ended(process)


def test_loop_that_hangs_costs_its_message_a_loss_and_no_other(mail: Mail) -> None:
    mail.program(
        'second = make_loop("other")\ngroup = LoopGroup([loop, second], watchdog_threshold=4, watchdog_interval=0.1)'
    )
    hung = mail.send("a")
    other = Mailbox(mail.broker, "other", body=Ask, reply=Answer)
    busy = other.send(MainLoopRequest("busy"))
    process = mail.start()
    first = mail.begun("a")
    mail.begun("busy")
    assert charged(mail.broker.get(busy)) == (1, 0, 0)
    until(lambda: mail.broker.get(busy).counters.deliveries == 2)
    mail.go("busy")  # after which the suspect is handled, which is handled alone
    assert mail.begun("a", times=2) != first
    item = mail.broker.get(hung)
    assert charged(item) == (2, 0, 1)
    assert item.last_failure is not None
    assert item.last_failure.exit_code == 70
    assert "because its loop made no progress for" in item.last_failure.text
    mail.go("a")
    until(lambda: not other.approximate_count() and not mail.requests.approximate_count())
    output = ended(process)
    assert "loop_hung mailbox=requests" in output
    assert re.search(r'worker_died exit="exit code 70" cause="its loop made no progress', output), output


def test_silent_worker_is_killed_by_the_supervisor(mail: Mail) -> None:
    id = mail.send("a")
    process = mail.start("--watchdog-timeout", "6s")
    first = mail.begun("a")
    until(lambda: mail.broker.workers())
    os.kill(first, signal.SIGSTOP)
    assert mail.begun("a", times=2) != first
    assert charged(mail.broker.get(id)) == (2, 0, 1)
    mail.go("a")
    assert mail.answer().output == "A"
    ended(process)


def test_metrics_and_health_are_served(mail: Mail) -> None:
    reserved = ReservedPort()
    port = reserved.number
    mail.program(
        "consumer = DLQConsumer(mailbox=dead, handler=lambda letter: None)\n"
        f"group = LoopGroup([loop, consumer], health_port={port}, dlq=[dead])"
    )
    process = mail.start("--metrics-port", "0")
    served = re.search(r"port=(\d+)", line_with(process, "metrics_served"))
    assert served is not None
    id = mail.send("a")
    mail.begun("a")
    assert '"status": "healthy"' in page(f"http://127.0.0.1:{port}/health/ready")
    metrics = f"http://127.0.0.1:{served[1]}/metrics"
    assert re.search(r"^redrive_worker_running\{.*\} 1\.0$", page(metrics), re.MULTILINE)
    assert re.search(r"^redrive_worker_concurrency\{.*\} 2\.0$", page(metrics), re.MULTILINE)
    mail.broker.bury_items(id, force=True)
    handled = r'^redrive_dead_letters_handled_total\{(?=.*mailbox="requests-dlq").*action="processed".*\} 1\.0$'
    until(lambda: re.search(handled, page(metrics), re.MULTILINE))
    mail.go("a")
    ended(process)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


# Refusals.


def test_url_of_the_environment_is_not_for_a_group(mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_URL", "sqlite:///other.db")
    process = mail.start()
    mail.go("a")
    mail.send("a")
    assert mail.answer().output == "A"
    ended(process)


@pytest.mark.parametrize(
    ("options", "more", "told"),
    [
        (["-c", "8"], "", "redrive: --concurrency is not for a LoopGroup: each loop handles one message"),
        ([], 'broker = connect("memory://")\ngroup = LoopGroup([make_loop("x", broker)])',
         "redrive: {name}:group runs on memory://, which no other process can put to; make its mailboxes on a file or"),
        ([], 'other = DLQPolicy(Mailbox(broker, "else", body=DeadLetter[Ask]))\nloop.prepare()\n'
         'group = LoopGroup([make_loop("first"), make_loop("requests", dlq=other)])',
         "redrive: mailbox 'requests' sends its dead letters to 'requests-dlq', and the policy of this loop to 'else'"),
        ([], "loop.mailbox.close()", "redrive: mailbox 'requests' is closed; open another one"),
    ],
    ids=["option", "memory", "policy", "closed"],
)  # fmt: skip
def test_group_that_cannot_run_says_why_once_and_ends(mail: Mail, options: list[str], more: str, told: str) -> None:
    mail.program(more)
    mail.send("a")
    output = refusal(mail, *options)
    assert output.count(told.format(name=mail.name)) == 1
    assert "worker_started" not in output
    assert not (mail.folder / "a.begun").exists()


def refusal(mail: Mail, *options: str) -> str:
    """What it writes that does not begin, and is not started again."""
    process = mail.start(*options)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2, output
    assert "worker_died" not in output
    return output


def test_port_of_health_checks_that_is_taken_is_a_sentence(mail: Mail) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        mail.program(f"group = LoopGroup([loop], health_port={port})")
        output = refusal(mail)
    assert f"redrive: health checks cannot be served on 127.0.0.1:{port}: " in output
    assert "Traceback" not in output


def test_store_that_cannot_be_opened_is_retried(mail: Mail) -> None:
    later = mail.folder / "later"
    mail.program(url=f"sqlite:///{later}/mail.db")
    process = mail.start()
    line_with(process, "store_not_opened")
    later.mkdir()
    line_with(process, "worker_started")
    assert "Traceback" not in ended(process)


# What the guide says.


def test_module_of_the_guide_runs(tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/mailboxes.md").read_text()
    found = re.search(r"^```py\n(# mail\.py\n.*?)^```", guide, flags=re.DOTALL | re.MULTILINE)
    assert found is not None
    (tmp_path / "mail.py").write_text(found[1])
    ask = "from mail import *; print(requests.request(MainLoopRequest('Is it cold?'), '60s').output)"
    command = [sys.executable, "-m", "redrive", "work", "mail:group"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            asked = [sys.executable, "-c", ask]
            answer = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            assert answer.stdout == "Yes.\n", answer.stderr
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
