"""The guide of capture runs on every store, and over HTTP; and it maps every name of the design that it is after."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.mounted import Mounts
from tests.unit.test_docs import python_blocks

from redrive import connect_async
from redrive.capture import DeadLetterStatus, DLQIntegrationStrategy, ErrorCategory, FailedTask, RetryPolicy
from redrive.capture.capture_settings import NAMES

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/capture.md"
SHOWN = "sqlite:///calls.db"
PRINTED = (
    "False the payment service does not answer",
    "order 7 is paid",
    "Retry count: 0/5",
    "Task succeeded on retry",
    "Workflow enqueued: call-",
    "permission",
    "Counter({'permission': 1})",
    "expected every 60s",
    "'retry_success': 2, 'retry_failed': 1,",
    "Captured(task_id='refund-8')",
    "report-2 is exhausted: no. Renew the credentials",
    "disk-full linear Free space on the disk, or add some; then retry.",
)


def run_guide(folder: Path, url: str) -> None:
    text = python_blocks(GUIDE)
    assert text.count(SHOWN) == 2
    program = folder / "guide.py"
    program.write_text(text.replace(SHOWN, url))
    result = subprocess.run(
        [sys.executable, program], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    for line in PRINTED:
        assert line in result.stdout, result.stdout


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
def test_guide_runs(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    urls = {"memory": "memory://", "sqlite": SHOWN}
    run_guide(tmp_path, urls.get(store) or request.getfixturevalue(f"{store}_url"))


def test_guide_runs_over_http(tmp_path: Path) -> None:
    mounts = Mounts()
    url = mounts.mount(lambda namespace: connect_async(f"sqlite:///{tmp_path}/served.db", namespace=namespace))
    try:
        run_guide(tmp_path, url)
    finally:
        mounts.unmount(url)
        mounts.close()


def test_every_member_field_key_and_setting_is_in_the_table_of_names() -> None:
    table = GUIDE.read_text().partition("## Coming from mahavishnu")[2]
    kinds = (RetryPolicy, DeadLetterStatus, ErrorCategory, DLQIntegrationStrategy)
    names = [member.name for kind in kinds for member in kind]
    names += [*(f"dlq_{name}" for name in NAMES), *(f"…_{name.upper()}" for name in NAMES if name != "enabled")]
    names += [name for name in FailedTask.__dataclass_fields__ if name not in NEW_FIELDS]
    names += ["queue_size", "utilization_percent", "status_breakdown", "error_categories", "retry_policies"]
    names += ["lifetime_stats", "enqueued_total", "retry_success", "retry_failed", "manually_retried", "archived"]
    names += ["is_processor_running", "dlq_enqueued", "dlq_task_id", "clear_all", "check_interval_seconds"]
    assert [name for name in names if name not in table] == []


NEW_FIELDS = {"template", "advice", "extra", "error_type", "fingerprint", "traceback", "result", "item_id"}
"""Fields of a task that the design did not have."""
