"""`redrive serve` as a process: over TCP, stopped, killed, and with clients that do not behave."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.http import HttpServer
from tests.servers.reserved_port import ReservedPort
from tests.terminal.cli import run_here
from tests.until import until

PATIENCE_SECONDS = 120.0
MIB = 1024 * 1024


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpServer]:
    """A server of the test's own, which it may stop."""
    server = HttpServer(f"sqlite:///{tmp_path}/jobs.db", tmp_path, "--max-body", "1")
    call(server, "queues.create", name="jobs")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("server")
    server = HttpServer(f"sqlite:///{folder}/jobs.db", folder, "--max-body", "1")
    yield server
    server.stop()


@pytest.fixture
def shared(one_server: HttpServer) -> Iterator[HttpServer]:
    """A server for all tests that leave it running. The queue is new for each."""
    call(one_server, "queues.create", name="jobs")
    yield one_server
    stats = call(one_server, "queue.stats", queue="jobs")
    call(one_server, "queues.delete", name="jobs", confirm=stats["pending"])


def call(server: HttpServer, route: str, **arguments: Any) -> Any:
    status, answer = called(server, route, **arguments)
    assert status == 200, answer
    return answer


def called(server: HttpServer, route: str, **arguments: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS)
    with contextlib.closing(connection):
        connection.request("POST", f"/v1/{route}", json.dumps(arguments), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@contextlib.contextmanager
def raw(server: HttpServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
        yield connection


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def head(route: str, length: int, *lines: str) -> bytes:
    return "\r\n".join(
        [f"POST /v1/{route} HTTP/1.1", "host: localhost", f"content-length: {length}", *lines, "", ""]
    ).encode()


class Waiter(threading.Thread):
    """A client that waits for an item."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.answer: tuple[int, Any] | None = None
        self.start()

    def run(self) -> None:
        self.answer = called(self.server, "queue.lease", queue="jobs", wait="50s")


def waiting(server: HttpServer) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    return int(
        float(next(line for line in text.splitlines() if line.startswith("redrive_http_long_polls")).split()[-1])
    )


def test_stop_answers_whoever_waits_and_ends_well(server: HttpServer) -> None:
    waiters = [Waiter(server) for _ in range(5)]
    until(lambda: waiting(server) == 5)
    began = time.monotonic()
    assert server.stop() == 0
    for waiter in waiters:
        waiter.join(PATIENCE_SECONDS)
        assert waiter.answer == (200, {"items": []})
    assert time.monotonic() - began < 40  # they would wait for 50
    log = server.log.read_text()
    assert "server_stopping waiting=5" in log
    assert "server_stopped" in log
    assert "Traceback" not in log


def test_ctrl_c_ends_well_too(server: HttpServer) -> None:
    assert server.stop(signal.SIGINT) == 0
    assert "Traceback" not in server.log.read_text()


def test_request_that_is_being_sent_when_the_server_stops_is_still_answered(server: HttpServer) -> None:
    body = json.dumps({"queue": "jobs", "items": [{"payload": 1}]}).encode()
    with raw(server) as connection:
        connection.sendall(head("queue.produce", len(body)) + body[:5])
        until(lambda: waiting(server) == 0)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "server_stopping" in server.log.read_text())
        connection.sendall(body[5:])
        assert b" 200 " in all_of(connection)
    assert server.process.wait(PATIENCE_SECONDS) == 0
    server.start()
    assert call(server, "queue.stats", queue="jobs")["pending"] == 1


def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    server = HttpServer(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    with raw(server) as connection:
        connection.sendall(head("queue.produce", 100))  # and nothing more: it would be waited for
        until(lambda: waiting(server) == 0)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "server_stopping" in server.log.read_text())
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_SECONDS) == 130


def test_what_was_acknowledged_is_there_after_a_kill(server: HttpServer) -> None:
    put = [call(server, "queue.produce", queue="jobs", items=[{"payload": n}])["items"][0]["id"] for n in range(20)]
    server.kill()
    server.start()
    listed = call(server, "items.list", queue="jobs")["items"]
    assert [(item["id"], item["payload"]) for item in listed] == [(id, n) for n, id in enumerate(put)]


def test_client_that_vanishes_while_it_waits_holds_nothing(shared: HttpServer) -> None:
    body = json.dumps({"queue": "jobs", "wait": "50s"}).encode()
    with raw(shared) as connection:
        connection.sendall(head("queue.lease", len(body)) + body)
        until(lambda: waiting(shared) == 1)
    until(lambda: waiting(shared) == 0)
    call(shared, "queue.produce", queue="jobs", items=[{"payload": 1}])
    (item,) = call(shared, "queue.lease", queue="jobs")["items"]
    assert item["deliveries"] == 1
    call(shared, "queue.complete", queue="jobs", items=[{"token": item["token"]}])


def test_requests_that_come_in_one_go_are_answered_in_order(shared: HttpServer) -> None:
    bodies = [json.dumps({"queue": "jobs", "items": [{"payload": n}]}).encode() for n in range(10)]
    last = b'{"queue":"jobs"}'
    with raw(shared) as connection:
        pipeline = b"".join(head("queue.produce", len(body)) + body for body in bodies)
        connection.sendall(pipeline + head("items.list", len(last), "connection: close") + last)
        answers = all_of(connection)
    assert answers.count(b"HTTP/1.1 200") == 11
    listed = json.loads(answers.rpartition(b"\r\n\r\n")[2])
    assert [item["payload"] for item in listed["items"]] == list(range(10))


def test_body_that_waits_to_be_asked_for_is_asked_for(shared: HttpServer) -> None:
    body = b'{"queue":"jobs","items":[{"payload":1}]}'
    with raw(shared) as connection:
        connection.sendall(head("queue.produce", len(body), "expect: 100-continue", "connection: close"))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert b" 200 " in all_of(connection)


def test_body_that_is_too_large_is_refused_before_it_is_sent(shared: HttpServer) -> None:
    with raw(shared) as connection:
        connection.sendall(head("queue.produce", MIB + 1, "expect: 100-continue", "connection: close"))
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in answer


def test_bodies_that_are_too_large_cost_no_memory(shared: HttpServer) -> None:
    before = shared.memory()
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    for _ in range(20):
        with raw(shared) as connection:
            start = head("queue.produce", 0, "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b"")
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(start)
                for _ in range(200):  # 12 MiB, and the limit is 1
                    connection.sendall(chunk)
    assert called(shared, "queue.stats", queue="jobs")[0] == 200
    assert shared.memory() - before < 30 * MIB


def test_head_that_is_too_large_is_refused(shared: HttpServer) -> None:
    with raw(shared) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b"POST /v1/queues.list HTTP/1.1\r\nhost: localhost\r\n")
            for number in range(2000):
                connection.sendall(f"x-{number}: {'x' * 90}\r\n".encode())
        assert all_of(connection).startswith(b"HTTP/1.1 431")
    assert called(shared, "queue.stats", queue="jobs")[0] == 200


@pytest.mark.parametrize(
    "nonsense",
    [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"POST /v1/feed.read HTTP/1.1\r\nhost\r\n\r\n", b"\0" * 1000],
)
def test_what_is_no_http_ends_the_connection_and_nothing_else(shared: HttpServer, nonsense: bytes) -> None:
    with raw(shared) as connection:
        connection.sendall(nonsense)
        assert all_of(connection).startswith(b"HTTP/1.1 400")
    assert called(shared, "queue.stats", queue="jobs")[0] == 200


def test_many_slow_clients_keep_nobody_waiting(shared: HttpServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(raw(shared))
            connection.sendall(head("queue.produce", 100_000) + b"{")
        began = time.monotonic()
        for number in range(20):
            call(shared, "queue.produce", queue="jobs", items=[{"payload": number}])
        assert time.monotonic() - began < 25  # a body may take 30
    assert call(shared, "queue.stats", queue="jobs")["pending"] == 20


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("REDRIVE_")}
    return subprocess.run(
        [sys.executable, "-m", "redrive", *arguments],
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("serve", "--host", "0.0.0.0"), 3, "--allow-anyone"),
        (("serve", "--host", "no.such.host.invalid"), 3, "token"),
        (("serve", "--host", "203.0.113.7", "--allow-anyone"), 3, "not an address of this machine"),
        (("serve", "--host", "nowhere.invalid", "--allow-anyone"), 3, "not an address of this machine"),
        (("--url", "ftp://x", "serve"), 3, "not a URL of a store"),
        (("--url", "http://127.0.0.1:1", "serve"), 3, "is a server already"),
        (("serve", "--max-wait", "soon"), 2, "is not a duration"),
    ],
)
def test_what_cannot_begin_says_why_in_a_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = run_here(tmp_path, arguments)
    assert (done.exit_code, words in done.stderr) == (code, True), done
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--url", "postgresql://nobody@127.0.0.1:1/x", "serve"), 6, "not available"),
        (("serve", "--work", "--port", "0"), 3, "redrive.toml"),
    ],
)
def test_process_that_cannot_begin_says_why_in_a_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = run(tmp_path, *arguments)
    assert (done.returncode, words in done.stderr) == (code, True), done
    assert "Traceback" not in done.stderr


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run(tmp_path, "serve", "--port", str(taken.getsockname()[1]))
    assert (done.returncode, "another program listens" in done.stderr) == (3, True), done


def test_first_screen_says_what_is_served_and_what_to_type_next(shared: HttpServer) -> None:
    screen = shared.log.read_text()
    for words in (
        shared.url,
        "survives a crash of the program and a power cut",
        "queue create",
        "token create",
        "Ctrl-C",
    ):
        assert words in screen


def test_password_of_the_store_is_not_shown(tmp_path: Path, postgres_url: str) -> None:
    url = postgres_url.replace("postgres@", "postgres:hunter2secret@")
    assert "hunter2secret" in url
    server = HttpServer(url, tmp_path)
    try:
        call(server, "queues.create", name="jobs")
    finally:
        assert server.stop() == 0
    assert "hunter2secret" not in server.log.read_text()


def test_every_address_may_be_listened_on_when_that_is_said(tmp_path: Path) -> None:
    server = HttpServer(f"sqlite:///{tmp_path}/jobs.db", tmp_path, "--host", "0.0.0.0", "--allow-anyone")
    assert called(server, "queues.list") == (200, {"queues": []})
    assert server.stop() == 0


def test_file_of_the_project_says_where_to_listen_and_which_queues_there_are(tmp_path: Path) -> None:
    reserved = ReservedPort()
    port = reserved.number
    (tmp_path / "redrive.toml").write_text(
        f'url = "sqlite:///jobs.db"\n[server]\nport = {port}\n[queue.emails]\nmax_attempts = 3\n'
    )
    clean = {key: value for key, value in os.environ.items() if not key.startswith("REDRIVE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "redrive", "serve"], cwd=tmp_path, env=clean, stdout=subprocess.DEVNULL
    )
    try:

        def queues() -> list[str] | None:
            with (
                contextlib.suppress(OSError),
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection,
            ):
                connection.request("POST", "/v1/queues.list", "{}")
                return [queue["name"] for queue in json.loads(connection.getresponse().read())["queues"]]
            return None

        until(lambda: queues() is not None)
        assert queues() == ["emails"]
    finally:
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0


def test_path_is_compared_as_it_was_sent(shared: HttpServer) -> None:
    taken = ("/v1/queues.list", "/v1/queues.list?x=%2f")
    refused = (
        "/v1%2fqueues.list",
        "/v1/queues%2elist",
        "/v1/%2e%2e/v1/queues.list",
        "//v1/queues.list",
        "/v1/queues.list;x",
        "/v1/queues.list%00",
    )
    for target in (*taken, *refused):
        with raw(shared) as connection:
            lines = (f"POST {target} HTTP/1.1", "host: localhost", "content-length: 2", "connection: close", "", "{}")
            connection.sendall("\r\n".join(lines).encode())
            status = 200 if target in taken else 404
            assert all_of(connection).startswith(f"HTTP/1.1 {status} ".encode()), target
