"""Looks at a file that is edited: when an edit is taken for whole, and what is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive.config import Config, load
from redrive.config.watcher import ConfigWatcher
from redrive.errors import InvalidConfig, Problem, StoreUnavailable

BEFORE = "[queue.jobs]\nmax_size = 5\n"
AFTER = '[queue.jobs]\nlease_timeout = "2m"\nretry = { attempts = 5 }\n'
HALF = AFTER[: AFTER.index("retry")]


class Watched:
    """A file, who looks at it, and what was applied of it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.refusal: Exception | None = None
        self.applied: list[str] = []
        self.asked = 0
        file.write_text(BEFORE)
        self.watch = ConfigWatcher(load(file), self._changed)

    def _changed(self, config: Config) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        self.applied.append(config.text)

    def look(self, text: str | None = None) -> bool:
        """Look at it, after it was written anew."""
        if text is not None:
            self.file.write_text(text)
        return self.watch.check()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "redrive.toml")


def told(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return sum(getattr(record, "event", None) == event for record in caplog.records)


def test_edit_is_applied_once_two_looks_have_read_the_same(watched: Watched) -> None:
    assert [watched.look(AFTER), watched.look(), watched.look()] == [False, True, False]
    assert watched.applied == [AFTER]


@pytest.mark.parametrize("half", [HALF, ""])
def test_file_that_is_seen_half_written_is_not_applied(watched: Watched, half: str) -> None:
    assert [watched.look(half), watched.look(AFTER), watched.look()] == [False, False, True]
    assert watched.applied == [AFTER]


def test_file_that_was_gone_between_two_looks_is_looked_at_once_more(watched: Watched) -> None:
    watched.look(HALF)
    watched.file.unlink()
    assert [watched.look(), watched.look(HALF), watched.look()] == [False, False, True]


def test_file_that_is_again_as_it_was_is_not_applied(watched: Watched) -> None:
    assert [watched.look(HALF), watched.look(BEFORE), watched.look()] == [False, False, False]
    assert watched.applied == []


def test_mistake_that_is_seen_half_written_is_not_told(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.look("[queue.jobs]\nretry = {")
    watched.look(AFTER)
    assert watched.look()
    assert told(caplog, "config_invalid") == 0


def test_mistake_is_told_once_and_not_tried_again(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.look("[queue.jobs]\nmax_sise = 5\n")
    for _ in range(3):
        assert not watched.look()
    assert (told(caplog, "config_invalid"), watched.asked) == (1, 0)


def test_edit_that_cannot_be_applied_here_is_told_once_and_applied_when_it_can(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.refusal = InvalidConfig("redrive.toml", (Problem(5, "worker.w.run", "there is no file ./send"),))
    watched.look(AFTER)
    for _ in range(3):
        assert not watched.look()
    assert told(caplog, "config_invalid") == 1
    watched.refusal = None  # the program was copied here after the file
    assert [watched.look(), watched.look()] == [True, False]
    assert watched.applied == [AFTER]


def test_every_other_reason_why_it_cannot_be_applied_is_told(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.look(AFTER)
    for reason in ("is not there", "is not there", "is not executable", "is not there"):
        watched.refusal = InvalidConfig("redrive.toml", (Problem(5, "worker.w.run", reason),))
        assert not watched.look()
    assert told(caplog, "config_invalid") == 3


def test_same_reason_is_told_again_after_another_edit(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.refusal = InvalidConfig("redrive.toml", (Problem(5, "worker.w.run", "there is no file ./send"),))
    for text in (AFTER, AFTER + "max_size = 7\n"):
        watched.look(text)
        watched.look()
        watched.look()
    assert told(caplog, "config_invalid") == 2


def test_edit_that_the_store_could_not_take_is_tried_again(watched: Watched) -> None:
    watched.refusal = StoreUnavailable("sqlite", "locked")
    assert [watched.look(AFTER), watched.look(), watched.look()] == [False, False, False]
    watched.refusal = None
    assert watched.look()


def test_file_that_is_put_back_after_it_could_not_be_applied_is_applied(watched: Watched) -> None:
    watched.refusal = StoreUnavailable("sqlite", "locked")  # nobody knows what was done of it
    watched.look(AFTER)
    watched.look()
    watched.refusal = None
    assert [watched.look(BEFORE), watched.look()] == [False, True]
    assert watched.applied == [BEFORE]
