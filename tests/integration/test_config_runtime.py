"""A redrive.toml in force: edited while it runs, with workers that come and go, and external queues."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.projects import Project
from tests.until import until

from redrive.clock import Instant
from redrive.config import load
from redrive.config.external_queue import LOOK, Poller
from redrive.config.runtime import ConfigRuntime
from redrive.config.watcher import POLL_SECONDS, ConfigWatcher
from redrive.errors import InvalidConfig, InvalidSetting, StoreUnavailable
from redrive.testing import FakeClock
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.worker.command_process import CommandProcess

BEGIN_AND_WAIT = "touch begun; until [ -e go ]; do sleep 0.01; done"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path, "memory://")
    yield project
    project.broker.close()


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def on_any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    match request.param:
        case "postgres" | "redis" as store:
            url = request.getfixturevalue(f"{store}_url")
        case "sqlite":
            url = f"sqlite:///{tmp_path}/jobs.db"
        case _:
            url = "memory://"
    project = Project(tmp_path, url)
    yield project
    project.broker.close()


def worker(retry: str = "", options: str = "") -> str:
    return f'[queue.jobs]\n{retry}\n[worker.w]\nqueue = "jobs"\nrun = "./run.sh"\n{options}\n'


def edit(project: Project, running: ConfigRuntime, text: str) -> None:
    """Write the file, and look at it until that is in force."""

    def is_in_force() -> bool:
        running.check()  # it looks by itself too
        return running._config.text == text

    project.write(text)
    until(is_in_force)


def invalid(project: Project, **options: object) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as refused:
        project.running(**options).start()
    return refused.value


# Edits.


def test_edit_while_running_holds_for_the_next_failure(on_any_store: Project) -> None:
    project = on_any_store
    project.command("run.sh", f"{BEGIN_AND_WAIT}; exit 1")
    project.write(worker())
    running = project.running()
    running.start()
    id = project.put(1)
    until(lambda: project.has("begun"))
    project.write(worker('retry = { attempts = 3, cooldown = "1h" }'))
    until(lambda: project.broker.get_queue("jobs").settings.retry.attempts == 3)  # it looks by itself
    (project.folder / "go").touch()
    until(lambda: project.get(id).status == "failed")
    running.stop()
    assert project.get(id).counters.failures == 1


def test_it_starts_while_the_store_of_a_dead_queue_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stores = {"archive": f"sqlite:///{tmp_path}/later/archive.db"}
    project = Project(tmp_path, "memory://", store_name="main", stores=stores)
    project.command("run.sh", "touch ran")
    there = f'name = "main"\n[stores]\narchive = "{stores["archive"]}"\n'
    project.write(there + worker('dead_queue = "morgue@archive"'))
    running = project.running()
    running.start()
    try:
        project.put(1)
        until(lambda: project.has("ran"))
        for _ in range(3):
            running.check()
        (tmp_path / "later").mkdir()
        project.broker.on_store("archive").create_queue("morgue")
        until(lambda: project.broker.get_queue("jobs").settings.dead_queue == "morgue@archive")  # without a restart
    finally:
        running.stop()
        project.broker.close()
    logged = [record.event for record in caplog.records if record.levelno >= logging.WARNING]  # type: ignore[attr-defined]
    assert logged == ["config_deferred"]


def test_edit_that_waits_for_the_store_is_logged_once_for_each_reason(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    reasons = iter([*["away"] * 3, *["full"] * 2])

    def refuse(_: object) -> None:
        raise StoreUnavailable("main", next(reasons))

    project.write("[queue.jobs]\n")
    watcher = ConfigWatcher(load(project.file), refuse)
    project.write("[queue.jobs]\nmax_size = 5\n")
    assert [watcher.check() for _ in range(6)] == [False] * 6
    messages = [record.getMessage() for record in caplog.records]
    assert ["away" in messages[0], "full" in messages[1]] == [True, True]
    assert [record.event for record in caplog.records] == ["config_not_applied"] * 2  # type: ignore[attr-defined]


def test_edit_that_is_wrong_is_told_once_and_changes_nothing(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    project.command("run.sh", "exit 0")
    project.write(worker("max_size = 5"))
    running = project.running(watch=True)
    running.start()
    project.write(worker("max_size = 6\nlease_timeout = 'soon'"))
    for _ in range(4):
        assert not running.check()
    running.stop()
    (told,) = [record for record in caplog.records if record.event == "config_invalid"]  # type: ignore[attr-defined]
    assert "queue.jobs.lease_timeout" in told.getMessage()
    assert ":3:" in told.getMessage()
    assert project.broker.get_queue("jobs").settings.max_size == 5


def test_edit_that_the_store_refuses_changes_nothing(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    project.write("[queue.jobs]\nmax_size = 5\n")
    running = project.running()
    running.start()
    project.broker.create_queue("end")
    project.broker.create_queue("middle", dead_queue="end")
    project.write('[queue.jobs]\nmax_size = 6\ndead_queue = "middle"\n')
    for _ in range(4):
        assert not running.check()
    running.stop()
    assert caplog.text.count("cannot have its own dead_queue") == 1
    assert project.broker.get_queue("jobs").settings.max_size == 5


def test_file_that_is_being_written_anew_is_waited_for(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    project.write("[queue.jobs]\nmax_size = 5\n")
    running = project.running()
    running.start()
    project.file.unlink()
    assert not running.check()
    assert not running.check()
    project.write("[queue.jobs]\nmax_size = 6\n")
    until(lambda: project.broker.get_queue("jobs").settings.max_size == 6)
    running.stop()
    assert caplog.text.count("config_unreadable") == 1


def test_file_that_is_seen_half_written_changes_nothing(project: Project) -> None:
    project.write("[queue.jobs]\nretry = { attempts = 5 }\n")
    running = project.running()
    project.work(workers=())
    for half in ("", "[queue.jobs]\n", "[queue.jobs]\nmax_size = 5\n"):
        project.write(half)
        assert not running.check()
    assert project.broker.get_queue("jobs").settings.retry.attempts == 5
    edit(project, running, "[queue.jobs]\nmax_size = 5\nretry = { attempts = 6 }\n")
    assert project.broker.get_queue("jobs").settings.retry.attempts == 6


def test_edit_that_comes_before_its_program_is_applied_when_that_is_there(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    project.write("[queue.jobs]\n")
    running = project.running()
    running.start()
    project.put(7)
    project.write(worker())
    until(lambda: running.check() or "config_invalid" in caplog.text)
    assert not running.check()
    project.command("run.sh", "cat >> done")
    until(lambda: project.broker.stats("jobs").completed_total == 1)
    running.stop()
    assert project.text("done") == "7"
    assert caplog.text.count("config_invalid") <= 2  # it may have been there, and not executable yet


def test_where_the_store_is_cannot_change_while_it_runs(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    project.write("[queue.jobs]\n")
    running = project.running()
    running.start()
    edit(project, running, 'namespace = "other"\nurl = "sqlite:///x.db"\n[queue.jobs]\n')
    running.stop()
    (told,) = [record for record in caplog.records if record.event == "config_needs_restart"]  # type: ignore[attr-defined]
    assert told.fields["keys"] == "url, namespace"  # type: ignore[attr-defined]


def test_settings_of_the_file_cannot_be_changed_by_another_way_meanwhile(project: Project) -> None:
    project.write("[queue.jobs]\nmax_size = 5\n")
    running = project.running()
    running.start()
    with pytest.raises(InvalidSetting, match=str(project.file)):
        project.broker.update_queue("jobs", max_size=6)
    running.stop()


def test_it_looks_about_once_a_second() -> None:
    assert POLL_SECONDS == 1.0


# Workers that come and go.


def test_worker_that_is_added_begins(project: Project) -> None:
    project.command("run.sh", "cat >> done")
    project.write("[queue.jobs]\n")
    running = project.running()
    running.start()
    project.put(7)
    edit(project, running, worker())
    until(lambda: project.broker.stats("jobs").completed_total == 1)
    running.stop()
    assert project.text("done") == "7"


def test_worker_that_is_changed_finishes_what_it_runs_before_the_next_begins(project: Project) -> None:
    project.command("run.sh", f"echo old-$(cat) >> order; {BEGIN_AND_WAIT}; echo old-done >> order")
    project.command("new.sh", "echo new-$(cat) >> order")
    project.write(worker())
    running = project.running()
    running.start()
    project.put(1)
    until(lambda: project.has("begun"))
    edit(project, running, worker().replace("run.sh", "new.sh"))
    project.put(2)
    (project.folder / "go").touch()
    until(lambda: project.broker.stats("jobs").completed_total == 2)
    running.stop()
    assert project.text("order").splitlines() == ["old-1", "old-done", "new-2"]


def test_changed_worker_begins_in_the_slots_that_are_free(project: Project) -> None:
    project.command("run.sh", BEGIN_AND_WAIT)
    project.command("new.sh", "mkdir lock || exit 1; sleep 0.05; rmdir lock")  # one at a time, as one slot is taken
    project.write(worker(options="concurrency = 2"))
    running = project.running(shutdown_timeout=0)
    running.start()
    old = project.put("old")
    until(lambda: project.has("begun"))
    edit(project, running, worker(options="concurrency = 2").replace("run.sh", "new.sh"))
    for n in range(5):
        project.put(n)
    until(lambda: project.broker.stats("jobs").completed_total == 5)
    assert project.get(old).status == "active"
    (project.folder / "go").touch()
    until(lambda: project.broker.stats("jobs").completed_total == 6)
    running.stop()


def test_stop_hastens_a_worker_that_was_removed(project: Project) -> None:
    project.command("run.sh", BEGIN_AND_WAIT)
    project.write(worker())
    running = project.running(shutdown_timeout=0)
    running.start()
    id = project.put(1)
    until(lambda: project.has("begun"))
    edit(project, running, "[queue.jobs]\n")
    assert project.get(id).status == "active"
    running.stop()
    assert (project.get(id).status, project.get(id).counters.attempts) == ("pending", 0)


def test_worker_that_is_removed_ends(project: Project) -> None:
    project.command("run.sh", "cat >> done")
    project.write(worker())
    running = project.running()
    running.start()
    until(project.broker.workers)
    edit(project, running, "[queue.jobs]\n")
    until(lambda: not project.broker.workers())
    running.stop()


def test_chosen_workers_run_and_others_do_not(project: Project) -> None:
    project.command("run.sh", "echo $REDRIVE_QUEUE >> done")
    project.write(worker() + '[queue.mails]\n[worker.m]\nqueue = "mails"\nrun = "./run.sh"\n')
    project.work(workers=())
    for queue in ("jobs", "mails"):
        project.put(1, queue)
    project.work(workers=["m"])
    assert project.text("done") == "mails\n"


# What cannot begin.


def test_worker_that_the_file_does_not_have_is_told(project: Project) -> None:
    project.command("run.sh", "exit 0")
    project.write(worker().replace("worker.w", "worker.mailer"))
    error = invalid(project, workers=["mailr"])
    assert "worker.mailr: is not in the file (did you mean mailer?)" in str(error)


def test_command_that_is_not_there_is_told_before_anything_changes(project: Project) -> None:
    project.write(worker() + '[worker.x]\nqueue = "jobs"\nrun = "no-such-program-anywhere"\n')
    error = invalid(project)
    assert [key for _, key, _ in error.problems] == ["worker.w.run", "worker.x.run"]
    assert "there is no file" in str(error)
    assert "there is no program no-such-program-anywhere in the PATH" in str(error)
    assert project.broker.list_queues() == ()


def test_command_that_is_not_executable_is_told(project: Project) -> None:
    project.command("run.sh", "exit 0").chmod(0o644)
    project.write(worker())
    assert "chmod +x" in str(invalid(project))


def test_variable_that_a_worker_needs_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMTP_KEY", raising=False)
    project.command("run.sh", "exit 0")
    project.write(worker(options='env = { KEY = "${SMTP_KEY}" }'))
    load(project.file)  # whoever does not run it need not have it
    error = invalid(project)
    assert (error.key, error.line) == ("worker.w.env.KEY", 6)
    assert "SMTP_KEY" in error.problem


def test_queue_that_is_nowhere_is_told(project: Project) -> None:
    project.command("run.sh", "exit 0")
    project.write('[queue.emails]\n[worker.w]\nqueue = "email"\nrun = "./run.sh"\n')
    error = invalid(project)
    assert (error.line, error.key) == (3, "worker.w.queue")
    assert "'email' does not exist (did you mean emails?)" in error.problem


def test_queue_that_only_the_store_has_can_be_worked_on(project: Project) -> None:
    project.broker.create_queue("jobs")
    project.command("run.sh", "exit 0")
    project.write('[worker.w]\nqueue = "jobs"\nrun = "./run.sh"\n')
    project.put(1)
    project.work()
    assert project.broker.stats("jobs").completed_total == 1


# External queues.

TICKETS = """
[queue.tickets]
type = "external"
list = "cat tickets.json"
{options}
[worker.fixer]
queue = "tickets"
run = "./fix.sh"
"""


def external(project: Project, listing: str, *, options: str = "", fix: str = "cat >> fixed; echo >> fixed") -> None:
    (project.folder / "tickets.json").write_text(listing)
    project.command("fix.sh", fix)
    project.write(TICKETS.format(options=options))


def fixed(project: Project) -> list[object]:
    return [json.loads(line) for line in project.text("fixed").splitlines()] if project.has("fixed") else []


def test_objects_of_a_source_become_items_once(on_any_store: Project) -> None:
    project = on_any_store
    external(project, '[{"id": 1, "title": "a"}, {"id": "2", "x": 1.50}]')
    project.work()
    project.work()
    assert fixed(project) == [{"id": 1, "title": "a"}, {"id": "2", "x": 1.5}]
    external(project, '{"id": 3}\n\n{"id": 1, "title": "changed"}\n')
    project.work()
    assert fixed(project)[2:] == [{"id": 3}]


def test_source_is_asked_again_and_again(tmp_path: Path) -> None:
    clock = FakeClock()
    project = Project(tmp_path, "memory://", clock=clock)
    external(project, "[]", options='poll = "30s"')
    running = project.running(watch=False)
    running.start()
    clock.until_waiting()
    (tmp_path / "tickets.json").write_text('[{"id": 1}]')
    assert fixed(project) == []
    clock.advance("30s")
    until(lambda: fixed(project) == [{"id": 1}])
    running.stop()
    project.broker.close()


def test_poller_waits_between_two_looks_at_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    project = Project(tmp_path, "memory://", clock=clock)
    external(project, "[]", options='poll = "30s"')
    project.work(workers=())
    poller = Poller(project.broker, "tickets", load(project.file).external["tickets"])
    waits: list[int] = []
    wait = clock.wait

    def record(event: threading.Event, end: Instant) -> None:
        if event is poller._end:
            waits.append(end - clock.now())
        wait(event, end)

    monkeypatch.setattr(clock, "wait", record)
    poller.start()
    until(lambda: waits)
    poller.close()
    assert waits == [LOOK]
    project.broker.close()


def test_item_is_taken_where_it_comes_from_before_the_work(project: Project) -> None:
    external(project, '[{"id": 1}, {"id": 2}]', options='claim = "./take.sh"')
    project.command("take.sh", "read it; echo $it >> asked; echo 'somebody has it' >&2; case $it in *2*) exit 1;; esac")
    (project.folder / "tickets.json").write_text('{"id": 1}\n{"id": 2}\n')
    project.work()
    assert sorted(project.text("asked").splitlines()) == ['{"id": 1}', '{"id": 2}']
    assert fixed(project) == [{"id": 1}]
    assert project.broker.stats("tickets").completed_total == 2


def test_item_that_was_taken_once_is_not_taken_again(project: Project) -> None:
    external(project, '[{"id": 1}]', options='claim = "./take.sh"', fix="[ -e mended ] && cat >> fixed || kill -9 $$")
    project.command("take.sh", "mkdir taken")  # the second time it fails
    (project.folder / "redrive.toml").write_text(
        project.text("redrive.toml").replace("[worker", "max_losses = 2\n[worker")
    )
    project.work()
    (item,) = project.broker.find(queue="tickets", status="dead").items
    assert item.counters.losses == 2
    (project.folder / "mended").touch()
    project.broker.redrive(item.id)
    project.work()
    assert fixed(project) == [{"id": 1}]


@pytest.mark.parametrize("end", ["kill -9 $$", "sleep 60"])
def test_item_whose_take_was_cut_off_after_it_had_claimed_is_not_lost(project: Project, end: str) -> None:
    external(project, '[{"id": 1}]', options='claim = "./take.sh"\ntimeout = "3s"\nmax_losses = 1')
    project.command("take.sh", f"mkdir taken || exit 1; {end}")  # the second time it says that somebody has it
    project.work()
    (item,) = project.broker.find(queue="tickets", status="dead").items
    project.broker.redrive(item.id)
    project.work()
    assert fixed(project) == [{"id": 1}]


@pytest.mark.parametrize("code", [126, 127])
def test_take_that_could_not_be_run_does_not_say_that_somebody_has_the_item(project: Project, code: int) -> None:
    external(project, '[{"id": 1}]', options='claim = "./take.sh"\nshell = true')
    if code == 126:
        project.command("take.sh", "exit 0").chmod(0o644)
    project.work()
    (item,) = project.broker.find(queue="tickets", status="dead").items
    assert (project.failure(item.id).exit_code, fixed(project)) == (code, [])
    project.command("take.sh", "exit 0")
    project.broker.redrive(item.id)
    project.work()
    assert fixed(project) == [{"id": 1}]


def test_item_is_not_run_where_take_could_not_be_asked_the_second_time(project: Project) -> None:
    external(project, '[{"id": 1}]', options='claim = "./take.sh"\nmax_losses = 1')
    for command, runs in (("kill -9 $$", []), ("no-such-program-anywhere", []), ("exit 1", [{"id": 1}])):
        project.command("take.sh", command)
        project.work()
        assert fixed(project) == runs
        for item in project.broker.find(queue="tickets", status="dead").items:
            project.broker.redrive(item.id)


def test_take_that_could_not_be_started_has_asked_nobody(
    project: Project, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.worker.command_runner.RETRY_SECONDS", 0.01)
    external(project, '[{"id": 1}]', options='claim = "./take.sh"')
    shell = project.folder / "shell"
    project.command("take.sh", "").write_text(f"#!{shell}\nexit 1\n")
    running = project.running(watch=False)
    running.start()
    until(lambda: caplog.text.count("command_not_started") >= 2)
    shell.symlink_to("/bin/sh")  # from now on it says that somebody else has it
    until(lambda: project.broker.stats("tickets").completed_total == 1)
    running.stop()
    assert fixed(project) == []


def test_listing_that_is_larger_than_the_queue_is_put_as_there_is_room(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    objects = [{"id": n} for n in range(12)]
    external(project, json.dumps(objects), options="max_size = 5")
    for done in (5, 10, 12):
        project.work()
        assert fixed(project) == objects[:done]
    assert caplog.text.count("queue 'tickets' is full: 5 of max_size 5") == 2


@pytest.mark.parametrize(
    "bad", [r'{"id": "\ud800"}', '{"id": 2, "n": 1e999}', '{"id": 2, "text": "too long to be put"}']
)
def test_object_that_cannot_be_an_item_is_told_once_and_the_others_are_put(
    project: Project, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    external(project, f'[{{"id": 1}}, {bad}, {{"id": 3}}]', options="max_payload_size = 32")
    project.work(workers=())
    poller = Poller(project.broker, "tickets", load(project.file).external["tickets"])
    assert [poller.poll(), poller.poll()] == [2, 0]
    assert caplog.text.count("external_objects_rejected") == 1
    (project.folder / "tickets.json").write_text('[{"id": 1}, {"id": 4}]')
    assert poller.poll() == 1
    external(project, f'[{{"id": 1}}, {bad}]')
    assert poller.poll() == 0
    assert caplog.text.count("external_objects_rejected") == 2


def test_object_that_is_no_text_does_not_end_the_listing(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    external(project, "[]")
    (project.folder / "tickets.json").write_bytes(b'[{"id": "\xff"}]')
    project.work()
    assert "external_poll_failed" in caplog.text


def test_listing_that_begins_while_it_is_closed_is_ended(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    external(project, "[]")
    project.write(project.text("redrive.toml").replace("cat tickets.json", "sleep 600"))

    class Late(CommandProcess):
        """Made right after somebody looked whether there is one to be stopped."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            poller._end.set()

    monkeypatch.setattr("redrive.config.external_queue.CommandProcess", Late)
    poller = Poller(project.broker, "tickets", load(project.file).external["tickets"])
    poller.start()
    poller._thread.join(PATIENCE_SECONDS)
    assert not poller._thread.is_alive()


