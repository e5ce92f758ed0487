"""A redrive.toml decides where secrets go and what runs: whose it may be, and what it may send."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.integration.projects import Project
from tests.until import until

from redrive.cli.commands.queue_manage import show
from redrive.cli.main import redrive
from redrive.config.trust import confirm_file, load_trust

TOKEN = "redrive_0123abcd_Zq7"
SECRET = "Zq7secret"


class Listener:
    """A server of somebody else, which writes down all that it is sent."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                listener.heard.append(f"{self.requestline} {self.headers}")
                self.send_error(418)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, and a configuration folder of its own for the user."""
    for name in ("REDRIVE_URL", "REDRIVE_NAMESPACE", "REDRIVE_TOKEN", "REDRIVE_CONFIG", "PGPASSWORD", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "shop" / "src").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "shop")
    return tmp_path / "shop"


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let a file belong to another user than the caller: root can do that, and every other user can be another one."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 54_321, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    return give


def run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(redrive, words, env=environment)


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def kept_list() -> Path:
    """Where all that was confirmed is kept."""
    return Path(os.environ["XDG_CONFIG_HOME"], "redrive", "trusted.json")


# Whose file it is


COMMANDS = [
    ["queue", "list"],
    ["queue", "list", "--url", "sqlite:///other.db"],
    ["doctor"],
    ["work", "--until-idle"],
    ["serve", "--port", "0"],
    ["config", "show"],
    ["config", "check"],
    ["config", "apply"],
    ["config", "trust"],
    ["dead", "groups"],
    ["audit"],
    ["bench"],
    ["token", "list"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_file_of_another_user_is_used_by_no_command(
    folder: Path, listener: Listener, give_away: Callable[[Path], None], words: list[str]
) -> None:
    text = f'url = "{listener.url}"\n[server]\nwork = true\n[queue.q]\n[worker.w]\nqueue = "q"\nrun = "touch ran"\n'
    give_away(write(folder / "redrive.toml", text))
    refused = run(*words, REDRIVE_TOKEN=TOKEN)
    assert refused.exit_code == 3
    assert "belongs to" in refused.stderr
    assert f"--config {folder}/redrive.toml" in refused.stderr
    assert f"redrive config trust {folder}/redrive.toml" in refused.stderr
    assert listener.heard == []
    assert not (folder / "ran").exists()


def test_named_file_is_used_whoever_it_belongs_to(folder: Path, give_away: Callable[[Path], None]) -> None:
    file = write(folder / "redrive.toml", 'namespace = "blue"\n')
    give_away(file)
    assert "blue" in run("config", "show", "--config", str(file)).stdout
    assert "blue" in run("config", "show", str(file)).stdout
    assert "blue" in run("config", "show", REDRIVE_CONFIG=str(file)).stdout


def test_file_in_a_folder_where_others_can_replace_it_is_not_used(folder: Path) -> None:
    write(folder / "redrive.toml", "")
    folder.chmod(0o777)
    refused = run("config", "show")
    assert refused.exit_code == 3
    assert f"is behind {folder}, which can be written by every user" in refused.stderr


def test_confirmed_file_and_folder_are_used_until_that_is_taken_back(folder: Path) -> None:
    file = write(folder / "redrive.toml", 'namespace = "blue"\n')
    folder.chmod(0o777)
    for confirmed in (file, folder, folder.parent):
        assert run("config", "show").exit_code == 3
        assert run("config", "trust", str(confirmed)).exit_code == 0
        assert "blue" in run("config", "show").stdout
        assert str(confirmed) in run("config", "trust", "--list").stdout
        assert "no longer confirmed" in run("config", "trust", "--remove", str(confirmed)).stdout
    assert run("config", "show").exit_code == 3
    assert "nothing was to be done" in run("config", "trust", "--remove", str(file)).stdout


def test_file_that_is_found_above_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "redrive.toml", "[queue.q]\n")
    assert "using" not in run("config", "apply").stderr
    monkeypatch.chdir(folder / "src")
    told = run("queue", "list")
    assert told.stderr.count(f"redrive: using {folder}/redrive.toml\n") == 1
    assert json.loads(run("queue", "list", "-o", "json").stdout)[0]["name"] == "q"
    assert run("queue", "list", "-o", "json").stderr == ""
    assert "using" not in run("queue", "list", "--config", "../redrive.toml").stderr


# What it may send


def test_variable_is_not_sent_to_an_address_of_a_file(folder: Path, listener: Listener) -> None:
    write(folder / "redrive.toml", f'url = "{listener.url}/${{AWS_SECRET_ACCESS_KEY}}"\n')
    refused = run("queue", "list", AWS_SECRET_ACCESS_KEY=SECRET)
    assert refused.exit_code == 3
    assert "redrive.toml:1: url: takes the variable AWS_SECRET_ACCESS_KEY" in refused.stderr
    assert "--allow-variable AWS_SECRET_ACCESS_KEY" in refused.stderr
    assert listener.heard == []
    for words in (["--allow-variable", "AWS_SECRET_ACCESS_KEY", "queue", "list"],
                  ["queue", "list", "--allow-variable", "X", "--allow-variable", "AWS_SECRET_ACCESS_KEY"]):  # fmt: skip
        run(*words, AWS_SECRET_ACCESS_KEY=SECRET)
        assert SECRET in listener.heard.pop()


USES = [
    *(words for words in COMMANDS if words[0] != "config" and "--url" not in words),
    ["config", "apply"],
    ["config", "apply", "redrive.toml"],
    ["queue", "list", "--config", "redrive.toml"],
    ["queue", "push", "q", "{}"],
]
"""Every kind of command that opens the store of a file."""


@pytest.mark.parametrize("words", USES, ids=" ".join)
@pytest.mark.parametrize("place", ["/${REDRIVE_DB_PASSWORD}", "/?${REDRIVE_DB_PASSWORD}", "u:${REDRIVE_DB_PASSWORD}@"])
def test_variable_goes_to_no_address_that_was_not_confirmed(
    folder: Path, listener: Listener, words: list[str], place: str
) -> None:
    host = listener.url.removeprefix("http://")
    address = f"http://{place}{host}" if place.endswith("@") else f"http://{host}{place}"
    file = write(folder / "redrive.toml", f'url = "{address}"\n[server]\nwork = true\n')
    refused = run(*words, REDRIVE_DB_PASSWORD=SECRET)
    assert refused.exit_code == 3, refused.output
    assert "redrive.toml:1: url: is http://" in refused.stderr
    assert "the value of REDRIVE_DB_PASSWORD would be sent there" in refused.stderr
    assert f"redrive config trust {file}" in refused.stderr
    assert SECRET not in refused.output
    assert listener.heard == []


def test_variable_goes_to_a_confirmed_address_until_it_or_the_variable_changes(
    folder: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_OTHER", SECRET)
    text = f'url = "{listener.url}/${{REDRIVE_PATH}}/a"\n'
    file = write(folder / "redrive.toml", text)
    assert run("config", "trust").stdout.endswith(" with REDRIVE_PATH\n")
    run("queue", "list", REDRIVE_PATH=SECRET)
    assert SECRET in listener.heard.pop()
    assert SECRET not in kept_list().read_text()
    for before, after in (("127.0.0.1", "localhost"), ("_PATH}", "_OTHER}"), ("/a", "/b")):
        write(file, text.replace(before, after))
        assert run("queue", "list", REDRIVE_PATH=SECRET).exit_code == 3
    assert listener.heard == []


def test_variable_in_another_store_is_confirmed_too(folder: Path) -> None:
    stores = '[stores]\nb = "redis://:${REDRIVE_B}@127.0.0.1:1"\nurl = "redis://127.0.0.1:1"\n'
    write(folder / "redrive.toml", f'name = "a"\n{stores}')
    refused = run("queue", "create", "q", REDRIVE_B=SECRET)
    assert (refused.exit_code, SECRET in refused.output) == (3, False)
    assert "redrive.toml:3: stores.b: is redis://:[redacted]@127.0.0.1:1, and the value of REDRIVE_B" in refused.stderr
    assert run("queue", "create", "q", "--allow-variable", "REDRIVE_B", REDRIVE_B=SECRET).exit_code == 0
    assert run("queue", "create", "r", REDRIVE_B=SECRET).exit_code == 3
    assert run("config", "trust").exit_code == 0
    assert run("queue", "create", "r", REDRIVE_B=SECRET).exit_code == 0


@pytest.mark.parametrize("command", ["show", "show -o json", "check", "trust"])
def test_variable_of_an_address_is_not_printed(folder: Path, command: str) -> None:
    address = "http://127.0.0.1:1/${REDRIVE_DB_PASSWORD}"
    write(folder / "redrive.toml", f'name = "a"\nurl = "{address}"\n[stores]\nb = "{address}"\n')
    shown = run("config", *command.split(), REDRIVE_DB_PASSWORD=SECRET)
    assert shown.exit_code == 0
    assert SECRET not in shown.output
    assert shown.output.count(address) == (0 if command == "check" else 2)


def test_parameter_that_is_not_shown_cannot_change_in_a_confirmed_address(folder: Path) -> None:
    file = write(folder / "redrive.toml", 'url = "postgresql://u@127.0.0.1:1/x?passfile=a"\n')
    assert run("config", "trust").exit_code == 0
    assert run("queue", "list").exit_code == 6
    write(file, 'url = "postgresql://u@127.0.0.1:1/x?%68ost=localhost&passfile=a"\n')
    assert run("queue", "list").exit_code == 3


def test_token_goes_to_no_address_that_was_not_confirmed(folder: Path, listener: Listener) -> None:
    file = write(folder / "redrive.toml", f'namespace = "x"\nurl = "{listener.url}"\n')
    for refused in (
        run("queue", "list", REDRIVE_TOKEN=TOKEN),
        run("queue", "list", "--token", TOKEN),
        run("queue", "list", "--config", str(file), REDRIVE_TOKEN=TOKEN),
        run("queue", "list", REDRIVE_TOKEN=TOKEN, REDRIVE_CONFIG=str(file)),
        run("doctor", REDRIVE_TOKEN=TOKEN),
        run("config", "apply", REDRIVE_TOKEN=TOKEN),
        run("work", "--until-idle", REDRIVE_TOKEN=TOKEN),
    ):
        assert refused.exit_code == 3
        assert f"redrive.toml:2: url: is {listener.url}, and the token would be sent there" in refused.stderr
        assert f"redrive config trust {file}" in refused.stderr
        assert TOKEN not in refused.output
    assert listener.heard == []
    run("queue", "list")
    assert TOKEN not in listener.heard.pop()


def test_token_goes_to_the_address_that_was_given_with_it(folder: Path, listener: Listener) -> None:
    write(folder / "redrive.toml", 'url = "http://127.0.0.1:1"\n')
    run("queue", "list", "--url", listener.url, REDRIVE_TOKEN=TOKEN)
    assert TOKEN in listener.heard.pop()
    run("queue", "list", REDRIVE_URL=listener.url, REDRIVE_TOKEN=TOKEN)
    assert TOKEN in listener.heard.pop()


def test_token_goes_to_a_confirmed_address_until_it_changes(
    folder: Path, listener: Listener, give_away: Callable[[Path], None]
) -> None:
    file = write(folder / "redrive.toml", f'url = "{listener.url}"\n')
    confirmed = run("config", "trust")
    assert confirmed.stdout == f"{file} is confirmed for {listener.url}\n"
    run("queue", "list", REDRIVE_TOKEN=TOKEN)
    assert TOKEN in listener.heard.pop()
    write(file, f'url = "{listener.url}/elsewhere"\n')
    assert run("queue", "list", REDRIVE_TOKEN=TOKEN).exit_code == 3
    write(file, f'url = "{listener.url}"\n')
    copied = write(folder / "src" / "redrive.toml", file.read_text())
    assert run("queue", "list", "--config", str(copied), REDRIVE_TOKEN=TOKEN).exit_code == 3
    give_away(file)
    assert run("queue", "list", "--config", str(file), REDRIVE_TOKEN=TOKEN).exit_code == 3
    assert listener.heard == []


def test_confirmed_folder_sends_no_token(folder: Path, listener: Listener) -> None:
    write(folder / "redrive.toml", f'url = "{listener.url}"\n')
    assert run("config", "trust", str(folder)).exit_code == 0
    assert run("queue", "list", REDRIVE_TOKEN=TOKEN).exit_code == 3
    assert listener.heard == []


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/x", "postgresql://u@127.0.0.1:1/x?service=prod"])
def test_password_of_libpq_goes_to_no_address_that_was_not_confirmed(folder: Path, url: str) -> None:
    file = write(folder / "redrive.toml", f'name = "a"\n[stores]\nb = "{url}"\n')
    refused = run("queue", "create", "q", PGPASSWORD=SECRET)
    assert refused.exit_code == 3
    assert "redrive.toml:3: stores.b: is postgresql://" in refused.stderr
    assert "PGPASSWORD" in refused.stderr
    assert run("config", "trust", str(file)).exit_code == 0
    assert run("queue", "create", "q", PGPASSWORD=SECRET).exit_code == 0


def test_password_in_the_address_is_sent_without_being_confirmed(folder: Path) -> None:
    write(folder / "redrive.toml", 'url = "postgresql://u:x@127.0.0.1:1/x"\n')
    assert run("queue", "list", PGPASSWORD=SECRET).exit_code == 6


@pytest.mark.parametrize(
    ("line", "option", "asked"),
    [
        ("127.0.0.1:*:*:u:pw", "", False),
        ("*:*:*:u:pw", "", True),
        ("db.internal:*:*:u:pw", "?hostaddr=127.0.0.1", True),
        ("", "?gssdelegation=1", True),
        ("*:*:*:u:pw", "?password=its-own", False),
    ],
)
def test_passwords_that_libpq_gives_to_any_host_need_a_confirmation(
    folder: Path, tmp_path: Path, line: str, option: str, asked: bool
) -> None:
    passwords = write(tmp_path / "passwords", f"# mine\n{line}\n")
    write(folder / "redrive.toml", f'url = "postgresql://u@127.0.0.1:1/x{option}"\n')
    assert run("queue", "list", PGPASSFILE=str(passwords)).exit_code == (3 if asked else 6)
    assert run("config", "trust").exit_code == 0
    assert run("queue", "list", PGPASSFILE=str(passwords)).exit_code == 6


def test_person_in_a_terminal_is_asked_once(folder: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(folder / "redrive.toml", f'url = "{listener.url}"\n')
    monkeypatch.setattr("redrive.cli.bulk_change.in_a_terminal", lambda: True)

    def answer(typed: str) -> Result:
        return CliRunner().invoke(redrive, ["queue", "list"], input=typed, env={"REDRIVE_TOKEN": TOKEN})

    for no in ("n\n", "\n"):
        refused = answer(no)
        assert refused.exit_code == 3
        assert f"{file} sends the token to {listener.url}." in refused.stderr
    assert listener.heard == []
    answer("y\n")
    assert TOKEN in listener.heard.pop()
    assert "sends the token" not in answer("").stderr
    assert TOKEN in listener.heard.pop()


def test_completion_asks_nobody_and_sends_no_token(
    folder: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "redrive.toml", f'url = "{listener.url}"\n')
    monkeypatch.chdir(folder / "src")
    monkeypatch.setenv("REDRIVE_TOKEN", TOKEN)
    monkeypatch.setattr("redrive.cli.bulk_change.in_a_terminal", lambda: True)
    (argument,) = (parameter for parameter in show.params if isinstance(parameter, click.Argument))
    assert argument.shell_complete(click.Context(show), "") == []
    assert listener.heard == []
    assert capsys.readouterr() == ("", "")


# The list itself


def test_list_is_for_its_owner_alone_and_has_no_password(folder: Path) -> None:
    write(folder / "redrive.toml", 'url = "postgresql://u:Zq7secret@127.0.0.1:1/x"\n')
    assert run("config", "trust").exit_code == 0
    kept = kept_list()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert SECRET not in kept.read_text()
    assert [entry.path for entry in load_trust().files] == [str(folder / "redrive.toml")]
    assert list(kept.parent.iterdir()) == [kept]


def test_list_that_others_can_change_confirms_nothing(folder: Path) -> None:
    write(folder / "redrive.toml", 'url = "http://127.0.0.1:1"\n')
    assert run("config", "trust").exit_code == 0
    kept_list().chmod(0o666)
    assert run("queue", "list", REDRIVE_TOKEN=TOKEN).exit_code == 3
    kept_list().chmod(0o600)
    assert run("queue", "list", REDRIVE_TOKEN=TOKEN).exit_code == 6
    kept_list().parent.chmod(0o777)
    told = run("config", "trust")
    assert told.exit_code == 3
    assert "let it belong to you alone" in told.stderr


def test_list_that_cannot_be_read_is_told(folder: Path) -> None:
    write(folder / "redrive.toml", 'url = "http://127.0.0.1:1"\n')
    assert run("config", "trust").exit_code == 0
    kept_list().write_text("{")
    told = run("queue", "list", REDRIVE_TOKEN=TOKEN)
    assert told.exit_code == 3
    assert "remove it, and confirm files again" in told.stderr


def test_user_without_a_folder_of_its_own_has_confirmed_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "redrive.toml", 'url = "http://127.0.0.1:1"\n')

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert "redrive config trust" in run("queue", "list", REDRIVE_TOKEN=TOKEN).stderr
    told = run("config", "trust")
    assert told.exit_code == 3
    assert "set XDG_CONFIG_HOME" in told.stderr


def test_many_confirmations_at_once_are_all_kept(folder: Path) -> None:
    files = [write(folder / f"{number}.toml", "") for number in range(20)]
    threads = [threading.Thread(target=confirm_file, args=(file, ("memory://",))) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.path for entry in load_trust().files) == sorted(map(str, files))


# While it runs


def test_edit_by_another_user_is_not_applied(
    folder: Path, give_away: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    project = Project(folder, "memory://")
    project.write("[queue.jobs]\nmax_size = 5\n")
    running = project.running()
    running.start()
    try:
        with caplog.at_level(logging.WARNING, "redrive"):
            project.write("[queue.jobs]\nmax_size = 7\n")
            give_away(project.file)
            assert [running.check() for _ in range(3)] == [False, False, False]
        assert project.broker.get_queue("jobs").settings.max_size == 5
        assert "config_unreadable" in caplog.text
        assert "it is not read again" in caplog.text
    finally:
        running.stop()
        project.broker.close()


def test_file_that_others_can_write_meanwhile_is_not_applied(folder: Path) -> None:
    project = Project(folder, "memory://")
    project.write("[queue.jobs]\nmax_size = 5\n")
    running = project.running()
    running.start()
    try:
        project.write("[queue.jobs]\nmax_size = 7\n")
        project.file.chmod(0o666)
        assert [running.check() for _ in range(3)] == [False, False, False]
        project.file.chmod(0o644)
        until(lambda: running.check() or project.broker.get_queue("jobs").settings.max_size == 7)
        assert project.broker.get_queue("jobs").settings.max_size == 7
    finally:
        running.stop()
        project.broker.close()
