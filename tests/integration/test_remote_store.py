"""A broker on a server: what it says of itself, what it refuses, and what it does with large and odd things."""

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.servers.certificates import make_certificate
from tests.servers.mounted import Mounts
from tests.until import until

from redrive import Broker, connect, connect_async
from redrive.client import RemoteStore, change_watcher, http_transport
from redrive.client import remote_store as client
from redrive.contract.admin_calls import CreateQueue
from redrive.contract.item_calls import LeaseByIds, LeaseItems, NewItem, Put
from redrive.contract.queries import GetItemsByKey
from redrive.errors import (
    EngineUnsupported,
    InvalidInput,
    InvalidName,
    ItemActive,
    ItemNotFound,
    NotAStore,
    OutcomeUnknown,
    Overloaded,
    PayloadTooLarge,
    QueueNotFound,
    RequestTooLarge,
    StoreUnavailable,
    Unauthorized,
)
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Lease
from redrive.model.limits import MAX_CALLS_PER_COMMIT, MIB
from redrive.model.queue import QueueSettings
from redrive.server.request_limits import DEFAULT_LIMITS
from redrive.server.routes.store_api import MAX_ITEMS_PER_COMMIT
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.wire.error_codec import ErrorBody
from redrive.wire.messages import CommitPosition, CommitRequest, WatchAnswer
from redrive.wire.result_codec import encode


@pytest.fixture(scope="module")
def mounts() -> Iterator[Mounts]:
    mounts = Mounts()
    yield mounts
    mounts.close()


@pytest.fixture
def url(mounts: Mounts, tmp_path: Path) -> Iterator[str]:
    url = mounts.mount(
        lambda namespace: connect_async(f"sqlite:///{tmp_path}/jobs.db", namespace=namespace, store_name="main")
    )
    yield url
    mounts.unmount(url)


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with connect(url) as broker:
        broker.create_queue("jobs")
        yield broker


def put(*payloads: bytes, queue: str = "jobs") -> Put:
    return Put(queue, tuple(NewItem(payload, "application/octet-stream") for payload in payloads))


# What a server says of itself


def test_name_durability_and_warnings_are_those_of_the_server(broker: Broker, tmp_path: Path) -> None:
    assert broker.core.store.name == "main"
    assert broker.durability().level == "full"
    with connect(f"sqlite:///{tmp_path}/jobs.db") as near:
        assert broker.durability() == near.durability()
        assert broker.core.store.warnings() == near.core.store.warnings()


def test_server_that_goes_by_another_name_is_refused(url: str) -> None:
    with connect(url, store_name="main") as broker:
        assert broker.list_queues() == ()
    with pytest.raises(InvalidInput, match="calls its store 'main', not 'far'"):
        connect(url, store_name="far")


def test_clock_is_the_servers(broker: Broker) -> None:
    assert abs(broker.core.clock.now() - time.time_ns() // 1000) < PATIENCE_SECONDS * 1e6


def test_lifecycle_runs_in_the_server_and_not_in_the_client(url: str) -> None:
    with connect(url) as broker:
        names = {thread.name for thread in threading.enumerate()}
        assert broker.core._maintenance is None
        assert "redrive-maintenance" in names  # the server's, which is in this process
        broker.create_queue("jobs", lease_timeout="10ms")
        broker.put("jobs", 1)
        broker.lease("jobs")
        end = time.monotonic() + PATIENCE_SECONDS
        while broker.stats("jobs").active:
            assert time.monotonic() < end


def test_operation_is_driven_by_the_server(broker: Broker) -> None:
    broker.put_many("jobs", range(5))
    for lease in broker.lease("jobs", 5):
        broker.bury(lease)
    operation = broker.start_operation("redrive", queue="jobs")
    end = time.monotonic() + PATIENCE_SECONDS
    while broker.get_operation(operation.id).status != "finished":
        assert time.monotonic() < end
    assert broker.stats("jobs").pending == 5


def test_namespaces_do_not_see_each_other(url: str, broker: Broker) -> None:
    with connect(url, namespace="other") as other:
        assert other.list_queues() == ()
        with pytest.raises(QueueNotFound, match="in namespace 'other'"):
            other.put("jobs", 1)


# URLs and tokens


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("http://", "names no server"),
        ("http:///jobs", "names no server"),
        ("http://host:port", "is not a URL of a server"),
        ("http://host:99999", "is not a URL of a server"),
        ("http://[::1", "URL"),
        ("http://host/?token=x", "nothing behind it"),
        ("http://host/#x", "nothing behind it"),
        ("http://ada:secret@host", "token='…'"),
    ],
)
@pytest.mark.parametrize("open_one", [connect, connect_async])
def test_what_is_no_url_of_a_server_is_refused(open_one: Any, bad: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(told)) as caught:
        open_one(bad)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "a\nb", "ü", 7])
