"""How type checkers see guarded functions and hooks. Checked, not run."""

from typing import assert_type

from redrive.capture import Alert, Captured, DeadLetterQueue, FailedTask

dlq = DeadLetterQueue("memory://")


@dlq.guard
def plain(order: int) -> str:
    return str(order)


@dlq.guard(on_failure="handle")
def handled(order: int) -> str:
    return str(order)


@dlq.guard(policy="linear")
async def awaited(order: int) -> str:
    return str(order)


@dlq.guard(on_failure="handle")
async def handled_async(order: int) -> str:
    return str(order)


@dlq.on_captured
def captured(task: FailedTask) -> None: ...


@dlq.on_alert
async def alert(alert: Alert) -> None: ...


async def results() -> None:
    assert_type(plain(7), str)
    assert_type(handled(7), str | Captured)
    assert_type(await awaited(7), str)
    assert_type(await handled_async(7), str | Captured)
    plain("7")  # type: ignore[arg-type]
    handled("7")  # type: ignore[arg-type]
    DeadLetterQueue("memory://", max_sze=100)  # type: ignore[call-arg]
    DeadLetterQueue("memory://", max_size="many")  # type: ignore[arg-type]
