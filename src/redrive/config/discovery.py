"""Search for the redrive.toml of a project, which only the current user may be able to change."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from redrive.config.config import FILE_NAME
from redrive.config.ownership import find_exposure
from redrive.config.table_reader import shown_file
from redrive.config.trust import load_trust
from redrive.errors import Problem, UntrustedFile

FILE_VARIABLE = "REDRIVE_CONFIG"
"""The variable with the path of the file; without it, the working directory and the folders above are searched."""


def find_file() -> Path | None:
    """Return the file of this project: the one that REDRIVE_CONFIG names, else the nearest redrive.toml in the working
    directory or a folder above it.

    Raises `UntrustedFile` if another user can change the file that was found, and this user has not confirmed it.
    A file that is named is not checked: naming it is trusting it.
    """
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named).absolute()
    here = Path.cwd()
    found = next((folder / FILE_NAME for folder in (here, *here.parents) if (folder / FILE_NAME).is_file()), None)
    if found is not None and (exposure := find_exposure(found)) is not None and not load_trust().covers(found):
        typed = shlex.quote(str(found))
        problem = (
            f"{exposure}, and who changes it decides which commands run and where secrets go; if you trust it, name it "
            f"with --config {typed}, or confirm it permanently with redrive config trust {typed}; if not, write your "
            f"own {FILE_NAME} in a folder nearer to the working directory"
        )
        raise UntrustedFile(shown_file(found), (Problem(1, "", problem),))
    return found