def test_what_is_no_token_is_refused(token: Any) -> None:
    with pytest.raises(InvalidName, match="token"):
        connect("http://127.0.0.1:1", token=token)


def test_token_is_for_servers() -> None:
    with pytest.raises(InvalidInput, match="a token is for a server"):
        connect("memory://", token="secret")


def test_durability_is_the_servers_to_say(url: str) -> None:
    with pytest.raises(InvalidInput, match="when it was started"):
        connect(url, durability="relaxed")


def test_without_urllib3_the_error_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['urllib3'] = None\n"
        "import redrive\n"
        "try: redrive.connect('http://127.0.0.1:1')\n"
        "except redrive.errors.InvalidInput as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "pip install 'redrive[client]'" in done.stdout


def test_proxies_of_the_environment_are_not_for_this_machine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with connect(url) as broker:
        assert broker.list_queues() == ()
    assert http_transport._proxy_for("http://redrive.example") == "http://127.0.0.1:1"
    monkeypatch.setenv("no_proxy", "redrive.example")
    assert http_transport._proxy_for("http://redrive.example") is None


def test_server_with_a_certificate_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path, "127.0.0.1")
    mounts = Mounts(ssl_certfile=certificate, ssl_keyfile=key)
    try:
        url = mounts.mount(lambda namespace: connect_async("memory://", namespace=namespace))
        with pytest.raises(StoreUnavailable, match="certificate"):
            connect(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with connect(url) as broker:
            broker.create_queue("jobs")
            worker = Background(lambda: broker.lease("jobs", wait="30s"))
            broker.put("jobs", 1)
            assert [lease.value for lease in worker.result()] == [1]
    finally:
        mounts.close()


# What answers is not what was expected


class Odd(HTTPServer):
    """Answers everything in one way, and keeps what was asked."""

    def __init__(self, status: int, body: bytes, content_type: str) -> None:
        self.answer = (status, body, content_type)
        self.asked: list[tuple[str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), _OddHandler)
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        self.thread.join()
        super().__exit__(*args)


class _OddHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        self.rfile.read(int(self.headers["content-length"]))
        server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        status, body, content_type = server.answer
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def refused(code: str, message: str = "no", **details: Any) -> bytes:
    return msgspec.json.encode(ErrorBody(code, message, details))


@pytest.mark.parametrize(
    ("status", "body", "content_type", "error"),
    [
        (200, b"<html>", "text/html", NotAStore),
        (200, b"\xc1", "application/msgpack", NotAStore),
        (404, b"<html>", "text/html", NotAStore),
        (404, refused("route_not_found"), "application/json", NotAStore),
        (502, b"<html>", "text/html", StoreUnavailable),
        (503, b"", "text/plain", StoreUnavailable),
        (503, refused("closed"), "application/json", StoreUnavailable),
        (401, refused("unauthorized", problem="who?"), "application/json", Unauthorized),
        (429, refused("overloaded", waiting=7), "application/json", Overloaded),
    ],
)
def test_server_that_cannot_be_used_is_told_apart(
    status: int, body: bytes, content_type: str, error: type[Exception]
) -> None:
    with Odd(status, body, content_type) as odd, pytest.raises(error) as raised:
        connect(odd.url)
    assert len(odd.asked) == 1  # and is not asked again and again
    assert error is not NotAStore or str(raised.value).endswith("Correct the URL")


def test_server_of_another_version_of_the_wire_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WIRE_VERSION", 2)
    with pytest.raises(EngineUnsupported, match="this client speaks version 2"):
        connect(url)


def test_request_says_who_asks_and_where() -> None:
    with Odd(401, refused("unauthorized", problem="who?"), "application/json") as odd:
        with pytest.raises(Unauthorized):
            connect(odd.url + "/below/", namespace="team", token="secret")
        ((path, headers),) = odd.asked
    assert path == "/below/v1/store.about"
    assert headers["authorization"] == "Bearer secret"
    assert headers["redrive-namespace"] == "team"
    assert headers["content-type"] == "application/msgpack"
    assert re.fullmatch(r"redrive/[0-9.]+", headers["user-agent"])


# Once and not twice


class Sender:
    """Sends commits as a client does, with what the test says of them."""

    def __init__(self, broker: Broker) -> None:
        store: Any = broker.core.store
        self._line = store._line
        self.server_epoch: str = store._seen.server_epoch

    def send(self, id: str, **options: Any) -> Any:
        request = CommitRequest(id, **{"server_epoch": self.server_epoch, "calls": [put(b"a")], **options})
        return self._line.post("store.commit", encode(request), 30)


def test_request_that_is_repeated_gets_the_first_answer_and_runs_once(broker: Broker) -> None:
    sender = Sender(broker)
    first = sender.send("id")
    for options in ({}, {"is_retry": True}, {"is_retry": True, "server_epoch": "another"}):
        assert sender.send("id", **options) == first
    assert broker.stats("jobs").pending == 1
    assert sender.send("other id") != first
    assert broker.stats("jobs").pending == 2


def test_poll_that_ends_with_nothing_wakes_no_waiter(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_watcher, "POLL_SECONDS", 0.01)
    answers: list[WatchAnswer | None] = []
    woken_by: list[WatchAnswer | None] = []
    watcher = change_watcher.ChangeWatcher(
        http_transport.endpoint_of(url, "default", None), wake=lambda: woken_by.append(answers[-1])
    )
    ask = watcher._ask

    def record(known: WatchAnswer) -> WatchAnswer | None:
        answers.append(ask(known))
        return answers[-1]

    def is_empty(answer: WatchAnswer | None) -> bool:
        return answer is not None and answer.queues == () and not answer.anything

    monkeypatch.setattr(watcher, "_ask", record)
    watcher.watch_queues(["jobs"])
    until(lambda: watcher.received() is not None and sum(map(is_empty, answers)) > 2)
    watcher.close()
    assert woken_by
    assert not any(map(is_empty, woken_by))


def test_answer_that_is_no_text_is_one_that_cannot_be_read(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = broker.core.store
    answer = http_transport.HttpResponse(
        200, b"\x94\xa1\xff\x00\x80\x90", "application/msgpack"
    )  # a text of one byte, 0xff
    with monkeypatch.context() as context:
        context.setattr(store._line, "post", lambda *_: answer)
        with pytest.raises(OutcomeUnknown, match="cannot be read"):
            store.commit([put(b"a")])
        unreadable = msgspec.msgpack.encode(WatchAnswer("?", 0)).replace(b"?", b"\xff")
        context.setattr(store._watching._line, "post", lambda *_: http_transport.HttpResponse(200, unreadable, ""))
        assert store._watching._ask(WatchAnswer("", 0)) is None
    broker.put("jobs", 1)


def test_request_that_was_sent_and_did_not_arrive_is_run(broker: Broker) -> None:
    assert Sender(broker).send("id", is_retry=True).status == 200
    assert broker.stats("jobs").pending == 1


def test_request_of_which_nobody_knows_whether_it_ran_is_not_run(broker: Broker) -> None:
    sender = Sender(broker)
    answer = sender.send("id", is_retry=True, server_epoch="another")
    assert (answer.status, msgspec.json.decode(answer.body)["code"]) == (421, "misdirected")
    answer = sender.send("id", is_retry=True, position=-1)
    assert (answer.status, msgspec.json.decode(answer.body)["code"]) == (503, "outcome_unknown")
    assert broker.stats("jobs").pending == 0


def test_request_for_another_server_is_not_run_and_its_client_sends_it_again(broker: Broker) -> None:
    answer = Sender(broker).send("id", server_epoch="another")
    assert (answer.status, msgspec.json.decode(answer.body)["code"]) == (421, "misdirected")
    assert broker.stats("jobs").pending == 0
    store: Any = broker.core.store
    store._seen = CommitPosition("another")
    broker.put("jobs", 1)
    assert broker.stats("jobs").pending == 1
    assert store._seen.server_epoch != "another"


def test_request_that_was_refused_may_be_sent_again(broker: Broker) -> None:
    sender = Sender(broker)
    too_many = [put(b"a")] * (MAX_CALLS_PER_COMMIT + 1)
    assert sender.send("id", calls=too_many).status == 413
    assert sender.send("id").status == 200
    assert broker.stats("jobs").pending == 1


async def test_calls_that_are_made_at_once_share_requests(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    post = http_transport.HttpTransport.post
    monkeypatch.setattr(
        http_transport.HttpTransport, "post", lambda self, route, *rest: sent.append(route) or post(self, route, *rest)
    )  # type: ignore[func-returns-value]
    async with connect_async(url) as broker:
        await broker.create_queue("jobs")
        sent.clear()
        await asyncio.gather(*(broker.put("jobs", n) for n in range(300)))
        assert 1 <= sent.count("store.commit") < 30
        assert (await broker.stats("jobs")).pending == 300


# Large and odd things


def test_batch_that_is_too_large_for_one_request_is_sent_in_parts(broker: Broker) -> None:
    store = broker.core.store
    broker.update_queue("jobs", max_payload_size=4 * MIB)
    calls = [LeaseItems("jobs", 100), *[put(bytes(3 * MIB)) for _ in range(12)], CreateQueue("mails", QueueSettings())]
    commit = store.commit(calls)
    leased, *receipts, queue = commit.results
    assert [len(each) for each in receipts] == [1] * 12
    assert len(leased.leases) == DEFAULT_LIMITS.max_response_bytes // (3 * MIB), "as many as one answer may have"
    assert queue.name == "mails"


@pytest.mark.parametrize("number", [1, 2])
def test_error_of_one_part_is_the_result_of_its_calls_alone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The first part leaves its outcome open, or the second one meets a mistake."""
    store: Any = broker.core.store
    send = store._send
    sent = list[object]()

    def fail(request: CommitRequest, body: bytes) -> Any:
        sent.append(request)
        if len(sent) == number:
            raise OutcomeUnknown("jobs", "lost") if number == 1 else KeyError("a mistake")
        return send(request, body)

    monkeypatch.setattr(store, "_send", fail)
    monkeypatch.setattr(client, "MAX_REQUEST_BYTES", 250)
    results = broker.core.committer.commit([put(b"x" * 100), put(b"y" * 100)])
    assert isinstance(results.pop(number - 1), OutcomeUnknown)
    assert len(results[0]) == 1
    assert broker.stats("jobs").pending == 1


def test_more_payload_than_one_answer_may_have_is_leased_by_id_in_parts(broker: Broker) -> None:
    broker.update_queue("jobs", max_payload_size=4 * MIB)
    ids = [broker.put("jobs", bytes(3 * MIB)).id for _ in range(12)]
    (results,) = broker.core.store.commit([LeaseByIds((*ids, ItemId("0" * 32)))]).results
    fitting = DEFAULT_LIMITS.max_response_bytes // (3 * MIB)
    assert [lease.id for lease in results] == ids[:fitting], "as many as one answer may have"
    assert broker.stats("jobs").active == fitting, "the others were given back"
    leases = broker.lease_by_id([*ids[fitting:], ItemId("0" * 32), ids[0]])
    assert [type(each) for each in leases] == [Lease] * (12 - fitting) + [ItemNotFound, ItemActive]
    assert broker.get(ids[-1]).counters == Counters(deliveries=2, attempts=1)


def test_items_that_are_too_large_for_one_answer_come_in_several(broker: Broker) -> None:
    broker.update_queue("jobs", max_payload_size=16 * MIB)
    ids = [broker.put("jobs", bytes(12 * MIB), idempotency_key=str(n)).id for n in range(4)]
    first = broker.core.store.read(GetItemsByKey("jobs", ("0", "1", "2", "3")))
    assert [item.id for item in first] == ids[:2], "as many as one answer may have"
    assert [item and item.id for item in broker.find_by_key("jobs", ["3", "x", "2", "1", "0"])] == [
        ids[3],
        None,
        *ids[2::-1],
    ]
    assert [item and item.id for item in broker.get_many(ids)] == ids


def test_more_items_than_one_commit_may_have_are_sent_in_parts(broker: Broker) -> None:
    many = put(*[b""] * (MAX_ITEMS_PER_COMMIT // 10))
    assert Sender(broker).send("id", calls=[many] * 11).status == 413
    assert broker.stats("jobs").pending == 0
    receipts = broker.core.store.commit([many] * 11).results
    assert [len(each) for each in receipts] == [MAX_ITEMS_PER_COMMIT // 10] * 11
    assert broker.stats("jobs").pending == 11 * MAX_ITEMS_PER_COMMIT // 10


def test_call_that_is_too_large_fails_alone(broker: Broker) -> None:
    results = broker.core.committer.commit([put(b"a"), put(bytes(33 * MIB)), put(b"b")])
    assert isinstance(results[0], tuple)
    assert isinstance(results[1], RequestTooLarge | PayloadTooLarge)
    assert isinstance(results[2], tuple)
    assert broker.stats("jobs").pending == 2


@pytest.mark.parametrize("bad", [put(b"a", queue="\ud800"), LeaseItems("jobs", 2**70), put(b"a", queue=7)])  # type: ignore[arg-type]
def test_call_that_cannot_be_sent_fails_alone(broker: Broker, bad: Any) -> None:
    results = broker.core.committer.commit([put(b"a"), bad, put(b"b")])
    assert [type(result) for result in results][::2] == [tuple, tuple]
    assert isinstance(results[1], InvalidInput)


def test_server_takes_no_part_in_transactions_of_the_program(broker: Broker) -> None:
    with pytest.raises(InvalidInput, match="takes part in no transaction"):
        broker.put("jobs", 1, transaction=object())


def test_server_keeps_its_own_time(mounts: Mounts) -> None:
    url = mounts.mount(lambda namespace: connect_async("memory://", namespace=namespace), trusts_clock=False)
    with connect(url) as broker:
        (refusal,) = broker.core.store.commit([put(b"a")], now=broker.core.clock.now()).results
    mounts.unmount(url)
    assert isinstance(refusal, InvalidInput)
    assert "keeps its own time" in str(refusal)


def test_connection_is_used_again(broker: Broker) -> None:
    store: Any = broker.core.store
    for number in range(20):
        broker.put("jobs", number)
        broker.stats("jobs")
    assert store._line._pool.num_connections == 1


def test_connection_that_the_server_closed_while_it_was_idle_is_no_error(mounts: Mounts, broker: Broker) -> None:
    for number in range(5):
        broker.put("jobs", number)
        mounts.drop_connections()
    assert broker.stats("jobs").pending == 5


def test_child_has_connections_of_its_own(broker: Broker) -> None:
    store = broker.core.store
    assert isinstance(store, RemoteStore)
    mine = store._line
    store.reopen()
    assert store._line is not mine
    broker.put("jobs", 1)
    assert mine._pool.num_connections == 1
    mine.close()


def test_error_has_the_text_and_the_attributes_that_it_has_without_a_server(broker: Broker, tmp_path: Path) -> None:
    told = []
    with connect(f"sqlite:///{tmp_path}/jobs.db", maintenance=False) as near:
        for each in (near, broker):
            with pytest.raises(QueueNotFound) as caught:
                each.put("nowhere", 1)
            told.append((str(caught.value), vars(caught.value)))
    assert told[0] == told[1]


def test_open_connections_are_closed_with_the_broker(url: str, mounts: Mounts) -> None:
    with connect(url) as broker:
        broker.create_queue("jobs")
        broker.lease("jobs", wait="20ms")
    end = time.monotonic() + PATIENCE_SECONDS
    while mounts.connections:
        assert time.monotonic() < end
        time.sleep(0.001)
