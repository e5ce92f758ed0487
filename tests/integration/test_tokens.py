"""Tokens from the command line to a running server: made on its store, used by clients, and revoked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.servers.http import Caller, HttpServer
from tests.terminal.cli import run_here

from redrive import App, Broker, connect
from redrive.auth import token_store
from redrive.auth.principal import TOKENS_NAMESPACE, Role
from redrive.cli.error_output import NOT_FOUND, UNAUTHORIZED, USAGE
from redrive.contract.admin_calls import AuditNote, Register, Unregister
from redrive.errors import (
    Forbidden,
    InvalidInput,
    ItemNotFound,
    LeaseLost,
    QueueNotFound,
    ResultNotKept,
    ResultTimeout,
    TaskFailed,
    Unauthorized,
)
from redrive.mailbox import DeadLetter, DLQConsumer, DLQPolicy, Mailbox, MainLoop, MainLoopRequest, MainLoopResult
from redrive.model.masked_item import MASKED_TYPE
from redrive.task.result_handle import await_result
from redrive.testing import drain
from redrive.worker.worker import Worker

REVOKED_SECONDS = 1.0


class Shop:
    """A server on a file, with an admin token that was made on the file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store_url = f"sqlite:///{folder}/jobs.db"
        self.admin = self.process("--url", self.store_url, "token", "create", "ann", "--role", "admin")
        self.server = HttpServer(self.store_url, folder)
        with self.connect(self.admin) as broker:
            for side in ("own", "foreign"):
                broker.create_queue(f"{side}-dead")
                broker.create_queue(f"{side}-jobs", dead_queue=f"{side}-dead", retry={"attempts": 2})

    def redrive(self, *arguments: str, code: int = 0) -> str:
        """What a command prints to stdout, or to stderr where it fails."""
        done = run_here(self.folder, arguments)
        assert done.exit_code == code, (done.stdout, done.stderr)
        return done.stdout.strip() if code == 0 else done.stderr

    def process(self, *arguments: str, code: int = 0) -> str:
        """The same of a command in a process of its own."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        command = [sys.executable, "-m", "redrive", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.folder, timeout=240)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout.strip() if code == 0 else done.stderr

    def command(self, *arguments: str) -> str:
        """What a command prints that the admin gives, over the server."""
        return self.redrive("--url", self.server.url, "--token", self.admin, *arguments)

    def token(self, name: str, role: str, *queues: str, namespaces: tuple[str, ...] = ("*",)) -> str:
        """A token that the admin makes, over the server."""
        with connect(self.server.url, token=self.admin, namespace=TOKENS_NAMESPACE) as broker:
            made = token_store.create(
                broker.core.clock, name, (role,), queues=queues or ("*",), namespaces=namespaces, created_by="ann"
            )
            return broker.run_flow(made).text

    def connect(self, token: str | None) -> Broker:
        return connect(self.server.url, token=token)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    yield shop
    shop.server.stop()


def test_token_alone_is_on_stdout(shop: Shop) -> None:
    assert shop.admin.startswith("redrive_")
    assert len(shop.admin.split()) == 1
    # It is nowhere in the file of the store.
    files = [path.read_bytes() for path in shop.folder.glob("jobs.db*")]
    assert not any(shop.admin.rpartition("_")[2].encode() in content for content in files)


def test_nobody_gets_in_without_a_token(shop: Shop) -> None:
    for token in (None, "redrive_00000000_" + "0" * 48):
        with pytest.raises(Unauthorized):
            shop.connect(token).list_queues()


def test_producer_puts_and_does_nothing_else(shop: Shop) -> None:
    with shop.connect(shop.token("producer", "producer", "own-*")) as broker:
        id = broker.put("own-jobs", {"n": 1}).id
        for refused in (
            lambda: broker.put("foreign-jobs", 1),
            lambda: broker.lease("own-jobs"),
            lambda: broker.get(id),
            lambda: broker.stats("own-jobs"),
            lambda: broker.create_queue("own-new"),
        ):
            with pytest.raises(Forbidden):
                refused()


def test_consumer_works_in_its_own_queues(shop: Shop) -> None:
    with (
        shop.connect(shop.admin) as admin,
        shop.connect(shop.token("consumer", "consumer", "own-jobs")) as broker,
    ):
        drain(admin, "own-jobs", lambda lease: None)
        id = admin.put("own-jobs", {"n": 1}, headers={"a": "b"}).id
        (lease,) = broker.lease("own-jobs", worker="host-1")
        assert (lease.value, dict(lease.headers)) == ({"n": 1}, {"a": "b"})
        assert admin.get(id).worker == "consumer/host-1"
        broker.extend(lease)
        broker.fail(lease, "once")
        (lease,) = broker.lease("own-jobs")
        # Its dead go to a queue that it cannot even see.
        assert broker.fail(lease, "twice").queue == "own-dead"
        with pytest.raises(Forbidden):
            broker.get_queue("own-dead")
        admin.put("foreign-jobs", 2)
        (foreign,) = admin.lease("foreign-jobs")
        for settle in (broker.complete, broker.extend, broker.release, broker.bury):
            with pytest.raises(LeaseLost):
                settle(foreign.token)
        admin.complete(foreign)


def test_lease_that_ran_out_is_given_to_the_next_consumer(shop: Shop) -> None:
    with (
        shop.connect(shop.admin) as admin,
        shop.connect(shop.token("sweeper", "consumer", "own-brief")) as broker,
    ):
        admin.create_queue("own-brief", lease_timeout="1ms")
        id = admin.put("own-brief", 1).id
        broker.lease("own-brief")
        leases = broker.lease("own-brief", wait="10s")
        assert [lease.id for lease in leases] == [id]
        assert leases[0].losses == 1


def test_viewer_sees_no_payloads_and_an_operator_does(shop: Shop) -> None:
    with shop.connect(shop.admin) as admin:
        id = admin.put("foreign-jobs", {"secret": "swordfish"}).id
    with shop.connect(shop.token("viewer", "viewer")) as viewer:
        item = viewer.get(id)
        assert (item.payload, item.content_type) == (b"", MASKED_TYPE)
        assert viewer.find(status="any", queue="foreign-jobs").items[0].payload == b""
        with pytest.raises(Forbidden):
            viewer.find(words="swordfish")
        lines = b"".join(viewer.export(status="any", queue="foreign-jobs"))
        assert b'"redacted":true' in lines
    with shop.connect(shop.token("operator", "operator", "foreign-*")) as operator:
        assert operator.get(id, redacted=False).value == {"secret": "swordfish"}
        operator.bury_items(id)
        with pytest.raises(Forbidden):
            operator.drop(id)
    with shop.connect(shop.token("own-operator", "operator", "own-*")) as operator:
        with pytest.raises(ItemNotFound):
            operator.get(id)
        assert {queue.name for queue in operator.list_queues()} >= {"own-jobs", "own-dead"}
        assert not any(queue.name.startswith("foreign") for queue in operator.list_queues())
    with shop.connect(shop.admin) as admin:
        assert [entry.actor for entry in admin.audit(1)] == ["operator"]


def test_revoked_token_is_refused_within_a_second(shop: Shop) -> None:
    token = shop.token("brief", "viewer")
    with shop.connect(token) as broker:
        broker.list_queues()
        shop.redrive("--url", shop.store_url, "token", "revoke", "brief")
        revoked_at = asked_at = time.monotonic()
        while is_let_in(broker):
            assert asked_at - revoked_at <= REVOKED_SECONDS
            asked_at = time.monotonic()


def is_let_in(broker: Broker) -> bool:
    try:
        broker.list_queues()
    except Unauthorized:
        return False
    return True


def test_consumer_of_dead_letters_says_at_its_start_that_it_may_not_replay_them(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    for role, warnings in (("consumer", 1), ("operator", 0)):
        caplog.clear()
        with shop.connect(shop.token(f"{role}-of-letters", role, "own-*")) as broker:
            letters: Mailbox[DeadLetter[Any], None] = Mailbox(broker, "own-dead", body=DeadLetter[Any])
            consumer: DLQConsumer[Any] = DLQConsumer(mailbox=letters, handler=lambda letter: None)
            consumer.prepare()
        assert caplog.text.count("dlq_replay_not_allowed mailbox=own-dead") == warnings


def test_tokens_are_listed_without_secrets(shop: Shop) -> None:
    roles = ("--role", "producer", "--role", "viewer")
    text = shop.command("token", "create", "listed", *roles, "--namespace", "team-*", "--expires", "30d")
    for place in (("--url", shop.store_url), ("--url", shop.server.url, "--token", shop.admin)):
        printed = shop.redrive(*place, "token", "list")
        assert "listed" in printed
        assert "producer, viewer" in printed
        assert "team-*" in printed
        found = {token["name"]: token for token in json.loads(shop.redrive(*place, "token", "list", "-o", "json"))}
        assert found["listed"]["roles"] == ["producer", "viewer"]
        assert text.rpartition("_")[2] not in str(found) + printed
        assert "digest" not in found["listed"]


def test_tokens_made_and_revoked_are_in_the_audit(shop: Shop) -> None:
    roles = ("--role", "producer", "--role", "viewer")
    made = shop.command("token", "create", "noted", *roles)
    shop.command("token", "revoke", "noted")
    shop.redrive("--url", shop.store_url, "token", "create", "noted", "--role", "consumer")
    shop.redrive("--url", shop.store_url, "token", "revoke", "noted")
    printed = shop.command("audit", "-o", "json")
    entries = [entry for entry in json.loads(printed) if entry.get("note", "").startswith("noted")]
    told = [(entry["verb"], entry["note"]) for entry in reversed(entries)]
    assert told == [
        ("create_token", "noted: producer, viewer"),
        ("revoke_token", "noted"),
        ("create_token", "noted: consumer"),
        ("revoke_token", "noted"),
    ]
    assert [entry["actor"] == "ann" for entry in reversed(entries)] == [True, True, False, False]
    assert {entry["namespace"] for entry in entries} == {TOKENS_NAMESPACE}
    digest = token_store.digest_of(made.rpartition("_")[2])
    assert made.rpartition("_")[2] not in printed
    assert digest not in printed
    assert "noted: producer, viewer" in shop.redrive("--url", shop.store_url, "audit")


def test_audit_of_tokens_is_shown_to_those_alone_who_may_make_some(shop: Shop) -> None:
    viewer = shop.token("reader", "viewer")
    assert "create_token" not in shop.redrive("--url", shop.server.url, "--token", viewer, "audit", "-o", "json")


def test_admin_cannot_make_a_token_that_the_audit_does_not_tell_of(shop: Shop) -> None:
    made = token_store.AccessToken("0" * 8, "hushed", "0" * 64, (Role.ADMIN,))
    with connect(shop.server.url, token=shop.admin, namespace=TOKENS_NAMESPACE) as broker:
        commit = broker.core.store.commit
        commit([Register("token", "hushed", msgspec.json.encode(made))])
        lie = AuditNote("mallory", "nothing", "nothing")
        commit([Unregister("token", "hushed", lie), Register("token", "hushed", b"no token", audit=lie)])
        commit([Unregister("token", "hushed")])
        entries = broker.audit(4)
    assert {entry.actor for entry in entries} == {"ann"}
    assert [(entry.verb, entry.note) for entry in reversed(entries)] == [
        ("create_token", "hushed: admin"),
        ("revoke_token", "hushed"),
        ("create_token", "hushed: no role"),
        ("revoke_token", "hushed"),
    ]


def test_only_an_admin_of_everything_makes_tokens(shop: Shop) -> None:
    almost = (
        shop.token("almost", "admin", "own-*"),
        shop.token("nearly", "admin", namespaces=("default",)),
        shop.token("other", "operator"),
    )
    for token in almost:
        with pytest.raises(Forbidden), connect(shop.server.url, token=token, namespace=TOKENS_NAMESPACE) as broker:
            broker.run_flow(token_store.create(broker.core.clock, "x", ("admin",), created_by="x"))
    create = ("token", "create", "x", "--role", "admin")
    said = shop.redrive("--url", shop.server.url, "--token", almost[2], *create, code=7)
    assert "does not have the permission" in said


def test_token_of_a_name_that_is_taken_or_unknown_is_refused(shop: Shop) -> None:
    said = shop.redrive("--url", shop.store_url, "token", "create", "ann", "--role", "admin", code=3)
    assert "there is a token called 'ann'" in said
    said = shop.redrive("--url", shop.store_url, "token", "revoke", "nobody", code=4)
    assert "there is no token called" in said


def test_server_does_not_listen_for_others_without_tokens(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "redrive", "--url", f"sqlite:///{tmp_path}/x.db", "serve", "--host", "0.0.0.0"]
    done = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode != 0
    assert "redrive token create" in done.stderr


def test_worker_needs_no_more_than_the_role_of_a_consumer(shop: Shop) -> None:
    app = App("memory://")  # the broker that it is given says where it works
    done: list[int] = []

    @app.queue("own-tasks", retry={"attempts": 2}).task
    def add(number: int) -> None:
        done.append(number)
        if number < 0:
            raise ValueError("too small")

    with (
        shop.connect(shop.admin) as admin,
        shop.connect(shop.token("worker", "consumer", "own-tasks")) as broker,
    ):
        app.create_queues(admin)
        app.create_queues(broker)  # which finds the queue as it should be, and changes nothing
        for number in (1, -1):
            admin.put_many("own-tasks", [add.item(number).item])
        Worker(app, broker=broker, name="host-1").run(until_idle=True)
        assert sorted(done) == [-1, -1, 1]
        (dead,) = admin.find(queue="own-tasks").items
        assert {entry.worker for entry in dead.history} == {"worker/host-1"}


@pytest.mark.parametrize(("kept", "settings", "options"), [
    ("item", {"keep_completed": "1h"}, {}), ("result", {}, {"keep_result": "1h"})
])  # fmt: skip
def test_program_that_waits_for_results_needs_no_more_than_the_role_of_a_requester(
    shop: Shop, kept: str, settings: Any, options: Any
) -> None:
    app = App("memory://")
    queue = f"own-sums-{kept}"
    sums = app.queue(queue, retry={"attempts": 1}, **settings)

    @sums.task(**options)
    def add(a: int, b: int) -> int:
        if a < 0:
            raise ValueError("too small")
        return a + b

    with shop.connect(shop.admin) as admin:
        app.create_queues(admin)
        askers = (shop.token(f"asker-{kept}", "requester"), shop.token(f"asker-of-{kept}", "requester", queue))
        for requester in askers:
            with shop.connect(requester) as broker, app.override_broker(broker):
                good, bad = add.put(1, 2), add.put(-1, 2)
                with pytest.raises(ResultTimeout):
                    good.result(timeout=0)
                Worker(app, broker=admin).run(until_idle=True)
                assert good.result(timeout=120) == 3
                with pytest.raises(TaskFailed, match="too small") as failed:
                    bad.result(timeout=120)
                assert failed.value.failure.traceback is None
                with pytest.raises(Forbidden):
                    broker.find(queue=queue)
        producer = shop.token(f"teller-{kept}", "producer", queue)
        with shop.connect(producer) as broker, app.override_broker(broker), pytest.raises(Forbidden):
            add.put(1, 2).result(timeout=120)


@pytest.mark.parametrize("keep_completed", ["0s", "1h"])
async def test_result_of_another_queue_is_not_there_under_its_id(shop: Shop, keep_completed: str) -> None:
    queue = f"foreign-sums-{keep_completed}"
    token = shop.token(f"curious-{keep_completed}", "requester", "own-*")
    with shop.connect(shop.admin) as admin, shop.connect(token) as curious, Caller(shop.server.port, token) as caller:
        admin.create_queue(queue, keep_completed=keep_completed)
        id = admin.put(queue, 1).id

        async def is_nowhere() -> bool:
            with pytest.raises(ResultNotKept):
                curious.run_flow(await_result(curious.core, "sum", id, 0))
            answers = [await caller.call("items.result", id=each) for each in (id, "ab" * 16)]
            assert [(status, said["code"]) for status, said in answers] == [(404, "result_unavailable")] * 2
            return curious.result(id) is None

        assert await is_nowhere()
        (lease,) = admin.lease(queue)
        admin.complete(lease, result="secret", keep_result="1h")
        kept = admin.result(id)
        assert kept is not None
        assert (kept.value, kept.queue) == ("secret", queue)
        assert await is_nowhere()


def test_loop_needs_no_more_than_the_role_of_a_consumer_and_a_request_that_of_a_requester(shop: Shop) -> None:
    asks, answers = MainLoopRequest[str], MainLoopResult[int]

    def mailboxes(broker: Broker) -> tuple[Mailbox[Any, Any], Mailbox[Any, Any], Mailbox[Any, Any]]:
        return (
            Mailbox(broker, "own-asks", body=asks, reply=answers),
            Mailbox(broker, "own-answers", body=answers),
            Mailbox(broker, "own-asks-dlq", body=DeadLetter[asks]),  # type: ignore[valid-type]
        )

    def handler(text: str) -> int:
        return len(text) if text else 1 // 0

    with (
        shop.connect(shop.admin) as admin,
        shop.connect(shop.token("looper", "consumer", "own-asks*")) as consumer,
        shop.connect(shop.token("caller", "requester", "own-*")) as requester,
    ):
        admin.create_queue("own-asks-dlq", max_attempts=0)
        admin.create_queue("own-answers")
        admin.create_queue("own-asks")
        requests, _, dead = mailboxes(consumer)
        loop: MainLoop[str, int] = MainLoop(requests=requests, handler=handler, dlq=DLQPolicy(dead, 1))
        with pytest.raises(InvalidInput, match="redrive queue update own-asks --max-attempts 0 --max-losses 1"):
            loop.run(max_iterations=1)
        admin.update_queue("own-asks", max_attempts=0, max_losses=1, dead_queue="own-asks-dlq")
        ours, replies, _ = mailboxes(requester)
        sent = {ours.send(MainLoopRequest(text), reply_to=replies): text for text in ("abc", "")}
        serving = threading.Thread(target=loop.run, kwargs={"max_iterations": 3, "wait_time_seconds": 20})
        serving.start()
        assert ours.request(MainLoopRequest("abcd"), "120s").output == 4
        serving.join()
        assert len(admin.find(queue="own-asks-dlq").items) == 1
        with pytest.raises(Forbidden):
            replies.receive()
        (_, _, letters), (_, received, _) = mailboxes(consumer), mailboxes(admin)
        found = {reply.reply_for: reply.body.output for reply in received.receive(max_messages=10)}
        assert found == {id: len(text) or None for id, text in sent.items()}
        (letter,) = letters.receive()
        assert letter.body.last_error_type == "builtins.ZeroDivisionError"
        letter.acknowledge()
        with pytest.raises(Forbidden):
            requests.purge(0)
        with pytest.raises((Forbidden, QueueNotFound)):
            requests.send(MainLoopRequest("x"), reply_to="foreign-jobs")
        for unknown in ("own-new", "foreign-new"):
            with pytest.raises((Forbidden, QueueNotFound)):
                Mailbox(consumer, unknown).send(1)


JOBS = """
from pathlib import Path
from redrive import App

