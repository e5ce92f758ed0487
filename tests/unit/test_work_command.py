"""What a person reads who types `redrive` and makes a mistake: a sentence, and no traceback but that of the app."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from click.testing import CliRunner

from redrive.cli.commands import work
from redrive.cli.main import redrive
from redrive.errors import InvalidInput
from redrive.mailbox import LoopGroup
from redrive.worker.app_loader import load_app, load_program
from redrive.worker.ipc import WorkerLaunch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return tmp_path


def test_help_shows_what_to_type() -> None:
    assert "redrive work jobs:app" in CliRunner().invoke(redrive, ["--help"]).output
    assert "redrive work jobs:app" in CliRunner().invoke(redrive, ["work", "--help"]).output


@pytest.mark.parametrize("option", ["--memory-limit", "--max-items-per-child"])
def test_option_that_needs_processes_is_refused_without(option: str) -> None:
    result = CliRunner().invoke(redrive, ["work", "jobs:app", option, "100"])
    assert result.exit_code == 2
    assert "give --processes too" in result.output


@pytest.mark.parametrize("option", ["--namespace", "--config"])
@pytest.mark.parametrize("is_before", [True, False])
def test_option_that_an_app_does_not_read_is_refused(folder: Path, option: str, is_before: bool) -> None:
    (folder / "other.toml").write_text("")
    given, command = [option, "other.toml"], ["work", "jobs:app", "--until-idle"]
    result = CliRunner().invoke(redrive, [*given, *command] if is_before else [*command, *given])
    assert result.exit_code == 2
    assert f"{option} is for workers of redrive.toml" in result.output


def test_program_learns_which_options_were_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[WorkerLaunch] = []
    monkeypatch.setattr(work, "can_supervise", lambda: True)
    monkeypatch.setattr(work, "supervise", lambda launch, **_: launches.append(launch) or 0)
    typed = ["-q", "a", "-c", "2", "-p", "2", "--until-idle", "--url", "sqlite:///x.db", "--max-items-per-child", "5"]
    for options in ([], typed):
        assert CliRunner().invoke(redrive, ["work", "mail:group", *options]).exit_code == 0
    assert launches[0].options == ()
    assert {*launches[1].options} == {
        *("--queue", "--concurrency", "--processes", "--until-idle", "--url", "--max-items-per-child")
    }


GROUP = """
from redrive import App, connect
from redrive.mailbox import LoopGroup, Mailbox, MainLoop, MainLoopRequest, MainLoopResult

app = App("memory://")
mailbox = Mailbox(connect("memory://"), "requests", body=MainLoopRequest[str], reply=MainLoopResult[int])
loop = MainLoop(requests=mailbox, handler=len)
group = LoopGroup([loop])

def make():
    inner = LoopGroup([loop])
"""


def test_group_is_found_by_its_name_and_other_objects_are_refused(folder: Path) -> None:
    (folder / "group_program.py").write_text(GROUP)
    assert isinstance(load_program("group_program:group"), LoopGroup)
    known = "it has App app, LoopGroup group"
    for name, kind in (("loop", "MainLoop"), ("mailbox", "Mailbox"), ("make", "function")):
        with pytest.raises(
            InvalidInput,
            match=rf"{kind}, not an App, a LoopGroup or a DeadLetterQueue; {known}; .* LoopGroup\(\[loop\]\)",
        ):
            load_program(f"group_program:{name}")
    with pytest.raises(InvalidInput, match=f"has no inner; {known}"):
        load_program("group_program:inner")
    with pytest.raises(InvalidInput, match="is LoopGroup, not an App"):
        load_app("group_program:group")


def test_misspelt_module_is_told_with_the_one_that_was_meant(folder: Path) -> None:
    (folder / "invoices_program.py").write_text("")
    with pytest.raises(InvalidInput, match=r"no module invoice_program \(did you mean invoices_program\?\)"):
        load_app("invoice_program:app")


def test_main_is_no_module_that_another_process_can_find() -> None:
    with pytest.raises(InvalidInput, match="put the app into a separate module, as in jobs:app"):
        load_app("__main__:app")


@pytest.mark.parametrize(
    ("name", "source", "error"),
    [
        ("dividing", "1 / 0", ZeroDivisionError),
        ("lacking", "import nothing_of_that_name", ModuleNotFoundError),
        ("unreadable", "def", SyntaxError),
    ],
)
def test_traceback_of_a_broken_app_has_nothing_of_the_import(
    folder: Path, name: str, source: str, error: type[Exception]
) -> None:
    (folder / f"{name}_program.py").write_text(source)
    with pytest.raises(error) as raised:
        load_app(f"{name}_program:app")
    told = "".join(traceback.format_exception(raised.value))
    assert f"{name}_program.py" in told
    assert "importlib" not in told


@pytest.mark.parametrize("missing", ["uvicorn", "httptools"])
def test_serve_names_the_extra_that_is_missing(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from redrive.cli.main import redrive; redrive()"
    command = [sys.executable, "-c", program, "--url", "memory://", "serve", "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 3
    assert "pip install 'redrive[server]'" in result.stderr
    assert "Traceback" not in result.stderr
