"""Polls the file for edits, about once a second. A valid edit is applied; an invalid one is logged once.

A file that is being written can be read half, and half a file may be valid. So a text counts only after two polls in a
row have read it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from redrive.broker.background_thread import BackgroundThread
from redrive.config.config import Config
from redrive.config.loader import parse, read_source
from redrive.config.ownership import ROOT, caller
from redrive.config.table_reader import shown_file
from redrive.errors import Closed, InvalidConfig, Problem, RedriveError, UntrustedFile
from redrive.telemetry import events

POLL_SECONDS = 1.0
"""The interval between polls. The file is small, so it is read each time: modification times are not reliable."""
_log = events.logger("redrive.config")


class ConfigWatcher(BackgroundThread):
    """A thread that watches the config file of a program, from `start` to `close`.

    `changed` is called with a valid edit, and may raise `InvalidConfig` if it cannot be applied: then, as with an
    invalid edit, everything stays unchanged. It is called again at each poll, because the reason may disappear without
    another edit: a program is installed after the file, or the store is available again.
    """

    def __init__(self, config: Config, changed: Callable[[Config], None]) -> None:
        super().__init__("file")
        self._file = config.file
        self._first = config
        self._changed = changed
        self._seen: str | None = config.text
        """The text that was applied, or is invalid. None: the current text is to be applied, even if unchanged."""
        self._read: str | None = config.text
        """The text that the last poll read; None if it could not."""
        self._refused: tuple[str, str] | None = None
        """The edit that could not be applied, and the reason."""
        self._is_missing = False
        self._looking = threading.Lock()

    def check(self) -> bool:
        """Poll once. Return whether an edit was applied."""
        with self._looking:
            try:
                text = self._text()
            except InvalidConfig as error:  # an editor may be writing it
                if not self._is_missing:
                    _log.warning("config_unreadable", error=str(error))
                self._is_missing = True
                self._read = None
                return False
            self._is_missing = False
            before, self._read = self._read, text
            if text == self._seen or text != before:
                return False
            return self._apply(text)

    def check_again(self) -> None:
        """Apply the current text again at the next poll, even if it is unchanged."""
        self._seen = None

    def _text(self) -> str:
        """Read the current text. Raises `UntrustedFile` if another user can change the file only since the start."""
        source = read_source(self._file)
        problem = None if self._first.exposure is not None else source.exposure
        if source.owner not in (self._first.owner, caller(), ROOT):
            problem = "belongs to another user than when it was read first"
        if problem is not None:
            raise UntrustedFile(shown_file(self._file), (Problem(1, "", f"{problem}; it is not read again"),))
        return source.text

    def _apply(self, text: str) -> bool:
        self._seen = text
        try:
            config = parse(text, self._file, needs_store=self._first.needs_store, variables=self._first.variables)
        except InvalidConfig as error:
            self._report(text, error)
            return False
        try:
            self._changed(config)
        except Closed:
            self._end.set()
            return False
        except RedriveError as error:
            self._report(text, error)
            self._seen = None  # apply it again at the next poll
            return False
        self._refused = None
        return True

    def _report(self, text: str, error: RedriveError) -> None:
        """Log why an edit is not applied, unless the last one was the same, for the same reason."""
        if self._refused != (text, str(error)):
            if isinstance(error, InvalidConfig):
                _log.error("config_invalid", file=str(self._file), problems=str(error).splitlines())
            else:
                _log.warning("config_not_applied", file=str(self._file), error=str(error))
        self._refused = text, str(error)

    def _run(self) -> None:
        while not self._end.wait(POLL_SECONDS):
            try:
                self.check()
            except Exception:
                _log.exception("config_watch_failed")
