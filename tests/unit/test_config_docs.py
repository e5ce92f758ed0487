"""docs/reference/config-file.md is true: every key of redrive.toml, and nothing else."""

from pathlib import Path

import pytest

from redrive.capture import capture_settings
from redrive.config import loader, queue_tables, worker_tables
from redrive.config.config import ServerOptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "config-file.md"


def keys(heading: str) -> list[str]:
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [row.split("|")[1].strip(" `") for row in rows[2:]]


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        ("The whole", loader._KEYS),
        ("server", ServerOptions.__struct_fields__),
        ("External queues", queue_tables.EXTERNAL_KEYS),
        ("capture", capture_settings.NAMES),
        ("worker", worker_tables.WORKER_KEYS),
    ],
)
def test_every_key_is_listed(heading: str, known: tuple[str, ...]) -> None:
    assert sorted(keys(heading)) == sorted(known)
