"""The guide of circuit breakers runs on every store."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.test_docs import python_blocks

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/breakers.md"
SHOWN = "sqlite:///shop.db"
PRINTED = (
    "breaker network of payments: open since ",
    "(3 failures within 1m); 3 items waiting, next probe ",
    "4\n1 half_open\n1\n2\n6 of 10 deliveries failed within 1m\nfingerprint:",
    "['csv']\n['network', 'queue']\n",
    "breaker_opened: network of reports: switch replaced",
    "0\n2\n",
)


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
def test_guide_runs(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = python_blocks(GUIDE)
    assert text.count(SHOWN) == 1
    urls = {"memory": "memory://", "sqlite": SHOWN}
    program = tmp_path / "shop.py"
    program.write_text(text.replace(SHOWN, urls.get(store) or request.getfixturevalue(f"{store}_url")))
    result = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    for line in PRINTED:
        assert line in result.stdout, result.stdout
