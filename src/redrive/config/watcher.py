"""Looks whether the file was edited, about once a second. What is valid is applied; what is not is told, once.

A file that is being written can be read half, and half a file may well be valid. So a text counts only once two looks
in a row have read it.
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
"""How often. The file is small, so it is read each time: times of files are not to be trusted."""
_log = events.logger("redrive.config")


class ConfigWatcher(BackgroundThread):
    """Watches the file that a program runs by, from `start` to `close`.

    `changed` is called with what a valid edit says, and may raise `InvalidConfig` where it cannot be applied: then, as
    with an edit that is not valid, everything stays as it was. It is called again with each look, since its reason may
    go away without another edit: a program is copied here after the file, or the store was in trouble.
    """

    def __init__(self, config: Config, changed: Callable[[Config], None]) -> None:
        super().__init__("file")
        self._file = config.file
        self._first = config
        self._changed = changed
        self._seen: str | None = config.text
        """What was applied, or is wrong in itself. None: it is to be applied, whatever it is."""
        self._read: str | None = config.text
        """What the last look read; None where it could not."""
        self._refused: tuple[str, str] | None = None
        """The edit that could not be applied, and why."""
        self._is_missing = False
        self._looking = threading.Lock()

    def check(self) -> bool:
        """Look once. Whether an edit was applied."""
        with self._looking:
            try:
                text = self._text()
            except InvalidConfig as error:  # perhaps an editor is just writing it
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

    def _text(self) -> str:
        """What the file says now, unless it has come into the hands of another user since it was read first."""
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
            self._tell_invalid(text, error)
            return False
        try:
            self._changed(config)
        except InvalidConfig as error:
            self._tell_invalid(text, error)
            self._seen = None  # it is as new as before
            return False
        except Closed:
            self._end.set()
            return False
        except RedriveError as error:
            _log.warning("config_not_applied", file=str(self._file), error=str(error))
            self._seen = None
            return False
        self._refused = None
        return True

    def _tell_invalid(self, text: str, error: InvalidConfig) -> None:
        """Tell what is wrong with an edit, unless that was told of it last."""
        if self._refused != (text, str(error)):
            _log.error("config_invalid", file=str(self._file), problems=str(error).splitlines())
        self._refused = text, str(error)

    def _run(self) -> None:
        while not self._end.wait(POLL_SECONDS):
            try:
                self.check()
            except Exception:
                _log.exception("config_watch_failed")
