"""Workers of a redrive.toml: a command for each item, whose exit code says what becomes of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from socket import socket

import pytest
from tests.integration.projects import Project
from tests.until import until

from redrive.testing import FakeClock
from redrive.worker import lease_extender
from redrive.worker.command_process import CommandProcess

WORKER = '[queue.jobs]\n{settings}\n[worker.w]\nqueue = "jobs"\nrun = "./run.sh"\n{options}\n'


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def project(tmp_path: Path, clock: FakeClock) -> Iterator[Project]:
    project = Project(tmp_path, "memory://", clock=clock)
    yield project
    project.broker.close()


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def on_any_store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Project]:
    match request.param:
        case "postgres":
            url = request.getfixturevalue("postgres_url")
        case "redis":
            url = request.getfixturevalue("redis_url")
        case "sqlite":
            url = f"sqlite:///{tmp_path}/jobs.db"
        case _:
            url = "memory://"
    project = Project(tmp_path, url, clock=clock)
    yield project
    project.broker.close()


def set_up(project: Project, command: str, *, settings: str = "", options: str = "") -> None:
    project.command("run.sh", command)
    project.write(WORKER.format(settings=settings, options=options))


# On every store.


def test_failing_command_is_tried_after_each_cooldown_and_its_item_dead_after_the_last(
    on_any_store: Project, clock: FakeClock
) -> None:
    project = on_any_store
    set_up(project, "echo 'no such mailbox' >&2; exit 3", settings='retry = { attempts = 3, cooldown = "30s" }')
    project.work()
    id = project.put({"to": "ada"})
    for failures in (1, 2):
        project.work()
        item = project.get(id)
        assert (item.status, item.counters.failures, item.ready_at) == ("failed", failures, clock.now() + 30_000_000)
        clock.advance("30s")
    project.work()
    item = project.get(id)
    assert (item.status, item.dead_reason, item.counters.failures) == ("dead", "retries_exhausted", 3)
    failure = project.failure(id)
    assert (failure.type, failure.text, failure.exit_code) == ("ExitCode3", "no such mailbox", 3)
    assert failure.duration is not None
    assert failure.worker is not None
    assert failure.worker.startswith("w:")


def test_command_that_is_killed_is_a_loss(on_any_store: Project) -> None:
    project = on_any_store
    set_up(project, "kill -SEGV $$", settings="max_losses = 2")
    project.work()
    id = project.put(1)
    project.work()
    item = project.get(id)
    assert (item.status, item.dead_reason) == ("dead", "worker_lost")
    assert (item.counters.losses, item.counters.failures) == (2, 0)
    failure = project.failure(id)
    assert (failure.type, failure.signal, failure.error_class) == ("WorkerLost", "SIGSEGV", "poison")


def test_command_that_cannot_now_gives_its_item_back_with_a_delay(on_any_store: Project, clock: FakeClock) -> None:
    project = on_any_store
    set_up(project, "echo 'greylisted' >&2; exit 75", settings="max_attempts = 2", options='release_delay = "2m"')
    project.work()
    id = project.put(1)
    project.work()
    item = project.get(id)
    assert (item.status, item.ready_at) == ("pending", clock.now() + 120_000_000)
    assert (item.counters.attempts, item.counters.failures) == (1, 0)
    assert item.history[-1].note == "greylisted"
    clock.advance("2m")
    project.work()
    assert project.get(id).dead_reason == "max_attempts"


def test_item_that_the_command_calls_wrong_is_dead_at_once(on_any_store: Project) -> None:
    project = on_any_store
    set_up(project, "echo 'no address' >&2; exit 65", settings="retry = { attempts = 5 }")
    project.work()
    id = project.put(1)
    project.work()
    item = project.get(id)
    assert (item.status, item.dead_reason) == ("dead", "final_error")
    failure = project.failure(id)
    assert (failure.error_class, failure.text) == ("validation", "no address")


def test_command_that_is_done_completes_its_item(on_any_store: Project) -> None:
    project = on_any_store
    set_up(project, "cat >> done", options="concurrency = 2")
    project.work()
    ids = [project.put(n) for n in range(5)]
    project.work()
    assert sorted(project.text("done")) == list("01234")
    assert project.broker.stats("jobs").completed_total == 5
    assert not project.broker.find(ids=ids).items


@pytest.mark.parametrize("verb", ["drop", "retry", "fail_items"])
def test_command_whose_item_is_taken_away_by_force_ends_and_the_next_item_begins(
    on_any_store: Project, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = on_any_store
    monkeypatch.setattr(lease_extender, "CONFIRM_SECONDS", 0.05)
    set_up(project, "echo $REDRIVE_ID >> begun; [ $REDRIVE_DELIVERIES -gt 1 ] || exec sleep 300")
    running = project.running(watch=False)
    running.start()
    try:
        ids = [project.put(n) for n in range(2)]
        for number, id in enumerate(ids):
            until(lambda id=id: project.has("begun") and id in project.text("begun"))
            if number == 0:
                getattr(project.broker, verb)(id, *(["no"] if verb == "fail_items" else []), force=True)
    finally:
        running.stop_now()
        running.stop()


# What a command is given.


def test_item_is_on_stdin_and_its_fields_in_the_environment(project: Project) -> None:
    set_up(project, "cat > payload; env > variables; pwd > folder")
    project.work()
    headers = {"Trace-Id": "x y", "straße": "1"}
    id = project.put(b"\x00\xffraw", content_type="image/png", headers=headers, priority=7)
    project.work()
    variables = dict(line.partition("=")[::2] for line in project.text("variables").splitlines())
    assert (project.folder / "payload").read_bytes() == b"\x00\xffraw"
    assert project.text("folder").strip() == str(project.folder)
    new = variables.keys() - os.environ.keys()
    given = {name: variables[name] for name in new if name.startswith("REDRIVE_") and "WORKER" not in name}
    assert given == {
        "REDRIVE_ID": id,
        "REDRIVE_QUEUE": "jobs",
        "REDRIVE_NAMESPACE": "default",
        "REDRIVE_CONTENT_TYPE": "image/png",
        "REDRIVE_PRIORITY": "7",
        "REDRIVE_DELIVERIES": "1",
        "REDRIVE_ATTEMPT": "1",
        "REDRIVE_FAILURES": "0",
        "REDRIVE_LOSSES": "0",
        "REDRIVE_REDRIVES": "0",
        "REDRIVE_HEADER_TRACE_ID": "x y",
        "REDRIVE_HEADER_STRA_E": "1",
    }


def test_counters_of_later_tries_are_told(project: Project) -> None:
    set_up(project, 'echo "$REDRIVE_ATTEMPT $REDRIVE_FAILURES" >> tries; exit 1', settings="retry = { attempts = 3 }")
    project.work()
    project.put(1)
    project.work()
    assert project.text("tries").splitlines() == ["1 0", "2 1", "3 2"]


def test_variables_of_the_file_are_given(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMTP_KEY", "k3y")
    monkeypatch.setenv("REDRIVE_TOKEN", "s3cret")
    set_up(project, "env > variables", options='env = { KEY = "${SMTP_KEY}", LANG = "C" }')
    project.work()
    project.put(1)
    project.work()
    told = project.text("variables").splitlines()
    assert {"KEY=k3y", "LANG=C"} <= set(told)
    assert not any("s3cret" in line for line in told)


def test_large_item_that_the_command_does_not_read_is_no_trouble(project: Project) -> None:
    set_up(project, "exit 0", settings="max_payload_size = 60_000_000")
    project.work()
    project.put(b"x" * 50_000_000)
    project.work()
    assert project.broker.stats("jobs").completed_total == 1


# What becomes of it.


def test_what_the_command_prints_is_kept_as_the_result(project: Project) -> None:
    set_up(project, "cat", settings='keep_completed = "1h"', options='keep_result = "1h"')
    project.work()
    ids = [project.put(value) for value in ({"sum": 3}, b"plain text\n", b"\xff", b'"\xff"')]
    project.work()
    results = [project.get(id).result for id in ids]
    assert [result and (result.payload, result.content_type) for result in results] == [
        (b'{"sum":3}', "application/json"),
        (b"plain text\n", "text/plain; charset=utf-8"),
        (b"\xff", "application/octet-stream"),
        (b'"\xff"', "application/octet-stream"),
    ]


def test_result_that_is_too_large_is_a_failure_and_the_work_is_not_done_again(project: Project) -> None:
    command = "echo x >> runs; head -c 9000000 /dev/zero"
    set_up(project, command, settings="retry = { attempts = 3 }", options='keep_result = "1h"')
    project.work()
    id = project.put(1)
    project.work()
    assert (project.failure(id).type, project.get(id).dead_reason) == ("OutputTooLarge", "final_error")
    assert project.text("runs") == "x\n"


def test_result_that_the_queue_has_no_room_for_is_a_failure_and_the_work_is_not_done_again(
    on_any_store: Project,
) -> None:
    project = on_any_store
    command = "echo x >> runs; head -c 3000 /dev/zero"
    settings = "retry = { attempts = 3 }\nmax_payload_size = 1000"
    set_up(project, command, settings=settings, options='keep_result = "1h"')
    project.work()
    id = project.put(1)
    project.work()
    assert project.failure(id).type.endswith("PayloadTooLarge")
    assert project.get(id).dead_reason == "final_error"
    assert project.text("runs") == "x\n"


def test_command_that_is_gone_and_nobody_saw_how_is_a_loss(project: Project) -> None:
    set_up(project, "echo x >> runs; kill -KILL $PPID; exec sleep 300", settings="max_losses = 2")
    running = project.running(watch=False)
    running.start()
    id = project.put(1)
    until(lambda: project.get(id).status == "dead")
    running.stop()
    item = project.get(id)
    assert (item.dead_reason, item.counters.losses, project.text("runs")) == ("worker_lost", 2, "x\nx\n")
    assert project.failure(id).text.startswith("the command vanished after ")


def test_command_that_was_started_and_could_not_be_followed_has_failed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(run: CommandProcess, selector: object, connection: socket, *_: object) -> None:
        connection.recv(100)  # it was started
        raise OSError(errno.EIO, "Input/output error")

    set_up(project, "echo x >> runs", settings="retry = { attempts = 2 }")
    monkeypatch.setattr(CommandProcess, "_follow", cannot)
    running = project.running(watch=False)
    running.start()
    id = project.put(1)
    until(lambda: project.get(id).status == "dead")
    running.stop()
    item = project.get(id)
    assert (item.dead_reason, item.counters.failures) == ("retries_exhausted", 2)
    assert project.failure(id).type == "OSError"


def test_command_that_takes_too_long_fails(project: Project) -> None:
    set_up(project, "echo waiting >&2; exec sleep 300", options='timeout = "3s"')
    project.work()
    id = project.put(1)
    project.work()
    item = project.get(id)
    assert (item.status, item.counters.failures, item.counters.losses) == ("dead", 1, 0)
    failure = project.failure(id)
    assert failure.type == "TimeLimitExceeded"
    assert failure.text.splitlines() == ["the command ran for longer than its timeout, which is 3s", "", "waiting"]
    assert failure.error_class == "network"


def test_last_line_of_stderr_is_what_failures_are_grouped_by(project: Project) -> None:
    set_up(project, 'echo "log of $REDRIVE_ID" >&2; echo "cannot reach the server" >&2; exit 1')
    project.work()
    for n in range(2):
        project.put(n)
    project.work()
    (group,) = project.broker.groups("jobs")
    assert (group.count, group.title) == (2, "ExitCode1: cannot reach the server")


def test_only_the_end_of_stderr_is_kept(project: Project) -> None:
    set_up(project, "for n in $(seq 2000); do echo line $n >&2; done; exit 1")
    project.work()
    id = project.put(1)
    project.work()
    failure = project.failure(id)
    lines = failure.text.splitlines()
    assert (lines[0], lines[-1]) == ("line 2000", "line 2000")
    assert len(failure.text) < 8192
    assert all(line.startswith("line ") for line in lines if line)


def test_errors_are_routed_by_exit_code_and_class(project: Project) -> None:
    set_up(
        project,
        'code=$(cat); echo "code $code" >&2; exit $code',
        settings='dead_queue = { ExitCode3 = "three", validation = "wrong", ExitCode = "others" }',
    )
    project.work()
    for code in (3, 4, 65):
        project.put(code)
    project.work()
    counts = {name: project.broker.stats(name).dead_letters for name in ("three", "wrong", "others")}
    assert counts == {"three": 1, "others": 2, "wrong": 0}  # by type before by class


def test_command_through_a_shell(project: Project) -> None:
    project.write(
        '[queue.jobs]\n[worker.w]\nqueue = "jobs"\nshell = true\nrun = "tr a-z A-Z > out && echo $((1+1)) >> out"\n'
    )
    project.work()
    project.put(b"abc\n", content_type="text/plain")
    project.work()
    assert project.text("out") == "ABC\n2\n"


def test_command_that_vanished_costs_its_items_nothing(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    set_up(project, "exit 0")
    running = project.running(watch=False)
    running.start()
    (project.folder / "run.sh").unlink()
    id = project.put(1)
    until(lambda: "command_not_started" in caplog.text)
    running.stop()
    item = project.get(id)
    assert (item.status, item.counters.attempts, item.counters.failures) == ("pending", 0, 0)
    assert any("cannot be started" in (entry.note or "") for entry in item.history)


# Many, and the end.


def test_as_many_run_at_once_as_the_file_says(project: Project) -> None:
    wait_for_all = "touch began.$REDRIVE_ID; until [ $(ls began.* | wc -l) -ge 4 ]; do sleep 0.01; done"
    set_up(project, wait_for_all, options='concurrency = 4\ntimeout = "2m"')
    project.work()
    for n in range(4):
        project.put(n)
    project.work()
    assert project.broker.stats("jobs").completed_total == 4


def test_no_more_run_at_once_than_the_file_says(project: Project) -> None:
    alone = "mkdir lock || exit 1; sleep 0.05; rmdir lock"
    set_up(project, alone)
    project.work()
    for n in range(5):
        project.put(n)
    project.work()
    assert project.broker.stats("jobs").completed_total == 5


def test_stop_lets_a_command_finish(project: Project) -> None:
    set_up(project, "touch begun; until [ -e go ]; do sleep 0.01; done")
    running = project.running(watch=False)
    running.start()
    id = project.put(1)
    until(lambda: project.has("begun"))
    running.request_stop()
    waiting = project.put(2)
    (project.folder / "go").touch()
    running.stop()
    assert not project.broker.find(ids=[id]).items
    assert project.get(waiting).counters.deliveries == 0


def test_stop_at_once_ends_a_command_and_gives_its_item_back_uncounted(project: Project) -> None:
    set_up(project, "trap 'touch asked; exit 0' TERM; touch begun; while :; do sleep 0.01; done")
    running = project.running(watch=False)
    running.start()
    id = project.put(1)
    until(lambda: project.has("begun"))
    running.request_stop()
    running.stop_now()
    running.stop()
    item = project.get(id)
    assert project.has("asked")
    assert (item.status, item.counters.attempts, item.counters.deliveries) == ("pending", 0, 1)
    assert item.history[-1].note == "its worker was stopped while it ran"


def test_command_that_outlives_the_deadline_of_a_stop_is_ended(project: Project, clock: FakeClock) -> None:
    set_up(project, "trap '' TERM; touch begun; while :; do sleep 0.01; done", options='kill_grace = "100ms"')
    running = project.running(watch=False, shutdown_timeout=0)
    running.start()
    id = project.put(1)
    until(lambda: project.has("begun"))
    running.stop()
    assert (project.get(id).status, project.get(id).counters.attempts) == ("pending", 0)


def test_worker_announces_itself_by_the_name_in_the_file(project: Project) -> None:
    set_up(project, "exit 0", options="concurrency = 3")
    running = project.running(watch=False)
    running.start()
    try:
        until(project.broker.workers)
        (info,) = project.broker.workers()
        assert (info.name.partition(":")[0], info.queues, info.concurrency) == ("w", ("jobs",), 3)
        assert info.handlers is None
    finally:
        running.stop()


def test_lease_of_a_long_command_is_extended(tmp_path: Path) -> None:
    project = Project(tmp_path, "memory://", maintenance=True)
    set_up(project, "touch begun; until [ -e go ]; do sleep 0.01; done", settings='lease_timeout = "3s"')
    running = project.running(watch=False)
    running.start()
    id = project.put(1)
    until(lambda: project.has("begun"))
    first = project.get(id).lease_deadline
    assert first is not None
    until(lambda: (project.get(id).lease_deadline or 0) > first + 1_000_000)
    (project.folder / "go").touch()
    until(lambda: project.broker.stats("jobs").completed_total == 1)
    running.stop()
    project.broker.close()
