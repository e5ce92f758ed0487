"""A program of the system that is run for an item, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.model.duration import SECOND


class Program(msgspec.Struct, frozen=True):
    """What is run. Nothing is looked up in it: the words are given to the program as they are."""

    words: tuple[str, ...]
    """The program itself, then its arguments."""
    folder: str
    """Where it runs, and where a program that is written with a slash is looked for."""
    variables: Mapping[str, str] = {}
    """Variables of the environment that it gets beside those of the worker."""
    hidden: tuple[str, ...] = ()
    """Variables of the worker that it does not get, unless `variables` has them."""
    timeout: int | None = None
    """How long it may run; None: as long as it wants."""
    grace: int = 5 * SECOND
    """How long it may take to end after SIGTERM, before it is killed."""
