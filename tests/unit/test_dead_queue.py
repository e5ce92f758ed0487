"""The rules about dead queues, from both sides."""

from __future__ import annotations

import pytest

from redrive.errors import InvalidSetting
from redrive.model.dead_queue import check_dead_queues, source_queues_of
from redrive.model.queue import QueueSettings

PLAIN = QueueSettings()
WITH_DEAD = QueueSettings(dead_queue={"network": "dlq", "default": "dlq2"})
QUEUES = {"jobs": WITH_DEAD, "dlq": PLAIN, "dlq2": PLAIN, "other": PLAIN}


def test_queue_may_have_dead_queues_that_have_none() -> None:
    check_dead_queues("jobs", WITH_DEAD, QUEUES)
    assert source_queues_of("dlq2", QUEUES) == ("jobs",)
    assert source_queues_of("other", QUEUES) == ()


@pytest.mark.parametrize(
    ("name", "dead_queue", "problem"),
    [
        ("jobs", "jobs", "dead_queue cannot reference itself"),
        ("jobs", "x", "dead_queue 'x' does not exist; create it first"),
        ("other", "jobs", "dead_queue 'jobs' cannot have its own dead_queue"),
        ("dlq", "other", "dead_queue 'dlq' cannot have its own dead_queue"),
    ],
)
def test_dead_queue_that_breaks_a_rule_is_refused(name: str, dead_queue: str, problem: str) -> None:
    with pytest.raises(InvalidSetting) as refusal:
        check_dead_queues(name, QueueSettings(dead_queue=dead_queue), QUEUES)
    assert str(refusal.value) == problem