def test_take_that_cannot_tell_now_is_asked_again_later(tmp_path: Path) -> None:
    clock = FakeClock()
    project = Project(tmp_path, "memory://", clock=clock)
    external(project, '[{"id": 1}]', options='claim = "./take.sh"')
    project.command("take.sh", "[ -e online ] || exit 75")
    project.work()
    assert fixed(project) == []
    clock.advance("30s")
    (tmp_path / "online").touch()
    project.work()
    assert fixed(project) == [{"id": 1}]
    project.broker.close()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("echo 'not logged in' >&2; exit 4", "exit code 4: not logged in"),
        ("echo '[{'", "neither a JSON array nor an object a line"),
        ("echo hello", "neither a JSON array nor an object a line"),
        ("kill -9 $$", "SIGKILL"),
        ("head -c 9000000 /dev/zero", "printed more than"),
        ("exec sleep 300", "ran for longer than 300ms"),
    ],
)
def test_listing_that_cannot_be_used_is_told_and_nothing_else_happens(
    project: Project, caplog: pytest.LogCaptureFixture, command: str, told: str
) -> None:
    external(project, "", options='timeout = "300ms"' if "sleep" in command else "")
    project.command("list.sh", command)
    project.write(project.text("redrive.toml").replace("cat tickets.json", "./list.sh"))
    with caplog.at_level(logging.WARNING, "redrive"):
        project.work()
    (record,) = [record for record in caplog.records if record.event == "external_poll_failed"]  # type: ignore[attr-defined]
    assert told in record.getMessage()
    assert project.broker.stats("tickets").put_total == 0


def test_object_without_a_key_is_told_and_the_others_are_put(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    external(
        project,
        '[{"number": 1}, {"id": 1}, 3, {"number": "x"}, {"number": 1, "again": true}]',
        options='key = "number"',
    )
    project.work()
    assert fixed(project) == [{"number": 1}, {"number": "x"}]
    assert "object 2 has no text or number under 'number'" in caplog.text


def test_key_of_the_object_is_in_the_environment(project: Project) -> None:
    external(project, '[{"id": "GH-7"}]', fix="echo $REDRIVE_HEADER_EXTERNAL_KEY > key")
    project.work()
    assert project.text("key") == "GH-7\n"