app = App()

@app.queue("own-notes").task
def note(word: str) -> None:
    Path("noted").write_text(word)
"""


def test_worker_of_an_app_shows_its_token_and_ends_where_it_is_not_let_in(shop: Shop) -> None:
    (shop.folder / "tasks_of_the_shop.py").write_text(JOBS)
    work = ("work", "tasks_of_the_shop:app", "--until-idle", "--url", shop.server.url)
    with shop.connect(shop.admin) as admin:
        admin.create_queue("own-notes")
        admin.put("own-notes", {"word": "done"}, headers={"task": "note"})
    worker = shop.token("noter", "consumer", "own-notes")
    for options in ((), ("--token", worker[:-1])):
        refused = shop.process(*work, *options, code=UNAUTHORIZED)
        assert "token" in refused
        assert "Traceback" not in refused
    shop.process(*work, "--token", worker)
    assert (shop.folder / "noted").read_text() == "done"


LOOPS = """
import os
from pathlib import Path
from redrive import connect
from redrive.mailbox import DeadLetter, DLQPolicy, LoopGroup, Mailbox, MainLoop, MainLoopRequest, MainLoopResult

Ask = MainLoopRequest[str]
broker = connect("{url}", token=os.environ.get("REDRIVE_TOKEN"))
requests = Mailbox(broker, "own-questions", body=Ask, reply=MainLoopResult[str])
dead = Mailbox(broker, "own-questions-dlq", body=DeadLetter[Ask])

