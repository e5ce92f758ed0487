"""Regular expressions that mean the same on every Python from 3.11 on."""

from __future__ import annotations

import json
import re
import subprocess
import sys

POSSESSIVE_GROUP = re.compile(r"\)(?:[?*+]|\{\d+(?:,\d*)?\})\+")
COMPILED = """
import importlib, json, pkgutil, re
compile, seen = re.compile, []
re.compile = lambda pattern, flags=0: (seen.append(str(pattern)), compile(pattern, flags))[1]
import redrive
for package in ("redrive.model", "redrive.config", "redrive.cli", "redrive.stores", "redrive.server"):
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
forms = [each for group in vars(redrive.model.secret_patterns).values() if isinstance(group, tuple) for each in group]
seen += [form.expression for form in forms if hasattr(form, "expression")]
print(json.dumps(seen))
"""


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5 matches too little of some of them (CPython issue 106052). Debian 12 has 3.11.2."""
    assert all(map(POSSESSIVE_GROUP.search, [r"(?:a|b)++", r"(?:a|b)*+", r"(ab){1,9}+"]))
    assert not any(map(POSSESSIVE_GROUP.search, [r"(?:a|b)+", r"([ab]{1,9}+)", r"(a)+b"]))
    printed = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True).stdout
    patterns = json.loads(printed)
    assert sum("redacted" in pattern for pattern in patterns) > 20
    assert [pattern for pattern in patterns if POSSESSIVE_GROUP.search(pattern)] == []
