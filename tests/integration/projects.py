"""A folder with a redrive.toml and commands, and a broker on some store: what a person has who works by the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redrive import Broker, Failure, Item, connect
from redrive.config import load
from redrive.config.runtime import ConfigRuntime


class Project:
    """One folder, one store."""

    def __init__(self, folder: Path, url: str, **options: Any) -> None:
        self.folder = folder
        self.file = folder / "redrive.toml"
        self.broker: Broker = connect(url, **{"maintenance": False, **options})

    def write(self, text: str) -> None:
        """What the file says."""
        self.file.write_text(text)

    def command(self, name: str, source: str) -> Path:
        """A command of the shell."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{source}\n")
        path.chmod(0o755)
        return path

    def running(self, **options: Any) -> ConfigRuntime:
        """The file in force, once it is started."""
        return ConfigRuntime(self.broker, load(self.file), **options)

    def work(self, **options: Any) -> None:
        """Run all that can be run now."""
        running = self.running(watch=False, **options)
        running.run_until_idle()
        assert not running.has_failed.is_set()

    def put(self, value: Any, queue: str = "jobs", **options: Any) -> str:
        return self.broker.put(queue, value, **options).id

    def get(self, id: str) -> Item:
        return self.broker.get(id)

    def failure(self, id: str) -> Failure:
        """What went wrong with an item last."""
        return next(entry.failure for entry in reversed(self.get(id).history) if entry.failure is not None)

    def text(self, name: str) -> str:
        """What a command wrote into a file."""
        return (self.folder / name).read_text()

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()
