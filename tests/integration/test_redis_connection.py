"""What is between a script and the server: it runs once or not at all, and whoever asked is told the truth."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis
from tests.acceptance.children import Say, run
from tests.servers.proxy import RedisProxy
from tests.servers.redis import Cluster, Server
from tests.until import until

from redrive import connect
from redrive.errors import Closed, EngineUnsupported, InvalidInput, OutcomeUnknown, StoreFailed, StoreUnavailable
from redrive.stores.redis import connection as redis_connection
from redrive.stores.redis import redis_client as connections
from redrive.stores.redis import server_info
from redrive.stores.redis.redis_client import RedisClient
from redrive.stores.redis.scripts import Script
from redrive.testing.fake_clock import PATIENCE_SECONDS

ADD = Script("add", "return redis.call('INCR', KEYS[1])")
READ = Script("read", "return redis.call('GET', KEYS[1])")
FOREVER = Script("forever", "while true do end")
SHORT_SECONDS = 2.0


@pytest.fixture
def key() -> str:
    return f"{{{uuid4().hex}}}"


@pytest.fixture
def opened() -> Iterator[Callable[..., RedisClient]]:
    """Opens connections, and closes them when the test is over."""
    with contextlib.ExitStack() as stack:

        def open_one(url: str, **options: Any) -> RedisClient:
            return stack.enter_context(contextlib.closing(RedisClient(url, **options)))

        yield open_one


@pytest.fixture
def started() -> Iterator[Callable[..., Server]]:
    """Starts servers, and destroys them when the test is over."""
    servers: list[Server] = []

    def start(**settings: str) -> Server:
        servers.append(Server(**settings))
        return servers[-1]

    yield start
    for server in servers:
        server.destroy()


@pytest.fixture
def connection(opened: Callable[..., RedisClient], redis_server: Server) -> RedisClient:
    return opened(redis_server.url)


@pytest.fixture
def admin(redis_server: Server) -> Iterator[redis.Redis]:
    with contextlib.closing(redis_server.client()) as client:
        yield client


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[RedisProxy]:
    proxy = RedisProxy(redis_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def far(opened: Callable[..., RedisClient], proxy: RedisProxy, key: str) -> RedisClient:
    """A connection through the proxy. The server knows the scripts."""
    found = opened(f"redis://127.0.0.1:{proxy.port}")
    found.run_write(ADD, [key], [])
    found.run(READ, [key], [])
    return found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_connection, "ANSWER_TIMEOUT_SECONDS", SHORT_SECONDS)
    monkeypatch.setattr(redis_connection, "CONNECT_TIMEOUT_SECONDS", SHORT_SECONDS)
    monkeypatch.setattr(connections, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(connections, "REPLICA_SECONDS", 0.1)


def ours(admin: redis.Redis) -> list[dict[str, str]]:
    return [each for each in admin.client_list() if each["name"] == redis_connection.CLIENT_NAME]


# Scripts


def test_server_that_forgot_the_script_is_told_again_and_runs_it_once(
    connection: RedisClient, admin: redis.Redis, key: str
) -> None:
    for number in range(1, 4):
        admin.script_flush()
        assert connection.run_write(ADD, [key], []) == number
        assert connection.run(READ, [key], []) == str(number).encode()


def test_script_is_sent_by_its_hash_only(connection: RedisClient, admin: redis.Redis, key: str) -> None:
    connection.run_write(ADD, [key], [])
    before = admin.info("commandstats")
    for _ in range(10):
        connection.run_write(ADD, [key], [])
    after = admin.info("commandstats")
    assert after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"] == 10
    for name in ("cmdstat_eval", "cmdstat_script|exists", "cmdstat_script|load"):
        assert after.get(name) == before.get(name)


def test_script_that_stops_half_way_is_unknown(connection: RedisClient, admin: redis.Redis, key: str) -> None:
    broken = Script("broken", "redis.call('INCR', KEYS[1]) error('boom')")
    with pytest.raises(OutcomeUnknown, match="boom"):
        connection.run_write(broken, [key], [])
    assert admin.get(key) == b"1"
    with pytest.raises(StoreFailed, match="boom"):
        connection.run(Script("broken", "error('boom')"), [key], [])
    assert connection.run_write(ADD, [key], []) == 2


def test_script_that_the_server_does_not_understand_changed_nothing(connection: RedisClient, key: str) -> None:
    with pytest.raises(StoreFailed, match="nonsense"):
        connection.run_write(Script("nonsense", "return ("), [key], [])


# Lost connections


def test_connection_that_was_killed_while_idle_is_made_again(
    connection: RedisClient, admin: redis.Redis, key: str
) -> None:
    for number in range(1, 6):
        assert connection.run_write(ADD, [key], []) == number
        admin.client_kill_filter(_type="normal", skipme=True)
    assert connection.run(READ, [key], []) == b"5"


def test_answer_that_is_cut_off_is_unknown_and_the_script_ran_once(
    far: RedisClient, proxy: RedisProxy, admin: redis.Redis, key: str
) -> None:
    for number in range(2, 7):
        proxy.cut_at("EVALSHA", forward=True)
        with pytest.raises(OutcomeUnknown):
            far.run_write(ADD, [key], [])
        assert admin.get(key) == str(number).encode()
    assert proxy.cuts == 5


def test_script_that_never_arrived_is_unknown_and_did_not_run(
    far: RedisClient, proxy: RedisProxy, admin: redis.Redis, key: str
) -> None:
    for _ in range(5):
        proxy.cut_at("EVALSHA")
        with pytest.raises(OutcomeUnknown):
            far.run_write(ADD, [key], [])
        assert admin.get(key) == b"1"
    assert proxy.cuts == 5
    assert far.run_write(ADD, [key], []) == 2


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("command", ["SCRIPT LOAD", "CONFIG GET", "CLIENT SETNAME"])
def test_connection_that_breaks_before_the_script_was_sent_is_made_again(
    command: str, forward: bool, far: RedisClient, proxy: RedisProxy, admin: redis.Redis, key: str
) -> None:
    proxy.reset()
    admin.script_flush()
    proxy.cut_at(command, forward=forward)
    assert far.run_write(ADD, [key], []) == 2
    assert proxy.cuts == 1
    assert admin.get(key) == b"2"


def test_script_that_only_reads_is_run_again(far: RedisClient, proxy: RedisProxy, key: str) -> None:
    for number in range(6):
        proxy.cut_at("EVALSHA", forward=bool(number % 2))
        assert far.run(READ, [key], []) == b"1"
        assert proxy.cuts == number + 1


@pytest.mark.usefixtures("impatient")
def test_calls_that_nobody_answers_end_with_an_error_that_says_so(
    opened: Callable[..., RedisClient], proxy: RedisProxy, admin: redis.Redis, key: str
) -> None:
    far = opened(f"redis://127.0.0.1:{proxy.port}")
    far.run_write(ADD, [key], [])
    proxy.go_dark()
    begun = time.monotonic()
    with pytest.raises(OutcomeUnknown, match="no answer within 2 seconds"):
        far.run_write(ADD, [key], [])
    with pytest.raises(StoreUnavailable):
        far.run_write(ADD, [key], [])
    with pytest.raises(StoreUnavailable):
        far.run(READ, [key], [])
    assert time.monotonic() - begun < 25  # one alone would wait for 30
    proxy.light_up()
    assert far.run_write(ADD, [key], []) == 2
    assert admin.get(key) == b"2"


@pytest.mark.usefixtures("impatient")
def test_connection_that_the_network_forgot_while_idle_is_found_out_before_something_is_sent(
    opened: Callable[..., RedisClient], proxy: RedisProxy, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = opened(f"redis://127.0.0.1:{proxy.port}")
    far.run_write(ADD, [key], [])
    monkeypatch.setattr(redis_connection, "IDLE_SECONDS", 0.0)
    proxy.go_dark()
    proxy.light_up()  # for new connections; the one that is open stays dark
    assert far.run_write(ADD, [key], []) == 2


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_restart_while_idle_is_not_noticed(
    how: signal.Signals, started: Callable[..., Server], opened: Callable[..., RedisClient], key: str
) -> None:
    server = started()
    connection = opened(server.url)
    for number in range(1, 4):
        assert connection.run_write(ADD, [key], []) == number
        server.stop(how)
        server.start()


def test_server_that_is_away_is_waited_for_a_moment(
    started: Callable[..., Server],
    opened: Callable[..., RedisClient],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = started()
    connection = opened(server.url)
    connection.run_write(ADD, [key], [])
    server.stop()
    monkeypatch.setattr(connections, "RETRY_SECONDS", 0.1)
    with pytest.raises(StoreUnavailable, match=rf"redis://127\.0\.0\.1:{server.port}/0"):
        connection.run_write(ADD, [key], [])
    monkeypatch.setattr(connections, "RETRY_SECONDS", PATIENCE_SECONDS)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(connection.run_write(ADD, [key], [])))
    waiting.start()
    server.start()
    waiting.join(PATIENCE_SECONDS)
    assert found == [2]


# What the server says


@pytest.mark.usefixtures("impatient")
def test_server_that_is_loading_says_so(
    started: Callable[..., Server], opened: Callable[..., RedisClient], key: str
) -> None:
    server = started()
    connection = opened(server.url)
    connection.run_write(ADD, [key], [])
    with contextlib.closing(server.client()) as admin, admin.pipeline(transaction=False) as pipeline:
        for number in range(2_000):
            pipeline.set(f"filling {number}", os.urandom(20_000))  # it answers after each 2 MB
        pipeline.execute()
        admin.bgrewriteaof()
        until(lambda: _is_rewritten(admin.info("persistence")))
    server.stop()
    server.settings["key-load-delay"] = "5000"  # microseconds
    server.start(wait=False)
    until(lambda: "loading" in _problem_of(connection, key))
    server.wait_until(lambda client: client.config_set("key-load-delay", "0"))
    until(lambda: not _problem_of(connection, key))


def _is_rewritten(info: dict[str, Any]) -> bool:
    return not (info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])


def _problem_of(connection: RedisClient, key: str) -> str:
    try:
        connection.run(READ, [key], [])
    except StoreUnavailable as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("impatient")
def test_server_that_runs_a_script_without_end_says_so(
    started: Callable[..., Server], opened: Callable[..., RedisClient], key: str
) -> None:
    server = started()
    connection, other = opened(server.url), opened(server.url)
    connection.run_write(ADD, [key], [])
    with contextlib.closing(server.client()) as admin:
        admin.config_set("lua-time-limit", "1")
        endless = threading.Thread(target=lambda: _unheard(lambda: other.run(FOREVER, [key], [])))
        endless.start()
        until(lambda: "SCRIPT KILL" in _problem_of(connection, key))
        admin.script_kill()
        endless.join(PATIENCE_SECONDS)
    assert connection.run_write(ADD, [key], []) == 2


def _unheard(work: Callable[[], Any]) -> None:
    with contextlib.suppress(StoreUnavailable, StoreFailed):
        work()


@pytest.mark.usefixtures("impatient")
def test_replica_does_not_take_writes(
    started: Callable[..., Server], opened: Callable[..., RedisClient], key: str
) -> None:
    primary = started(repl_diskless_sync_delay="0")
    replica = started(replicaof=f"127.0.0.1 {primary.port}", replica_serve_stale_data="no")
    replica.wait_until(_is_in_step)
    connection = opened(replica.url)
    with pytest.raises(StoreUnavailable, match="is a replica"):
        connection.run_write(ADD, [key], [])
    primary.stop()
    until(lambda: "lost its primary" in _problem_of(connection, key))
    with contextlib.closing(replica.client()) as admin:
        admin.slaveof()
    assert connection.run_write(ADD, [key], []) == 1


def _is_in_step(client: redis.Redis) -> bool:
    return client.info("replication")["master_link_status"] == "up"


@pytest.mark.usefixtures("impatient")
def test_full_memory_refuses_and_nothing_was_written(
    started: Callable[..., Server], opened: Callable[..., RedisClient], key: str
) -> None:
    server = started(maxmemory="4mb")
    connection = opened(server.url)
    fill = Script("fill", "redis.call('SET', KEYS[1] .. ARGV[1], string.rep('x', 100000)) return 1")
    numbers = iter(range(1000))
    with contextlib.closing(server.client()) as admin:
        with pytest.raises(StoreUnavailable, match="memory is full, nothing was changed; remove items"):
            all(connection.run_write(fill, [key], [number]) for number in numbers)
        keys = admin.dbsize()
        memory = connection.memory()
        assert memory.share is not None
        assert memory.share > server_info.WARN_AT
        assert memory.warning is not None
        assert "of its maxmemory" in memory.warning
        with pytest.raises(StoreUnavailable):
            connection.run_write(fill, [key], ["more"])
        assert admin.dbsize() == keys
        admin.config_set("maxmemory", "0")
    assert connection.run_write(fill, [key], ["more"]) == 1
    assert connection.memory().warning is None


def test_health_warns_of_a_memory_that_fills_up(started: Callable[..., Server]) -> None:
    server = started(maxmemory="0")
    with contextlib.closing(server.client()) as admin, connect(server.url, maintenance=False) as broker:
        used = admin.info("memory")["used_memory"]
        admin.config_set("maxmemory", 10 * used)
        assert broker.health().is_healthy
        admin.config_set("maxmemory", int(1.1 * used))
        (warning,) = broker.health().warnings
        assert "of its maxmemory" in warning


@pytest.mark.usefixtures("impatient")
def test_too_few_replicas_for_the_server_itself(
    started: Callable[..., Server], opened: Callable[..., RedisClient], key: str
) -> None:
    connection = opened(started(min_replicas_to_write="1").url)
    with pytest.raises(StoreUnavailable, match="min-replicas-to-write"):
        connection.run_write(ADD, [key], [])


@pytest.mark.usefixtures("impatient")
def test_wrong_password_is_said_and_not_shown(
    started: Callable[..., Server], opened: Callable[..., RedisClient], key: str
) -> None:
    server = started()
    with contextlib.closing(server.client()) as admin:
        admin.config_set("requirepass", "secret")
    url = server.url.replace("127", ":hidden@127")
    with pytest.raises(StoreUnavailable, match="correct user and password") as told:
        opened(url).run_write(ADD, [key], [])
    assert "hidden" not in str(told.value)
    assert opened(server.url.replace("127", ":secret@127")).run_write(ADD, [key], []) == 1


def test_user_without_rights_is_told_what_is_lacking(
    opened: Callable[..., RedisClient], redis_server: Server, admin: redis.Redis, key: str
) -> None:
    admin.execute_command("ACL SETUSER reader on >x ~* &* +@all -evalsha")
    try:
        url = redis_server.url.replace("127", "reader:x@127")
        with pytest.raises(StoreUnavailable, match=r"evalsha.*grant this user the rights"):
            opened(url).run_write(ADD, [key], [])
    finally:
        admin.execute_command("ACL DELUSER reader")


# Replicas


def test_write_is_acknowledged_when_replicas_have_it(
    started: Callable[..., Server], opened: Callable[..., RedisClient], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = started(repl_diskless_sync_delay="0")
    connection = opened(primary.url, wait_replicas=1)
    monkeypatch.setattr(connections, "REPLICA_SECONDS", 0.1)
    with pytest.raises(OutcomeUnknown, match="0 of 1 replicas have it"):
        connection.run_write(ADD, [key], [])
    replica = started(replicaof=f"127.0.0.1 {primary.port}")
    replica.wait_until(_is_in_step)
    monkeypatch.setattr(connections, "REPLICA_SECONDS", redis_connection.ANSWER_TIMEOUT_SECONDS / 2)
    primary.wait_until(lambda client: _acknowledged(connection, key))
    with contextlib.closing(replica.client()) as reader:
        for _ in range(10):
            written = connection.run_write(ADD, [key], [])
            assert reader.get(key) == str(written).encode()
    before = int(connection.run(READ, [key], []))
    replica.pause()
    monkeypatch.setattr(connections, "REPLICA_SECONDS", 0.1)
    with pytest.raises(OutcomeUnknown, match="the primary has"):
        connection.run_write(ADD, [key], [])
    replica.go_on()
    assert int(connection.run(READ, [key], [])) == before + 1


def _acknowledged(connection: RedisClient, key: str) -> bool:
    try:
        connection.run_write(ADD, [key], [])
    except OutcomeUnknown:
        return False
    return True


# Durability


def test_server_that_syncs_each_write_and_evicts_nothing_is_durable(connection: RedisClient) -> None:
    assert connection.durability().level == "full"


@pytest.mark.parametrize(
    ("setting", "value", "problem", "loss"),
    [
        ("appendonly", "no", "keeps no log", "since the last snapshot"),
        ("appendfsync", "everysec", "syncs its log later", "last second or two"),
        ("appendfsync", "no", "syncs its log later", "not yet written"),
        ("maxmemory-policy", "allkeys-lru", "removes items", "allkeys-lru"),
    ],
)
def test_weaker_server_is_refused_unless_relaxed(
    setting: str,
    value: str,
    problem: str,
    loss: str,
    started: Callable[..., Server],
    opened: Callable[..., RedisClient],
    key: str,
) -> None:
    server = started(**{setting: value})
    with pytest.raises(StoreUnavailable, match=rf"{problem}.*set appendonly yes.*or pass durability='relaxed'"):
        opened(server.url).run_write(ADD, [key], [])
    relaxed = opened(server.url, relaxed=True)
    assert relaxed.run_write(ADD, [key], []) == 1
    assert relaxed.durability().level == "relaxed"
    assert loss in relaxed.durability().can_lose


def test_server_that_does_not_tell_is_refused_unless_relaxed(
    opened: Callable[..., RedisClient], redis_server: Server, admin: redis.Redis, key: str
) -> None:
    admin.execute_command("ACL SETUSER managed on >x ~* &* +@all -config")
    try:
        url = redis_server.url.replace("127", "managed:x@127")
        with pytest.raises(StoreUnavailable, match=r"CONFIG GET is forbidden.*relaxed"):
            opened(url).run_write(ADD, [key], [])
        relaxed = opened(url, relaxed=True)
        relaxed.run_write(ADD, [key], [])
        assert relaxed.durability().level == "relaxed"
    finally:
        admin.execute_command("ACL DELUSER managed")


@pytest.mark.parametrize(("version", "is_known"), [("6.0.16", False), ("5.0", False), ("6.2.0", True), ("9.1", True)])
def test_old_server_is_refused(version: str, is_known: bool) -> None:
    found = server_info.RedisServerInfo(version, True, "always", "noeviction")
    with contextlib.nullcontext() if is_known else pytest.raises(EngineUnsupported, match=r"6\.2 or newer"):
        server_info.check(found, "redis")


@pytest.mark.parametrize(("used", "warns"), [(69, False), (70, True), (100, True)])
def test_memory_that_gets_full_is_told(used: int, warns: bool) -> None:
    assert (server_info.Memory(used, 100).warning is not None) == warns


# Threads, processes, the end


def test_many_threads_share_few_connections(connection: RedisClient, admin: redis.Redis, key: str) -> None:
    def work() -> None:
        for _ in range(25):
            connection.run_write(ADD, [key], [])

    threads = [threading.Thread(target=work) for _ in range(4 * connections.MAX_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert connection.run(READ, [key], []) == str(25 * len(threads)).encode()
    until(lambda: len(ours(admin)) <= connections.MAX_CONNECTIONS)  # and those of tests before are gone


def test_closed_connection_is_closed(connection: RedisClient, admin: redis.Redis, key: str) -> None:
    connection.run_write(ADD, [key], [])
    assert ours(admin)
    connection.close()
    connection.close()
    until(lambda: not ours(admin))
    with pytest.raises(Closed):
        connection.run_write(ADD, [key], [])


def test_child_of_a_fork_uses_nothing_of_its_parent(connection: RedisClient, admin: redis.Redis, key: str) -> None:
    connection.run_write(ADD, [key], [])
    until(lambda: len(ours(admin)) == 1)  # those of tests before are gone
    (mine,) = ours(admin)

    def work(say: Say) -> None:
        with pytest.raises(Closed):
            connection.run_write(ADD, [key], [])
        connection.close()
        connection.reopen()
        assert connection.run_write(ADD, [key], []) == 2
        say(b"done")

    assert run(work).said == b"done"
    assert connection.run_write(ADD, [key], []) == 3
    until(lambda: [each["id"] for each in ours(admin)] == [mine["id"]])


def test_process_that_is_gone_is_known_to_be_gone(
    connection: RedisClient, opened: Callable[..., RedisClient], redis_server: Server, admin: redis.Redis
) -> None:
    other = opened(redis_server.url)
    client = other.client_id()
    assert client is not None
    assert client == other.client_id()
    assert connection.has_client(client)
    admin.client_kill_filter(_id=client)
    assert not connection.has_client(client)
    again = other.client_id()
    assert again not in (client, None)
    other.close()
    until(lambda: not connection.has_client(str(again)))


def test_process_in_a_cluster_is_known_where_its_keys_are(
    opened: Callable[..., RedisClient], redis_cluster: Cluster, key: str
) -> None:
    one, two = opened(redis_cluster.url), opened(redis_cluster.url)
    assert one.client_id() is None  # nobody knows yet where that is
    for each in (one, two):
        each.run_write(ADD, [key], [])
    client = one.client_id()
    assert client is not None
    assert two.has_client(client)
    one.close()
    until(lambda: not two.has_client(client))


def test_interrupted_call_leaves_no_answer_behind(
    connection: RedisClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.run_write(ADD, [key], [])
    answer = redis_connection.RedisConnection._answer

    def interrupt(self: redis_connection.RedisConnection) -> Any:
        monkeypatch.setattr(redis_connection.RedisConnection, "_answer", answer)
        raise KeyboardInterrupt

    monkeypatch.setattr(redis_connection.RedisConnection, "_answer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        connection.run_write(ADD, [key], [])
    assert connection.run(READ, [key], []) == b"2"


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis:127.0.0.1", "redis://127.0.0.1:port"])
def test_url_that_cannot_be_read(url: str) -> None:
    with pytest.raises(InvalidInput):
        RedisClient(url)


def test_option_that_the_driver_does_not_know(redis_server: Server) -> None:
    with pytest.raises(InvalidInput, match="colour"):
        RedisClient(f"{redis_server.url}?colour=red").request("PING")


def test_unix_socket(started: Callable[..., Server], opened: Callable[..., RedisClient], key: str) -> None:
    server = started()
    server.stop()
    server.settings["unixsocket"] = os.fspath(server.folder / "socket")
    server.start()
    assert opened(f"unix://{server.folder}/socket").run_write(ADD, [key], []) == 1


# Clusters


def test_each_key_goes_to_its_server(redis_cluster: Cluster, opened: Callable[..., RedisClient]) -> None:
    connection = opened(redis_cluster.url)
    keys = [f"{{{uuid4().hex}}}" for _ in range(30)]
    for key in keys:
        assert connection.run_write(ADD, [key], []) == 1
    holding = [sum(client.exists(key) for key in _own(client, keys)) for client in _clients(redis_cluster)]
    assert sum(holding) == len(keys)
    assert all(holding)


def _own(client: redis.Redis, keys: list[str]) -> list[str]:
    """Those keys that this server has."""
    return [key for key in keys if not isinstance(_outcome(lambda: client.get(key)), redis.exceptions.ResponseError)]  # noqa: B023


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except redis.exceptions.ResponseError as error:
        return error


def _clients(cluster: Cluster) -> list[redis.Redis]:
    return [server.client(single_connection_client=True) for server in cluster.servers]


def test_slot_that_moves_is_followed(redis_cluster: Cluster, opened: Callable[..., RedisClient], key: str) -> None:
    connection = opened(redis_cluster.url)
    assert connection.run_write(ADD, [key], []) == 1
    clients = _clients(redis_cluster)
    slot = clients[0].cluster("KEYSLOT", key)
    (source,) = [client for client in clients if _own(client, [key])]
    target = next(client for client in clients if client is not source)
    names = {id(client): client.cluster("MYID").decode() for client in (source, target)}
    target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[id(source)])
    source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[id(target)])
    try:
        source.execute_command("MIGRATE", "127.0.0.1", _port(target), key, 0, 5000)
        assert connection.run_write(ADD, [key], []) == 2  # it is asked for there, once
        assert connection.run(READ, [key], []) == b"2"
    finally:
        for client in (target, source):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", names[id(target)])
    assert connection.run_write(ADD, [key], []) == 3  # and from now on
    for client in clients:
        client.close()


def _port(client: redis.Redis) -> int:
    port: int = client.connection_pool.connection_kwargs["port"]
    return port


@pytest.mark.usefixtures("impatient")
def test_cluster_that_is_down_says_so(
    started: Callable[..., Server], opened: Callable[..., RedisClient], key: str
) -> None:
    server = started(cluster_enabled="yes")
    with pytest.raises(StoreUnavailable, match="knows no server for slot"):
        opened(server.url.replace("redis:", "redis+cluster:")).run_write(ADD, [key], [])
    with pytest.raises(StoreUnavailable, match="the cluster is down"):
        opened(server.url).run_write(ADD, [key], [])


def test_server_that_is_one_of_a_cluster_says_so(redis_cluster: Cluster, opened: Callable[..., RedisClient]) -> None:
    connection = opened(redis_cluster.servers[0].url)
    keys = [f"{{{uuid4().hex}}}" for _ in range(100)]
    with pytest.raises(StoreUnavailable, match=r"write redis\+cluster://"):
        all(connection.run_write(ADD, [key], []) for key in keys)


@pytest.mark.usefixtures("impatient")
def test_server_that_is_no_cluster_says_so(redis_server: Server, opened: Callable[..., RedisClient], key: str) -> None:
    with pytest.raises(StoreUnavailable, match="leave \\+cluster out"):
        opened(redis_server.url.replace("redis:", "redis+cluster:")).run_write(ADD, [key], [])