def respond(path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        os._exit(3)
    return "again"

group = LoopGroup([MainLoop(requests=requests, handler=respond, dlq=DLQPolicy(dead, 3))])
"""


def test_mailbox_with_a_url_takes_its_token_from_the_environment(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unauthorized, match="needs a token"):
        Mailbox(shop.server.url, "own-jobs")
    monkeypatch.setenv("REDRIVE_TOKEN", shop.token("post", "producer", "own-*"))
    with Mailbox(shop.server.url, "own-jobs") as mailbox:
        assert mailbox.send({"n": 1})


def test_group_of_loops_needs_the_token_of_a_consumer_also_to_settle_what_it_left(shop: Shop) -> None:
    (shop.folder / "loops_of_the_shop.py").write_text(LOOPS.format(url=shop.server.url))
    work = ("work", "loops_of_the_shop:group")
    refused = shop.process(*work, code=UNAUTHORIZED)
    assert "token" in refused
    assert "Traceback" not in refused
    with shop.connect(shop.admin) as admin:
        admin.create_queue("own-questions-dlq", max_attempts=0)
        admin.create_queue("own-questions", lease_timeout="1h")
        token = ("--token", shop.token("group", "consumer", "own-questions*"))
        told = "redrive queue update own-questions --max-attempts 0 --max-losses 3 --dead-queue own-questions-dlq"
        assert told in shop.process(*work, *token, code=USAGE)
        admin.update_queue("own-questions", max_attempts=0, max_losses=3, dead_queue="own-questions-dlq")
        requests = Mailbox(admin, "own-questions", body=MainLoopRequest[str], reply=MainLoopResult[str])
        command = [sys.executable, "-m", "redrive", *work, *token]
        with subprocess.Popen(command, cwd=shop.folder, stderr=subprocess.PIPE, text=True) as process:
            assert requests.request(MainLoopRequest("seen"), "120s").output == "again"
            process.terminate()
            _, log = process.communicate(timeout=120)
        assert process.returncode == 0, log
        assert "lost=1 returned=0" in log


def test_worker_that_may_not_lease_ends_with_the_exit_code_of_that_error(shop: Shop) -> None:
    (shop.folder / "tasks_to_look_at.py").write_text(JOBS)
    with shop.connect(shop.admin) as admin:
        admin.create_queue("own-notes")
    viewer = ("--until-idle", "--url", shop.server.url, "--token", shop.token("onlooker", "viewer"))
    told = "does not have the permission consume"
    assert told in shop.process("work", "tasks_to_look_at:app", *viewer, code=UNAUTHORIZED)
    (shop.folder / "look.toml").write_text('[worker.looker]\nqueue = "own-notes"\nrun = ["true"]\n')
    refused = shop.process("work", "looker", "--config", "look.toml", *viewer, code=UNAUTHORIZED)
    assert told in refused.splitlines()[-1]
    assert "Traceback" not in refused


def test_worker_whose_queue_does_not_exist_ends_with_the_exit_code_of_that_error(shop: Shop) -> None:
    file = '[queue.own-nowhere]\n[worker.idler]\nqueue = "own-nowhere"\nrun = ["true"]\n'
    (shop.folder / "absent.toml").write_text(file)
    consumer = shop.token("idler", "consumer", "own-nowhere")  # who may not make the queue
    work = ("work", "--config", "absent.toml", "--until-idle", "--url", shop.server.url, "--token", consumer)
    refused = shop.process(*work, code=NOT_FOUND)
    assert "own-nowhere" in refused.splitlines()[-2]
    with shop.connect(shop.admin) as admin:
        admin.create_queue("own-nowhere")
        shop.process(*work)
