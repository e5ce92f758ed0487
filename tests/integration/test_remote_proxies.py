"""A broker on a server that is not reached directly: through proxies, gateways and balancers nothing is done twice, and
nobody is told of an outcome that nobody knows."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.servers.certificates import make_certificate
from tests.servers.forwarding import ForwardingProxy
from tests.servers.front import Front, Given
from tests.servers.mounted import Mounts

from redrive import Broker, connect, connect_async
from redrive.client import remote_store as client
from redrive.contract.item_calls import NewItem, Put
from redrive.errors import OutcomeUnknown, Overloaded, RedriveError, StoreUnavailable, Unauthorized
from redrive.model.limits import MIB
from redrive.server.replay_cache import ReplayCache
from redrive.testing.conformance.actions import Background
from redrive.wire.error_codec import error_body

ADDRESS = "192.0.2.1"
"""Of nobody: only a proxy finds a server there."""


@pytest.fixture(scope="module")
def mounts() -> Iterator[Mounts]:
    mounts = Mounts()
    yield mounts
    mounts.close()


@pytest.fixture
def mount(mounts: Mounts, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Another server on the same store."""
    urls: list[str] = []

    def mount() -> str:
        urls.append(mounts.mount(_opener(tmp_path)))
        return urls[-1]

    yield mount
    for url in urls:
        mounts.unmount(url)


def _opener(folder: Path) -> Callable[[str], Any]:
    return lambda namespace: connect_async(f"sqlite:///{folder}/jobs.db", namespace=namespace)


@pytest.fixture
def url(mount: Callable[[], str]) -> str:
    return mount()


@pytest.fixture
def near(url: str) -> Iterator[Broker]:
    """Nothing is between this one and the server."""
    with connect(url) as broker:
        broker.create_queue("jobs")
        yield broker


def payloads(broker: Broker) -> list[Any]:
    return [item.value for item in broker.find(queue="jobs", status="pending", order="oldest").items]


# Proxies that the environment names


class Proxied:
    """A server, as it is called through a proxy."""

    def __init__(self, mounts: Mounts, folder: Path) -> None:
        self._mounts = mounts
        self._url = mounts.mount(_opener(folder))
        self.proxy = ForwardingProxy(mounts.port)
        self.url = self._url.replace(f"127.0.0.1:{mounts.port}", ADDRESS)

    def restart(self) -> None:
        self._mounts.restart(self._url)

    def close(self) -> None:
        self.proxy.close()
        self._mounts.unmount(self._url)


@pytest.fixture(params=["http", "https"])
def proxied(
    request: pytest.FixtureRequest, mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxied]:
    if request.param == "https":
        certificate, key = make_certificate(tmp_path, ADDRESS, "127.0.0.1")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        mounts = Mounts(ssl_certfile=certificate, ssl_keyfile=key)
    proxied = Proxied(mounts, tmp_path)
    monkeypatch.setenv(f"{request.param}_proxy", proxied.proxy.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield proxied
    proxied.close()
    if request.param == "https":
        mounts.close()


def test_server_is_reached_through_the_proxy_of_the_environment(proxied: Proxied) -> None:
    with connect(proxied.url) as broker:
        broker.create_queue("jobs")
        broker.put("jobs", "a")
        (lease,) = broker.lease("jobs", wait="30s")
        broker.complete(lease)
        assert broker.stats("jobs").completed_total == 1
    if proxied.url.startswith("https:"):
        assert {asked.rpartition(" ")[0] for asked in proxied.proxy.asked} == {f"CONNECT {ADDRESS}:443"}
    else:
        assert f"POST {proxied.url}/v1/store.commit HTTP/1.1" in proxied.proxy.asked


def test_commit_whose_answer_is_lost_behind_a_proxy_is_done_once(proxied: Proxied) -> None:
    with connect(proxied.url) as broker:
        broker.create_queue("jobs")
        for number in range(5):
            proxied.proxy.cut_next_answer()
            broker.put("jobs", number)
        assert payloads(broker) == [0, 1, 2, 3, 4]


def test_commit_that_left_through_a_proxy_has_left(proxied: Proxied) -> None:
    """The server that ran it is another one when it is asked again."""
    with connect(proxied.url) as broker:
        broker.create_queue("jobs")
        proxied.proxy.cut_next_answer(then=proxied.restart)
        with pytest.raises(OutcomeUnknown):
            broker.put("jobs", "a")
        assert payloads(broker) == ["a"]
        proxied.proxy.cut_next_answer(then=proxied.restart)
        broker.put("jobs", "b", idempotency_key="b")
        assert payloads(broker) == ["a", "b"]


def test_commit_that_no_proxy_takes_has_not_left(proxied: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "UNSENT_SECONDS", 0.1)
    with connect(proxied.url) as broker:
        broker.create_queue("jobs")
        store: Any = broker.core.store
        store._line._pool.close()
        store._line = client.HttpTransport(store._endpoint)
        if proxied.url.startswith("https:"):
            proxied.proxy.refuses = True
        else:
            proxied.proxy.close()
            monkeypatch.setattr(proxied.proxy, "close", lambda: None)
        with pytest.raises(StoreUnavailable):
            broker.put("jobs", "a")


# Gateways that answer by themselves


@pytest.fixture
def front(url: str) -> Iterator[Front]:
    with Front(url) as front:
        yield front


@pytest.fixture
def far(front: Front, near: Broker) -> Iterator[Broker]:
    with connect(front.url) as broker:
        yield broker


def instead(status: int, content_type: str, body: bytes) -> Callable[[Callable[[], Given]], Given]:
    """The server has done it, and something else is answered."""

    def answer(forward: Callable[[], Given]) -> Given:
        assert forward()[0] == 200
        return status, content_type, body

    return answer


def refusal(status: int, error: RedriveError) -> Given:
    """As our server refuses."""
    return status, "application/json", msgspec.json.encode(error_body(error))


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (502, "text/html", b"<h1>502"),
        (504, "application/json", b'{"message": "Endpoint request timed out"}'),
        (504, "application/json", b'{"code": "error", "message": "upstream timed out"}'),
        (503, "application/json", b'{"code": "upstream_timeout", "message": "upstream timed out"}'),
        (524, "text/html", b"<h1>524 a timeout occurred"),
        (520, "text/html", b"<h1>520"),
        (429, "application/json", b'{"message": "slow down"}'),
        (403, "text/html", b"<h1>no"),
        (200, "text/html", b"<h1>please sign in"),
    ],
)
def test_answer_of_a_gateway_is_not_the_servers_word(
    far: Broker, front: Front, status: int, content_type: str, body: bytes
) -> None:
    front.meddle = instead(status, content_type, body)
    far.put("jobs", "a")
    assert payloads(far) == ["a"]


