"""The Lua scripts of the Redis store: every file is in one, and the parts of a script are joined in a working order."""

from __future__ import annotations

import re
from pathlib import Path

from redrive.stores.redis import scripts
from redrive.stores.redis.scripts import Script

FOLDER = Path(scripts.__file__).with_name("lua")
FILES = sorted(FOLDER.rglob("*.lua"))
SCRIPTS = [value for value in vars(scripts).values() if isinstance(value, Script)]
COMMENTS = re.compile(r"--.*")
DEFINITION = re.compile(r"^local function (\w+)", re.MULTILINE)


def test_every_file_is_in_exactly_one_script() -> None:
    for path in FILES:
        source = path.read_text()
        assert sum(source in script.source for script in SCRIPTS) == 1, path


def test_every_file_begins_with_a_comment() -> None:
    assert [path.name for path in FILES if not path.read_text().startswith("-- ")] == []


def test_function_of_a_script_is_used_only_after_its_definition() -> None:
    """Lua takes a name that is not yet defined for a global one, and the script fails when it comes to that line."""
    for script in SCRIPTS:
        code = COMMENTS.sub("", script.source)
        for found in DEFINITION.finditer(code):
            assert re.search(rf"(?<![.\w]){found[1]}\(", code[: found.start()]) is None, (script, found[1])


def test_head_of_a_part_names_what_it_defines_for_other_parts() -> None:
    parts = {path: path.read_text() for path in FILES if path.parent != FOLDER}
    for path, source in parts.items():
        head = source.partition("\n\n")[0]
        others = COMMENTS.sub("", "".join(text for other, text in parts.items() if other != path))
        shared = {name for name in DEFINITION.findall(source) if re.search(rf"(?<![.\w]){name}\b", others)}
        assert {name for name in shared if re.search(rf"\b{name}\b", head) is None} == set(), path
