"""The guide of capture runs on every store, and over HTTP."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.mounted import Mounts
from tests.unit.test_docs import python_blocks

from redrive import connect_async

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/capture.md"
SHOWN = "sqlite:///calls.db"


def run_guide(folder: Path, url: str) -> None:
    text = python_blocks(GUIDE)
    assert text.count(SHOWN) == 2
    program = folder / "guide.py"
    program.write_text(text.replace(SHOWN, url))
    result = subprocess.run(
        [sys.executable, program], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    for line in ("order 7 is paid", "Captured(task_id='refund-8')", "report-2 is exhausted: no. Renew the credentials"):
        assert line in result.stdout
    assert "disk-full linear Free space on the disk, or add some; then retry." in result.stdout


@pytest.mark.parametrize("store", ["memory", "postgres", "redis"])
def test_guide_runs(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_guide(tmp_path, "memory://" if store == "memory" else request.getfixturevalue(f"{store}_url"))


def test_guide_runs_over_http(tmp_path: Path) -> None:
    mounts = Mounts()
    url = mounts.mount(lambda namespace: connect_async(f"sqlite:///{tmp_path}/served.db", namespace=namespace))
    try:
        run_guide(tmp_path, url)
    finally:
        mounts.unmount(url)
        mounts.close()
