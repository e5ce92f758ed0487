"""External queues: what becomes of an object that is listed again, row by row as the guide's table has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.projects import Project
from tests.terminal.cli import Cli
from tests.until import until

from redrive import Item, connect
from redrive.broker.flows import external_polls
from redrive.config import load
from redrive.config.external_queue import Poller
from redrive.model.poll_info import PollInfo
from redrive.testing import FakeClock

FILE = """
[queue.tickets]
type = "external"
list = "cat tickets.json"
{options}
[worker.fixer]
queue = "tickets"
run = "./fix.sh"
"""
HOUR = 'idempotency_timeout = "1h"'


class Source(Project):
    """A project with one external queue, whose command says how often it was run."""

    def __init__(self, folder: Path, url: str = "memory://", **options: Any) -> None:
        self.clock = FakeClock()
        super().__init__(folder, url, clock=self.clock, **options)
        self.command("fix.sh", "cat >> runs; echo >> runs; [ -e mended ]")
        self.set()

    def set(self, options: str = HOUR) -> None:
        self.write(FILE.format(options=options))

    def lists(self, *objects: dict[str, Any]) -> None:
        (self.folder / "tickets.json").write_text(json.dumps(objects))

    def mend(self) -> None:
        """From now on the command succeeds."""
        (self.folder / "mended").touch()

    @property
    def runs(self) -> list[Any]:
        return [json.loads(line) for line in self.text("runs").splitlines()] if self.has("runs") else []

    @property
    def dead(self) -> Item:
        (item,) = self.broker.find(origin_queue="tickets").items
        return item

    @property
    def info(self) -> PollInfo:
        info = self.broker.run_flow(external_polls.poll_of("tickets"))
        assert info is not None
        return info


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    source = Source(tmp_path)
    yield source
    source.broker.close()


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def on_any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    match request.param:
        case "postgres" | "redis" as store:
            url = request.getfixturevalue(f"{store}_url")
        case "sqlite":
            url = f"sqlite:///{tmp_path}/jobs.db"
        case _:
            url = "memory://"
    source = Source(tmp_path, url)
    yield source
    source.broker.close()


# The object changed, or was away.


def test_object_with_a_new_version_is_a_new_item(source: Source) -> None:
    source.set(f'{HOUR}\nversion = "changed"')
    source.mend()
    for version in ("mon", "mon", "tue", 3, "mon"):
        source.lists({"id": 1, "changed": version})
        source.work()
    assert [run["changed"] for run in source.runs] == ["mon", "tue", 3]


def test_new_version_runs_though_the_item_of_the_old_one_is_dead(source: Source) -> None:
    source.set(f'{HOUR}\nversion = "changed"')
    source.lists({"id": 1, "changed": 1})
    source.work()
    source.mend()
    source.lists({"id": 1, "changed": 2})
    source.work()
    assert [run["changed"] for run in source.runs] == [1, 2]
    assert json.loads(source.dead.payload)["changed"] == 1


def test_names_and_versions_are_not_mixed_up(source: Source) -> None:
    source.set('version = "v"')
    source.mend()
    source.lists({"id": "a@b", "v": "c"}, {"id": "a", "v": "b@c"}, {"id": "1", "v": "12"}, {"id": "11", "v": "2"})
    source.work()
    assert len(source.runs) == 4


def test_object_without_its_version_is_left_out_and_told(source: Source) -> None:
    source.set('version = "v"')
    source.lists({"id": 1}, {"id": 2, "v": 1})
    source.work()
    assert source.runs == [{"id": 2, "v": 1}]
    assert "object 1 has no text or number under 'v'" in (source.info.error or "")


def test_object_that_looks_otherwise_and_has_the_same_version_is_the_same(source: Source) -> None:
    source.mend()
    for comments in (1, 2):
        source.lists({"id": 1, "comments": comments})
        source.work()
    assert source.runs == [{"id": 1, "comments": 1}]


@pytest.mark.parametrize("outcome", ["completed", "dead"])
def test_object_that_vanished_and_came_back_is_the_same(source: Source, outcome: str) -> None:
    if outcome == "completed":
        source.mend()
    for objects in ([{"id": 1}], [], [{"id": 1}]):
        source.lists(*objects)
        source.work()
    assert source.runs == [{"id": 1}]


# It is still listed after its item ended.


@pytest.mark.parametrize("keep", ["", 'keep_completed = "1d"'])
def test_completed_object_runs_again_when_its_key_is_forgotten(source: Source, keep: str) -> None:
    source.set(f"{HOUR}\n{keep}")
    source.mend()
    source.lists({"id": 1})
    source.work()
    source.clock.advance("59m")
    source.work()
    assert source.runs == [{"id": 1}]
    source.clock.advance("1m")
    source.work()
    assert source.runs == [{"id": 1}] * 2


def archive(source: Source) -> None:
    source.broker.archive(source.dead.id)


def leave(source: Source) -> None:
    """The dead letter stays as it is."""


@pytest.mark.parametrize("options", [HOUR, f'{HOUR}\ndead_queue = "graves"'], ids=["in place", "dead queue"])
@pytest.mark.parametrize("end", [leave, archive])
def test_failed_object_is_left_alone_as_long_as_its_item_is_there(
    source: Source, end: Callable[[Source], None], options: str
) -> None:
    source.set(options)
    source.lists({"id": 1})
    source.work()
    end(source)
    for _ in range(3):
        source.work()
        source.clock.advance("1h")
    assert source.runs == [{"id": 1}]


def test_object_whose_item_waits_longer_than_its_key_is_known_is_not_put_twice(source: Source) -> None:
    source.lists({"id": 1})
    source.broker.create_queue("tickets", idempotency_timeout="1h")
    poller = Poller(source.broker, "tickets", load(source.file).external["tickets"])
    for expected in (1, 0, 0):
        assert poller.poll() == expected
        source.clock.advance("2h")


def test_expired_object_is_a_dead_letter_and_left_alone(source: Source) -> None:
    source.set(f'{HOUR}\nexpire_timeout = "10m"')
    source.lists({"id": 1})
    source.broker.create_queue("tickets", idempotency_timeout="1h", expire_timeout="10m")
    Poller(source.broker, "tickets", load(source.file).external["tickets"]).poll()
    source.clock.advance("2h")
    source.broker.run_maintenance()
    source.work()
    assert source.runs == []
    assert source.dead.death is not None
    assert source.dead.death.reason == "expired"


@pytest.mark.parametrize("options", [HOUR, f'{HOUR}\ndead_queue = "graves"'], ids=["in place", "dead queue"])
def test_dropped_object_runs_again_and_so_does_one_that_is_dropped_again(on_any_store: Source, options: str) -> None:
    source = on_any_store
    source.set(options)
    source.lists({"id": 1}, {"id": 2})
    for times in (1, 2, 3):
        source.work()
        source.work()
        assert source.runs == [{"id": 1}, {"id": 2}][: 2 if times == 1 else None] + [{"id": 2}] * (times - 1)
        (dropped,) = [item.id for item in source.broker.find().items if json.loads(item.payload) == {"id": 2}]
        source.broker.drop(dropped)


def test_dropped_object_is_known_as_long_as_its_new_key_is(source: Source) -> None:
    source.lists({"id": 1})
    source.work()
    source.broker.drop(source.dead.id)
    source.mend()
    source.clock.advance("50m")
    source.work()
    source.clock.advance("50m")  # the first key is forgotten
    source.work()
    assert source.runs == [{"id": 1}] * 2
    source.clock.advance("10m")
    source.work()
    assert source.runs == [{"id": 1}] * 3


def test_object_that_was_dropped_while_it_was_not_listed_runs_when_it_comes_back(source: Source) -> None:
    source.lists({"id": "x" * 256})
    source.work()
    source.broker.drop(source.dead.id)
    source.lists()
    source.work()
    source.lists({"id": "x" * 256})
    source.work()
    assert len(source.runs) == 2


def test_object_whose_item_was_archived_and_purged_runs_again(source: Source) -> None:
    source.lists({"id": 1})
    source.work()
    id = source.dead.id
    source.broker.archive(id)
    source.broker.purge(id)
    source.work()
    source.work()
    assert source.runs == [{"id": 1}] * 2


def test_object_that_was_dropped_before_it_ran_is_put_again(source: Source) -> None:
    source.lists({"id": 1})
    source.broker.create_queue("tickets")
    poller = Poller(source.broker, "tickets", load(source.file).external["tickets"])
    assert poller.poll() == 1
    (item,) = source.broker.find(queue="tickets", status="pending").items
    source.broker.drop(item.id)
    assert [poller.poll(), poller.poll()] == [1, 0]


def test_two_pollers_put_a_dropped_object_once(source: Source) -> None:
    source.lists({"id": 1})
    source.work()
    source.broker.drop(source.dead.id)
    pollers = [Poller(source.broker, "tickets", load(source.file).external["tickets"]) for _ in range(2)]
    assert sorted(poller.poll() for poller in pollers) == [0, 1]


def test_completed_item_that_is_removed_is_still_completed(source: Source) -> None:
    source.set(f'{HOUR}\nkeep_completed = "1d"')
    source.mend()
    source.lists({"id": 1})
    source.work()
    (item,) = source.broker.find(queue="tickets", status="completed").items
    source.broker.drop(item.id)
    source.work()
    assert source.runs == [{"id": 1}]


def test_object_that_a_person_takes_as_done_does_not_run_again(source: Source) -> None:
    source.lists({"id": 1})
    source.work()
    source.broker.complete_items(source.dead.id)
    source.work()
    assert source.runs == [{"id": 1}]


@pytest.mark.parametrize("settings", ['on_dead = "drop"', 'keep_dead = "1m"'])
def test_object_that_a_setting_removed_runs_again_when_its_key_is_forgotten(source: Source, settings: str) -> None:
    source.set(f"{HOUR}\n{settings}")
    source.lists({"id": 1})
    source.work()
    source.clock.advance("59m")
    source.broker.run_maintenance()
    source.work()
    assert source.runs == [{"id": 1}]
    source.clock.advance("1m")
    source.work()
    assert source.runs == [{"id": 1}] * 2


def completed_in_the_dead_queue(source: Source) -> None:
    (lease,) = source.broker.lease("graves")
    source.broker.complete(lease)


def moved_by_hand(source: Source) -> None:
    source.broker.create_queue("elsewhere")
    source.broker.move(source.dead.id, "elsewhere")


@pytest.mark.parametrize("end", [completed_in_the_dead_queue, moved_by_hand])
def test_object_whose_item_went_elsewhere_runs_again_when_its_key_is_forgotten(
    source: Source, end: Callable[[Source], None]
) -> None:
    source.set(f'{HOUR}\ndead_queue = "graves"')
    source.lists({"id": 1})
    source.work()
    end(source)
    source.work()
    assert source.runs == [{"id": 1}]
    source.clock.advance("1h")
    source.work()
    assert source.runs == [{"id": 1}] * 2


def test_object_whose_item_went_to_another_store_runs_again_when_its_key_is_forgotten(tmp_path: Path) -> None:
    archive = f"sqlite:///{tmp_path}/archive.db"
    with connect(archive, maintenance=False) as other:
        other.create_queue("graves")
    source = Source(tmp_path, store_name="main", stores={"archive": archive})
    source.set(f'{HOUR}\ndead_queue = "graves@archive"')
    source.write('name = "main"\n[stores]\narchive = "sqlite:///archive.db"\n' + source.text("redrive.toml"))
    source.lists({"id": 1})
    source.work()
    source.work()  # it is on its way
    source.broker.run_maintenance()
    with connect(archive, maintenance=False) as other:
        assert other.stats("graves").dead_letters == 1
    source.work()
    assert source.runs == [{"id": 1}]
    source.clock.advance("1h")
    source.work()
    assert source.runs == [{"id": 1}] * 2
    source.broker.close()


@pytest.mark.parametrize(
    ("verb", "options"),
    [("redrive", HOUR), ("redrive", f'{HOUR}\ndead_queue = "graves"'), ("retry", HOUR)],
    ids=["redriven in place", "redriven from the dead queue", "retried"],
)
def test_object_that_a_person_brings_back_runs_once_more(source: Source, verb: str, options: str) -> None:
    source.set(options)
    source.lists({"id": 1})
    source.work()
    source.mend()
    getattr(source.broker, verb)(source.dead.id)
    source.work()
    source.work()
    assert source.runs == [{"id": 1}] * 2


def test_command_that_says_later_is_run_again_by_itself(source: Source) -> None:
    source.command("fix.sh", "cat >> runs; echo >> runs; [ -e mended ] || exit 75")
    source.lists({"id": 1})
    source.work()
    source.mend()
    source.clock.advance("30s")
    source.work()
    assert source.runs == [{"id": 1}] * 2
    assert source.broker.stats("tickets").completed_total == 1


# How it was listed.


def test_listings_are_counted_with_what_they_had(source: Source) -> None:
    source.lists({"id": 1}, {"id": 2})
    source.work()
    source.clock.advance("1m")
    source.lists({"id": 1}, {"id": 2}, {"id": 3})
    source.work()
    info = source.info
    assert (info.polls, info.errors, info.objects, info.added, info.error) == (2, 0, 3, 1, None)
    assert info.polled_at == source.clock.now()
    assert not info.has_failed


def test_error_of_a_listing_is_kept_with_its_time_and_the_next_one_goes_on(source: Source) -> None:
    source.lists({"id": 1})
    source.work()
    (source.folder / "tickets.json").unlink()
    source.clock.advance("1m")
    failed_at = source.clock.now()
    source.work()
    assert source.info.has_failed
    assert "exit code 1" in (source.info.error or "")
    source.clock.advance("1m")
    source.lists({"id": 1}, {"id": 2})
    source.work()
    info = source.info
    assert (info.polls, info.errors, info.added, info.error_at, info.has_failed) == (3, 1, 1, failed_at, False)
    assert "exit code 1" in (info.error or "")


@pytest.mark.parametrize(
    ("listing", "told", "added"),
    [
        ("hello", "neither a JSON array nor an object a line", 0),
        ('{"id": 1}\n{"id": 1, "again": true}', "object 2 has the same key as another, '1'", 1),
        ('{"id": 1}\n{}', "object 2 has no text or number under 'id'", 1),
        ("\n".join(f'{{"id": {n}}}' for n in range(10_001)), "more than 10,000 objects", 2),
        ('{"id": 1}\n{"id": 2}\n{"id": 3}', "is full: 2 of max_size 2", 2),
    ],
    ids=["garbage", "same key twice", "no key", "too many", "full"],
)
def test_what_is_wrong_with_a_listing_is_registered(source: Source, listing: str, told: str, added: int) -> None:
    source.set("max_size = 2")
    (source.folder / "tickets.json").write_text(listing)
    source.work()
    assert told in (source.info.error or "")
    assert (source.info.errors, source.info.added, source.info.has_failed) == (1, added, True)


def test_secret_in_an_error_of_a_listing_is_not_registered(source: Source) -> None:
    source.set()
    source.write(source.text("redrive.toml").replace("cat tickets.json", "./list.sh"))
    source.command("list.sh", "echo 'Authorization: Bearer abcdefghijklmnop0123456789' >&2; exit 1")
    source.work()
    assert "exit code 1" in (source.info.error or "")
    assert "abcdefghijklmnop" not in (source.info.error or "")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Project]:
    """A project in a file, for commands in a terminal; it lists once a day, and says in `listed` how often."""
    project = Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    project.command("fix.sh", "cat >> runs; echo >> runs")
    project.command("list.sh", "echo x >> listed; cat tickets.json")
    project.write(FILE.format(options='poll = "1d"').replace("cat tickets.json", "./list.sh"))
    (tmp_path / "tickets.json").write_text("")
    yield project
    project.broker.close()


@pytest.fixture
def cli(shop: Project) -> Cli:
    return Cli(f"sqlite:///{shop.folder}/jobs.db")


def test_push_without_a_payload_lets_running_processes_list_now(shop: Project, cli: Cli) -> None:
    running = shop.running(watch=False)
    running.start()
    until(lambda: cli.json("queue", "show", "tickets")["external"]["polls"] == 1)
    for count in (2, 3):
        (shop.folder / "tickets.json").write_text(f'{{"id": {count}}}')
        said = cli.json("queue", "push", "tickets")
        assert said["requested"] is True
        assert said["workers"][0].startswith("fixer:")
        until(lambda: shop.has("runs") and shop.text("runs").count("id") == count - 1)  # noqa: B023
        assert shop.text("listed") == "x\n" * count
    assert "tickets is listed now by fixer:" in cli("queue", "push", "tickets").stdout
    running.stop()


def test_push_says_that_no_process_lists_the_queue(shop: Project, cli: Cli) -> None:
    shop.work(workers=())
    said = cli("queue", "push", "tickets", exits=1).stdout
    assert "no process lists it now" in said
    assert cli.json("queue", "push", "tickets", exits=1) == {"queue": "tickets", "requested": False, "workers": []}


def test_push_with_a_payload_puts_an_item(shop: Project, cli: Cli) -> None:
    shop.work(workers=())
    cli("queue", "push", "tickets", '{"id": 1}')
    cli("queue", "push", "tickets", "-", input='{"id": 2}')
    assert shop.broker.stats("tickets").pending == 2


def test_push_to_another_queue_takes_its_payload_from_stdin(shop: Project, cli: Cli) -> None:
    shop.broker.create_queue("jobs")
    cli("queue", "push", "jobs", input="1")
    assert shop.broker.stats("jobs").pending == 1


def test_listings_are_shown_with_their_errors(shop: Project, cli: Cli) -> None:
    shop.broker.create_queue("jobs")
    shop.work(workers=())
    assert "never listed yet" in cli("queue", "show", "tickets").stdout
    (shop.folder / "tickets.json").write_text('{"id": 1}')
    shop.work()
    shown = cli("queue", "show", "tickets").stdout
    assert "external: listed 1 time; 1 object, 1 new" in shown
    assert "last error" not in shown
    (shop.folder / "tickets.json").unlink()
    shop.work()
    shown = cli("queue", "show", "tickets").stdout
    assert "listed 2 times, 1 error; 0 objects, 0 new" in shown
    assert "the command ended with exit code 1: cat: tickets.json" in shown
    assert "external list-error" in cli("queue", "list").stdout
    queues = {each["name"]: each["external"] for each in cli.json("queue", "list")}
    assert queues["jobs"] is None
    assert (queues["tickets"]["polls"], queues["tickets"]["errors"]) == (2, 1)
    assert queues["tickets"]["error_at"] == queues["tickets"]["polled_at"]


def test_queue_that_is_external_no_more_is_shown_as_any_other(shop: Project, cli: Cli) -> None:
    shop.work()
    assert cli.json("queue", "show", "tickets")["external"]["polls"] == 1
    shop.write("[queue.tickets]\n")
    shop.work()
    assert cli.json("queue", "show", "tickets")["external"] is None
    assert "external" not in cli("queue", "list").stdout
