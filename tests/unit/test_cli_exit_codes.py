"""Exit codes: every error has one, and the page says what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.cli import error_output
from redrive.errors import RedriveError
from redrive.worker import supervisor, worker_process

GUIDE = Path(__file__).parents[2] / "docs/guides/scripting.md"


def errors(error: type[RedriveError] = RedriveError) -> Iterator[type[RedriveError]]:
    yield error
    for child in error.__subclasses__():
        yield from errors(child)


CODES = sorted({error.code for error in errors() if error.__module__ == "redrive.errors"})


def test_every_error_code_has_an_exit_code_and_nothing_else_has() -> None:
    assert sorted(error_output.EXITS) == CODES


@pytest.mark.parametrize("code", CODES)
def test_exit_code_is_documented_and_not_that_of_success_or_usage(code: str) -> None:
    assert error_output.exit_code(code) in error_output.MEANINGS
    assert error_output.exit_code(code) not in (error_output.OK, error_output.USAGE)


def test_what_can_be_tried_again_later_does_not_look_like_what_cannot() -> None:
    retryable = {error.code for error in errors() if error.retryable and error.__module__ == "redrive.errors"}
    final = {error_output.REFUSED, error_output.INVALID, error_output.NOT_FOUND, error_output.UNAUTHORIZED}
    assert not {error_output.exit_code(code) for code in retryable} & final


def test_unknown_code_is_a_failure() -> None:
    assert error_output.exit_code("of a later release") == error_output.FAILED


def test_supervisor_ends_as_any_other_command_does() -> None:
    assert supervisor.REFUSED == {
        worker_process.EXIT_BAD_APP: error_output.USAGE,
        worker_process.EXIT_UNAUTHORIZED: error_output.UNAUTHORIZED,
        worker_process.EXIT_NO_QUEUE: error_output.NOT_FOUND,
    }


def test_guide_lists_every_exit_code_with_its_meaning() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", GUIDE.read_text(), flags=re.MULTILINE)
    assert {int(code): text for code, text in rows} == error_output.MEANINGS
