"""The names of the package: all that is promised is there, and costs nothing until it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import redrive

ROOT = Path(__file__).parents[2]


def loaded_after(program: str) -> list[str]:
    """The modules of redrive that a program has imported in the end."""
    shown = f"{program}\nimport sys; print(*(name for name in sys.modules if name.startswith('redrive.')))"
    result = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, timeout=240, check=True)
    return result.stdout.split()


@pytest.mark.parametrize("name", redrive.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(redrive, name)
    assert getattr(value, "__name__", name) == name or name == "Verdict"
    assert name in dir(redrive)


def test_names_for_type_checkers_are_the_same() -> None:
    source = (ROOT / "src/redrive/__init__.py").read_text()
    (block,) = (
        node for node in ast.parse(source).body if isinstance(node, ast.If) and isinstance(node.body[0], ast.ImportFrom)
    )
    imported = {
        each.name: line.module for line in block.body if isinstance(line, ast.ImportFrom) for each in line.names
    }
    assert imported == redrive._HOMES
    assert sorted(imported) == sorted(redrive.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'conect'"):
        _ = redrive.conect  # type: ignore[attr-defined]


def test_import_of_the_package_imports_none_of_its_modules() -> None:
    assert loaded_after("import redrive; redrive.__version__") == []


def test_import_of_an_error_imports_no_store() -> None:
    assert loaded_after("from redrive import RedriveError") == ["redrive.errors"]
    assert loaded_after("import redrive; redrive.errors.Closed") == ["redrive.errors"]


def test_commands_import_neither_tasks_nor_workers_nor_capture_unless_they_use_them() -> None:
    loaded = loaded_after("import redrive.config, redrive.cli.commands.dead_inspect; redrive.connect")
    unused = ("redrive.capture", "redrive.task", "redrive.worker.worker")
    assert [name for name in loaded if name.startswith(unused)] == []


@pytest.mark.parametrize(
    "program",
    [
        "import redrive.connect; import redrive",
        "from redrive.connect import connect_async; import redrive",
        "import redrive; redrive.connect; import redrive.connect",
        "from redrive.task.app import App; import redrive",
    ],
)
def test_connect_is_the_function_however_its_module_was_imported(program: str) -> None:
    loaded_after(
        f"{program}\nassert redrive.connect.__name__ == 'connect'\nfrom redrive import connect\nconnect.__call__"
    )


def test_version_is_that_of_the_project() -> None:
    assert redrive.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