def test_gateway_that_never_lets_an_answer_through_leaves_the_outcome_unknown(
    far: Broker, front: Front, near: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LOST_SECONDS", 0.3)
    front.always = instead(524, "text/html", b"<h1>")
    with pytest.raises(OutcomeUnknown, match="524"):
        far.put("jobs", "a")
    assert payloads(near) == ["a"]


@pytest.mark.parametrize(("status", "error"), [(429, Overloaded(7)), (401, Unauthorized("who?"))])
def test_refusal_of_the_server_is_told_at_once(far: Broker, front: Front, status: int, error: RedriveError) -> None:
    front.meddle = lambda forward: refusal(status, error)
    with pytest.raises(type(error)):
        far.put("jobs", "a")
    assert front.asked["store.commit"] == 1
    assert payloads(far) == []


@pytest.mark.parametrize(
    ("status", "error"), [(429, Overloaded(7)), (401, Unauthorized("who?")), (503, StoreUnavailable("main", "away"))]
)
def test_part_that_is_refused_does_not_hide_that_another_was_done(
    far: Broker, front: Front, near: Broker, status: int, error: RedriveError
) -> None:
    near.update_queue("jobs", max_payload_size=32 * MIB)

    def refuse_the_second(forward: Callable[[], Given]) -> Given:
        front.meddle = lambda _: refusal(status, error)
        return forward()

    front.meddle = refuse_the_second
    puts = [Put("jobs", (NewItem(bytes(10 * MIB), "application/octet-stream"),)) for _ in range(2)]
    first, second = far.core.store.commit(puts).results
    assert len(first) == 1
    assert type(second) is type(error)
    assert near.stats("jobs").pending == 1


# What a server remembers


def _answers_of(mounts: Mounts, url: str) -> ReplayCache[Any]:
    server = mounts._mounted[url.rpartition("/")[2]]
    (handle,) = (route.handler for route in server.routes if route.name == "store.commit")
    found: ReplayCache[Any] = handle.__self__._answers  # type: ignore[attr-defined]
    return found


@pytest.fixture
def let_it_forget(mounts: Mounts, url: str, near: Broker) -> Callable[[], None]:
    """A minute goes by for the server, in which others commit, and for nobody else."""
    answers = _answers_of(mounts, url)

    def forget() -> None:
        clock = answers._clock
        answers._clock = lambda: clock() + 61.0
        near.put("jobs", "of another")

    return forget


def test_repeat_of_what_the_server_forgot_is_not_run_however_young_its_client_thinks_it_is(
    far: Broker, front: Front, let_it_forget: Callable[[], None]
) -> None:
    def lose(forward: Callable[[], Given]) -> None:
        forward()
        let_it_forget()

    front.meddle = lose
    with pytest.raises(OutcomeUnknown):
        far.put("jobs", "a")
    assert payloads(far) == ["a", "of another"]
    front.meddle = lose
    far.put("jobs", "b", idempotency_key="b")
    assert payloads(far) == ["a", "of another", "b", "of another"]


def test_batch_is_not_repeated_if_one_of_its_calls_may_not_be(
    far: Broker, front: Front, let_it_forget: Callable[[], None]
) -> None:
    def lose(forward: Callable[[], Given]) -> None:
        forward()
        let_it_forget()

    keyed, plain = (NewItem(b"1", "application/json", idempotency_key=key) for key in ("k", None))
    front.meddle = lose
    with pytest.raises(OutcomeUnknown):
        far.core.store.commit([Put("jobs", (keyed,)), Put("jobs", (plain,))])
    assert payloads(far) == [1, 1, "of another"]


def test_repeat_of_what_never_arrived_is_run_although_the_server_forgot_older_ones(
    far: Broker, front: Front, let_it_forget: Callable[[], None]
) -> None:
    let_it_forget()
    far.put("jobs", "a")
    let_it_forget()
    far.put("jobs", "b")
    front.meddle = lambda forward: None
    far.put("jobs", "c")
    assert payloads(far) == ["of another", "a", "of another", "b", "c"]


def test_client_that_was_silent_for_long_is_not_left_without_an_outcome(
    far: Broker, front: Front, let_it_forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle connections are those that break, and the server has forgotten a lot since."""
    far.put("jobs", "a")
    let_it_forget()
    let_it_forget()
    monkeypatch.setattr(client, "QUIET_SECONDS", 0.0)
    asked = front.asked["store.commit"]

    def break_it(forward: Callable[[], Given]) -> Given | None:
        if front.asked["store.commit"] == asked + 2:
            front.always = None
            return None
        return forward()

    front.always = break_it
    far.put("jobs", "b")
    assert payloads(far) == ["a", "of another", "of another", "b"]


# Balancers


@pytest.fixture
def turns(url: str, mount: Callable[[], str], near: Broker) -> Iterator[Front]:
    """Two servers on one store take turns, request by request."""
    with Front(url, mount()) as front:
        yield front


@pytest.fixture
def balanced(turns: Front) -> Iterator[Broker]:
    with connect(turns.url) as broker:
        yield broker


def test_client_commits_where_servers_take_turns(balanced: Broker, turns: Front) -> None:
    for number in range(10):
        balanced.put("jobs", number)
    assert payloads(balanced) == list(range(10))
    for lease in balanced.lease("jobs", 10):
        balanced.complete(lease)
    assert balanced.stats("jobs").completed_total == 10
    assert turns.asked["store.commit"] <= 4 * 21


@pytest.mark.parametrize("arrives", [False, True])
def test_outcome_is_found_out_where_servers_take_turns(balanced: Broker, turns: Front, arrives: bool) -> None:
    def lose(forward: Callable[[], Given]) -> Given | None:
        if not arrives:
            return None
        given = forward()
        if given[0] == 200:
            return None
        turns.meddle = lose
        return given

    for number in range(10):
        turns.meddle = lose
        balanced.put("jobs", number)
    assert payloads(balanced) == list(range(10))


def test_outcome_is_unknown_where_servers_that_take_turns_were_started_anew(
    balanced: Broker, turns: Front, mounts: Mounts
) -> None:
    """But not of what may be repeated: that is repeated."""
    servers = [f"/{place}" for place in mounts._mounted]
    assert len(servers) == 2

    def lose(forward: Callable[[], Given]) -> Given | None:
        given = forward()
        if given[0] == 200:
            for each in servers:
                mounts.restart(each)
            return None
        turns.meddle = lose
        return given

    turns.meddle = lose
    with pytest.raises(OutcomeUnknown):
        balanced.put("jobs", "a")
    turns.meddle = lose
    balanced.put("jobs", "b", idempotency_key="b")
    assert payloads(balanced) == ["a", "b"]


def test_worker_that_waits_does_not_flood_servers_that_take_turns(balanced: Broker, turns: Front, near: Broker) -> None:
    near.put("jobs", 1)
    (lease,) = balanced.lease("jobs", wait="30s")
    balanced.complete(lease)
    assert balanced.lease("jobs", wait="500ms") == []
    assert turns.asked["store.watch"] < 12
    worker = Background(lambda: balanced.lease("jobs", wait="30s"))
    near.put("jobs", 2)
    (lease,) = worker.result()
    assert lease.value == 2
