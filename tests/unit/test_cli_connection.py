"""Which store a command works on, and that looking begins none."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.terminal.cli import Cli, kill

from redrive import connect
from redrive.cli.common_options import command, command_line
from redrive.cli.main import redrive
from redrive.cli.store_target import StoreTarget, find_target


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("REDRIVE_URL", "REDRIVE_NAMESPACE", "REDRIVE_TOKEN", "REDRIVE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def place_of(*words: str, environment: dict[str, str] | None = None) -> StoreTarget:
    """The place that a command would work on."""
    found: list[StoreTarget] = []

    @command("look")
    def look() -> None:
        found.append(find_target())

    result = CliRunner().invoke(look, words, env=environment)
    assert result.exit_code == 0, result.output
    return found[0]


def run(*words: str) -> Result:
    return CliRunner().invoke(redrive, words)


def test_option_goes_before_environment_before_file_before_default(folder: Path) -> None:
    assert place_of() == StoreTarget("sqlite:///redrive.db", "default", "default")
    (folder / "redrive.toml").write_text('url = "sqlite:////tmp/of-the-file.db"\nnamespace = "blue"\n')
    of_file = place_of()
    assert (of_file.url, of_file.namespace) == ("sqlite:////tmp/of-the-file.db", "blue")
    assert of_file.source == str(folder / "redrive.toml")
    environment = {"REDRIVE_URL": "sqlite:///env.db", "REDRIVE_NAMESPACE": "green", "REDRIVE_TOKEN": "t"}
    assert place_of(environment=environment) == StoreTarget("sqlite:///env.db", "green", "REDRIVE_URL", "t")
    given = place_of("--url", "http://host:7272", "--namespace", "red", "--token", "s", environment=environment)
    assert given == StoreTarget("http://host:7272", "red", "--url", "s")
    assert given.is_server


def test_name_of_the_store_is_known_without_other_stores(folder: Path) -> None:
    file = folder / "redrive.toml"
    file.write_text('name = "main"\n[queue.a]\ndead_queue = "x@main"\n')
    assert run("config", "apply").exit_code == 0
    assert json.loads(run("queue", "show", "a", "-o", "json").stdout)["settings"]["dead_queue"] == "x"
    with connect(f"sqlite:///{folder}/redrive.db", maintenance=False) as broker:
        kill(broker, "a", [1])
    refused = run("dead", "redrive", "-q", "x", "--to", "y@other", "--yes", "1")
    assert "this program knows no store 'other', only main" in refused.stderr
    assert "under [stores] in the redrive.toml that has the url of this store" in refused.stderr


def test_second_file_is_refused_until_it_takes_over(folder: Path) -> None:
    for name, size in (("one", 1), ("two", 2)):
        (folder / name).mkdir()
        text = f'url = "sqlite:///{folder}/jobs.db"\n[queue.a]\nmax_size = {size}\n'
        (folder / name / "redrive.toml").write_text(text)
    one, two = (str(folder / name / "redrive.toml") for name in ("one", "two"))
    assert run("config", "apply", one).exit_code == 0
    for words in (["config", "apply", two], ["work", "--until-idle", "--config", two]):
        refused = run(*words)
        assert (refused.exit_code, f"queue.a: is managed by {one}" in refused.stderr) == (3, True)
    assert run("config", "apply", "--take-over", two).exit_code == 0
    assert run("work", "--until-idle", "--config", two).exit_code == 0
    assert run("config", "apply", one).exit_code == 3


def test_another_file_is_named_by_option_or_variable(folder: Path) -> None:
    (folder / "redrive.toml").write_text('url = "sqlite:///here.db"\n')
    other = folder / "other.toml"
    other.write_text('url = "postgresql://host/db"\nname = "here"\n[stores]\nthere = "redis://host"\n')
    place = place_of("--config", str(other))
    assert (place.url, place.name, place.stores) == ("postgresql://host/db", "here", {"there": "redis://host"})
    assert place_of(environment={"REDRIVE_CONFIG": str(other)}).url == "postgresql://host/db"


def test_options_of_the_store_may_stand_before_and_behind_the_command(folder: Path) -> None:
    assert run("--url", "sqlite:///a.db", "queue", "create", "x").exit_code == 0
    before = run("--url", "sqlite:///a.db", "-o", "json", "queue", "list")
    behind = run("queue", "list", "--url", "sqlite:///a.db", "-o", "json")
    assert json.loads(before.stdout)[0]["name"] == json.loads(behind.stdout)[0]["name"] == "x"


@pytest.mark.parametrize(
    "words",
    [
        ["queue", "list"],
        ["queue", "push", "q", "1"],
        ["dead", "groups"],
        ["dead", "redrive", "--all"],
        ["operation", "list"],
        ["undo", "7f3a90c1"],
        ["audit"],
        ["bench"],
    ],
)
def test_command_that_looks_begins_no_store(folder: Path, words: list[str]) -> None:
    result = run(*words)
    assert result.exit_code == 6
    assert "there is no store yet" in result.stderr
    assert "redrive queue create NAME" in result.stderr
    assert list(folder.iterdir()) == []


def test_create_begins_one(folder: Path) -> None:
    assert run("queue", "create", "jobs").exit_code == 0
    with connect("sqlite:///redrive.db", create_if_missing=False) as broker:
        assert broker.get_queue("jobs").name == "jobs"


def test_namespaces_do_not_see_each_other(folder: Path) -> None:
    run("queue", "create", "jobs", "--namespace", "blue")
    assert json.loads(run("queue", "list", "-o", "json").stdout) == []
    assert len(json.loads(run("queue", "list", "-o", "json", "--namespace", "blue").stdout)) == 1


def test_token_for_a_store_is_a_mistake(folder: Path) -> None:
    result = run("queue", "list", "--token", "t")
    assert result.exit_code == 3
    assert "--token is for a server" in result.stderr


def test_mistaken_url_is_told(folder: Path) -> None:
    assert run("queue", "list", "--url", "mysql://host").exit_code == 3
    assert run("queue", "list", "--url", "postgresql://nobody@127.0.0.1:1/db").exit_code == 6


# The file


UNSET = 'url = "postgresql://u:${REDRIVE_TEST_UNSET}@db/x"\nnamespace = "blue"\n[queue.jobs]\n'


def test_variable_that_is_not_set_stops_only_who_needs_the_store_of_the_file(folder: Path) -> None:
    (folder / "redrive.toml").write_text(UNSET)
    assert "REDRIVE_TEST_UNSET" in run("queue", "list").stderr
    there = ("--url", "sqlite:///there.db")
    assert place_of(*there).namespace == "blue"
    assert run("config", "apply", *there).exit_code == 0
    assert json.loads(run("queue", "list", *there, "-o", "json").stdout)[0]["name"] == "jobs"
    assert "namespace  blue" in run("config", "show").stdout
    assert run("config", "check").exit_code == 3
    assert json.loads(run("demo", "-o", "json").stdout)["dead"] == 110


def test_mistakes_of_queues_in_the_file_stop_nobody_who_looks(folder: Path) -> None:
    assert run("queue", "create", "jobs").exit_code == 0
    (folder / "redrive.toml").write_text('[queue.jobs]\nmax_sise = 1\nretry = "soon"\n')
    assert run("queue", "list").exit_code == 0
    told = run("config", "check")
    assert told.exit_code == 3
    assert "redrive.toml has 2 mistakes\n  redrive.toml:2: " in told.stderr


def test_mistake_of_the_namespace_stops_every_command(folder: Path) -> None:
    (folder / "redrive.toml").write_text('namespace = "not a name"\n')
    assert run("queue", "list", "--url", "sqlite:///there.db").exit_code == 3


def test_file_that_is_applied_by_its_name_says_where_the_store_is(folder: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "redrive.toml").write_text('url = "sqlite:///shop.db"\n[queue.jobs]\n')
    assert run("config", "apply", "shop/redrive.toml").exit_code == 0
    assert not (folder / "redrive.db").exists()
    assert [
        queue["name"]
        for queue in json.loads(run("queue", "list", "--url", "sqlite:///shop/shop.db", "-o", "json").stdout)
    ] == ["jobs"]


# What to type next


def test_what_to_type_next_names_the_store_that_this_command_named(folder: Path) -> None:
    there = ("--url", "sqlite:///there.db", "--namespace", "blue")
    created = run("queue", "create", "jobs", *there)
    assert 'redrive queue push jobs \'{"hello": "world"}\' --url sqlite:///there.db --namespace blue' in created.stderr
    assert "redrive queue create jobss --url sqlite:///there.db" in run("queue", "show", "jobss", *there).stderr
    assert "--url" not in run("queue", "create", "jobs").stderr


def test_what_to_type_next_shows_no_password(folder: Path) -> None:
    found: list[str] = []

    @command("look")
    def look() -> None:
        found.append(command_line("queue list"))

    CliRunner().invoke(look, ["--url", "postgresql://u:hunter2hunter2@db/x"])
    assert found[0].startswith("redrive queue list --url ")
    assert "hunter2" not in found[0]


def test_server_that_does_not_answer_is_told_as_one(folder: Path) -> None:
    told = run("queue", "list", "--url", "http://127.0.0.1:1")
    assert told.exit_code == 6
    assert "server http://127.0.0.1:1 does not answer" in told.stderr
    assert "redrive serve" in told.stderr


def test_redrive_to_another_store_of_the_file_arrives(folder: Path) -> None:
    (folder / "redrive.toml").write_text(
        f'url = "sqlite:///{folder}/here.db"\nname = "here"\n[stores]\nthere = "sqlite:///{folder}/there.db"\n'
    )
    with connect(f"sqlite:///{folder}/there.db", store_name="there") as there:
        there.create_queue("jobs")
    with connect(f"sqlite:///{folder}/here.db", store_name="here", maintenance=False) as here:
        here.create_queue("jobs")
        kill(here, "jobs", [1, 2, 3])
        first = here.find(limit=1).items[0].id
    assert run("dead", "redrive", first[:8], "--to", "jobs@there").exit_code == 0
    assert run("dead", "redrive", "--all", "--yes", "2", "--to", "jobs@there").exit_code == 0
    listed = json.loads(run("queue", "list", "jobs", "--url", f"sqlite:///{folder}/there.db", "-o", "json").stdout)
    assert [item["status"] for item in listed["items"]] == ["pending"] * 3
    assert json.loads(run("dead", "groups", "-o", "json").stdout)["dead"] == 0


# The top


def test_alone_it_says_what_to_type_first(folder: Path) -> None:
    result = run()
    assert result.exit_code == 0
    assert [word in result.stdout for word in ("redrive demo", "redrive dead groups", "redrive queue list")] == [
        True
    ] * 3


def test_misspelt_command_is_told_with_the_one_that_was_meant() -> None:
    for words, meant in ((["quue"], "queue"), (["dead", "grups"], "groups"), (["queue", "listt"], "list")):
        result = run(*words)
        assert result.exit_code == 2
        assert f"did you mean {meant}?" in result.stderr


def test_mistake_in_the_command_line_is_an_object_too() -> None:
    result = run("queue", "list", "-o", "json", "--limit", "none")
    assert result.exit_code == 2
    assert json.loads(result.stderr)["code"] == "usage"


def test_version_is_printed_by_the_group_too() -> None:
    assert run("--version").output.startswith("redrive ")


def test_every_command_can_be_imported_and_has_help() -> None:
    def walk(group: click.Group, words: list[str]) -> int:
        count = 0
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            assert run(*words, name, "--help").exit_code == 0
            assert command.help, [*words, name]
            count += walk(command, [*words, name]) if isinstance(command, click.Group) else 1
        return count

    assert walk(redrive, []) >= 38


# Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    assert "_REDRIVE_COMPLETE" in run("completion", shell).stdout


def test_names_of_queues_are_completed(tmp_path: Path) -> None:
    from redrive.cli.commands.queue_manage import show

    cli = Cli(f"sqlite:///{tmp_path}/store.db")
    cli("queue", "create", "orders")
    cli("queue", "create", "mails")
    (argument,) = (parameter for parameter in show.params if isinstance(parameter, click.Argument))

    def completed(url: str, begun: str) -> list[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REDRIVE_URL", url)
            return [each.value for each in argument.shell_complete(click.Context(show), begun)]

    assert completed(cli.url, "or") == ["orders"]
    assert completed(cli.url, "") == ["mails", "orders"]
    assert completed("sqlite:////no/such/folder/x.db", "") == []


def test_command_without_its_group_is_told_with_the_group() -> None:
    for word, meant in (("push", "redrive queue push?"), ("list", "redrive queue list or redrive dead list?")):
        result = run(word)
        assert result.exit_code == 2
        assert f"did you mean {meant}" in result.stderr
