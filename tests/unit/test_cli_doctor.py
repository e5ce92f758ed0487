"""`redrive doctor`, `redrive demo` and `redrive bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.terminal.cli import Cli

from redrive import connect
from redrive.cli.output import now
from redrive.testing import FakeClock


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(f"sqlite:///{tmp_path}/store.db")
    cli("queue", "create", "jobs")
    return cli


def states(cli: Cli, exits: int) -> dict[str, Any]:
    found = cli.json("doctor", exits=exits)
    assert found["is_well"] is (exits == 0)
    return {check["name"]: check for check in found["checks"]}


def test_new_store_is_well(cli: Cli) -> None:
    checks = states(cli, 0)
    assert {check["state"] for check in checks.values()} == {"ok"}
    assert {"reachable", "versions", "durability", "store", "clock", "leases", "workers", "queues"} <= checks.keys()
    assert "SQLite 3." in checks["versions"]["finding"]
    assert "full" in checks["durability"]["finding"]
    lines = cli("doctor").stdout.splitlines()
    assert all(line.startswith("ok ") for line in lines)


def test_store_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    checks = states(Cli(f"sqlite:///{tmp_path}/nothing.db"), 1)
    assert checks["reachable"]["state"] == "fail"
    assert "redrive queue create" in checks["reachable"]["advice"]
    assert not list(tmp_path.iterdir())


def test_lease_that_ran_out_is_told_with_what_to_do(cli: Cli) -> None:
    clock = FakeClock()
    with connect(cli.url, maintenance=False, clock=clock) as broker:  # its time is long past
        id = broker.put("jobs", 1).id
        broker.lease("jobs", worker="gone")
    check = states(cli, 1)["leases"]
    assert check["state"] == "warn"
    assert id[:8] in check["finding"]
    assert "start one" in check["advice"]


@pytest.mark.parametrize("deliveries", [1, 2])
@pytest.mark.parametrize("timeout", [None, "1m"])
def test_lease_from_before_the_clock_was_set_back_is_named(cli: Cli, deliveries: int, timeout: str | None) -> None:
    clock = FakeClock()
    clock.advance((now() - clock.now()) / 1_000_000)
    with connect(cli.url, maintenance=False, clock=clock) as broker:
        ids = [broker.put("jobs", number).id for number in range(2)]
        for delivery in range(deliveries):
            clock.advance("2h" if delivery == deliveries - 1 else 0)
            leases = broker.lease("jobs", limit=1, worker="w", lease_timeout=timeout)
            if delivery < deliveries - 1:
                broker.release(leases[0], counted=False)
    check = states(cli, 1)["leases"]
    assert (check["state"], ids[0][:8] in check["finding"]) == ("warn", True)
    assert "1 item leased at a later time than now" in check["finding"]
    assert f"redrive queue retry {ids[0][:8]} --force" in check["advice"]


def test_long_lease_is_no_sign_of_a_clock_that_was_set_back(cli: Cli) -> None:
    with connect(cli.url, maintenance=False) as broker:
        broker.put("jobs", 1)
        lease = broker.lease("jobs", lease_timeout="1d")[0]
        broker.extend(lease, "2d")
    assert states(cli, 0)["leases"]["state"] == "ok"


def test_work_without_a_worker_and_queues_that_stand_still_are_told(cli: Cli) -> None:
    cli("queue", "create", "full", "--max-size", "1")
    cli("queue", "push", "full", "1")
    cli("queue", "pause", "jobs")
    checks = states(cli, 1)
    assert checks["workers"]["finding"] == "no worker for the items that wait in full 1"
    assert checks["paused"]["advice"] == "redrive queue resume jobs"
    assert "full" in checks["full"]["finding"]
    assert "warn  paused" in cli("doctor", exits=1).stdout


def test_operation_that_waits_is_told(cli: Cli) -> None:
    with cli.broker() as broker:
        operation = broker.start_operation("archive", queue="jobs", paused=True)
    assert operation.id[:8] in states(cli, 1)["operations"]["finding"]


def test_operation_that_runs_and_nobody_drives_is_told_with_what_to_do(cli: Cli) -> None:
    with connect(cli.url, maintenance=False, clock=FakeClock()) as broker:  # its time is long past
        operation = broker.start_operation("archive", queue="jobs")
    check = states(cli, 1)["operations"]
    assert check["state"] == "warn"
    assert check["finding"].startswith(
        f"1 operation runs but no process drives it: archive {operation.id[:8]} has made no progress"
    )
    assert f"redrive operation resume {operation.id[:8]}" in check["advice"]
    assert "worker or server" in check["advice"]
    cli("operation", "resume", operation.id[:8], exits=12)
    assert states(cli, 0)["operations"]["finding"] == "none unfinished"


def test_operation_that_has_just_begun_is_well(cli: Cli) -> None:
    with cli.broker() as broker:
        broker.start_operation("archive", queue="jobs")
    assert states(cli, 0)["operations"]["finding"] == "1 running"


def test_less_than_full_durability_is_told() -> None:
    checks = states(Cli("memory://"), 1)
    assert checks["durability"]["state"] == "warn"
    assert "everything" in checks["durability"]["finding"]


def test_check_that_cannot_be_made_does_not_keep_the_others(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.broker.broker import Broker
    from redrive.errors import StoreFailed

    def fails(self: Broker) -> None:
        raise StoreFailed("sqlite", "a page is torn")

    monkeypatch.setattr(Broker, "workers", fails)
    checks = states(cli, 1)
    assert "a page is torn" in checks["workers"]["finding"]
    assert checks["queues"]["state"] == "ok"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:5ec3et@127.0.0.1:1/db?x=1",
        "postgresql://127.0.0.1:1/db?user=ann&password=5ec3et",
        "redis://:5ec3et@127.0.0.1:1",
    ],
)
def test_place_is_told_without_its_password(url: str) -> None:
    result = Cli(url)("doctor", exits=1)
    assert "127.0.0.1:1" in result.stdout.splitlines()[0]
    assert "5ec3et" not in result.output


def test_demo_makes_a_store_of_its_own_and_says_what_to_type(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shown = cli("demo").stdout
    assert "110 items died" in shown
    (url,) = (line.partition("REDRIVE_URL=")[2] for line in shown.splitlines() if "export" in line)
    assert url.startswith(f"sqlite:///{tmp_path}/redrive-demo-")
    assert Cli(url).json("dead", "groups")["dead"] == 110
    assert len(cli.json("queue", "list")) == 1  # what REDRIVE_URL names is not touched


def test_demo_fills_a_store_that_is_named_but_only_once(cli: Cli) -> None:
    assert cli.json("demo", "--url", cli.url)["dead"] == 110
    assert "mails and orders" in cli.error("demo", "--url", cli.url, exits=5)["message"]


def test_bench_measures_and_leaves_nothing_behind(cli: Cli) -> None:
    told = cli.json("bench", "--seconds", "0.05", "--callers", "4", "--size", "10")
    assert told["durability"]["level"] == "full"
    assert [(each["what"], each["callers"]) for each in told["figures"]] == [
        ("put", 1),
        ("lease + complete", 1),
        ("put", 4),
        ("lease + complete", 4),
    ]
    assert all(each["items"] > 0 and each["per_second"] > 0 for each in told["figures"])
    assert cli.json("queue", "list", "--namespace", "redrive-bench") == []
    assert len(cli.json("queue", "list")) == 1
