"""`redrive breaker` on a server: with the rights of pause and resume, in the queues of the token."""

from pathlib import Path

from tests.servers.http import HttpServer
from tests.terminal.cli import Cli

from redrive import connect


def test_token_for_some_queues_opens_and_closes_their_breakers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with connect(url, maintenance=False) as broker:
        broker.create_queue("others")
        broker.create_queue("jobs", retry={"attempts": 3})
        broker.put("jobs", 1)
        (lease,) = broker.lease("jobs")
        broker.fail(lease, ConnectionError("down"))
    store = Cli(url)
    viewer, operator = (
        store.json("token", "create", role, "--role", role, "--queue", "jobs")["token"]
        for role in ("viewer", "operator")
    )
    store("breaker", "open", "others")
    server = HttpServer(url, tmp_path)
    try:
        cli = Cli(server.url)
        for kind in ([], ["--class", "network"]):
            assert cli.error("breaker", "open", "jobs", *kind, "--token", viewer, exits=7)["code"] == "forbidden"
            assert cli.error("breaker", "open", "others", *kind, "--token", operator, exits=7)["code"] == "forbidden"
            assert cli.json("breaker", "open", "jobs", *kind, "--token", operator)["waiting"] == 1
        listed = cli.json("breaker", "list", "--token", viewer)
        assert [(each["queue"], each["kind"]) for each in listed] == [("jobs", "network"), ("jobs", "queue")]
        assert {each["opened_by"] for each in listed} == {"operator"}
        assert len(cli.json("queue", "show", "jobs", "--token", viewer)["stats"]["breakers"]) == 2
        assert cli.error("breaker", "close", "jobs", "--token", viewer, exits=7)["code"] == "forbidden"
        assert cli.json("breaker", "close", "jobs", "--class", "network", "--token", operator)["released"] == 1
        cli("breaker", "close", "jobs", "--token", operator)
        assert [each["queue"] for each in store.json("breaker", "list")] == ["others"]
    finally:
        server.stop()
