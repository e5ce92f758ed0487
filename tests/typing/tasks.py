"""How type checkers see tasks. Checked, not run: a line that is marked must be refused, every other accepted."""

from collections.abc import Iterator
from datetime import date
from typing import assert_type

from redrive import App, Context, Retry, Task, TaskHandle, TaskItem

app = App("memory://")
jobs = app.queue("jobs", retry={"attempts": 3})


@jobs.task
def plain(to: str, count: int = 1) -> date:
    return date(2026, 1, count)


@jobs.task(keep_result="10m", final_errors=(ValueError, "Timeout"), every="5m", on_missed="skip")
def with_options(number: int = 1) -> float:
    return number / 2


@jobs.task
def with_context(context: Context, to: str) -> int | Retry:
    return Retry(after="5m") if context.stopping else len(to)


@jobs.task
async def awaited(to: str) -> int:
    return len(to)


@jobs.task(time_limit="30s")
async def awaited_with_context(context: Context, to: str) -> int:
    return len(to) + context.attempts


assert_type(plain.put("ann"), TaskHandle[date])
assert_type(plain.put("ann", count=2).result("5s"), date)
assert_type(plain.item("ann"), TaskItem)
assert_type(plain.call("ann"), date)
assert_type(plain.options(delay="5m", headers={"a": "b"}).put("ann", 2), TaskHandle[date])
assert_type(plain.put_many([plain.item("ann")]), list[TaskHandle[date]])
assert_type(with_options.put(), TaskHandle[float])
assert_type(with_context.put("ann").result(), int | Retry)
assert_type(awaited.put("ann"), TaskHandle[int])
assert_type(awaited.call("ann"), int)
assert_type(awaited_with_context.put(to="ann"), TaskHandle[int])

assert_type(plain("ann", 2), date)
assert_type(with_options(), float)
assert_type(plain.options(retry=None, headers=None, held_by="me").put("ann"), TaskHandle[date])

plain.put(17)  # type: ignore[arg-type]
plain(17)  # type: ignore[arg-type]
plain("ann", bcc="bob")  # type: ignore[call-arg]
with_context("ann")  # type: ignore[call-arg, arg-type]
App("memory://", nmespace="tests")  # type: ignore[call-arg]
App("memory://", maintenance="no")  # type: ignore[arg-type]
app.queue("slow", lease_tiemout="5m")  # type: ignore[call-arg]
app.queue("slow", max_size="many")  # type: ignore[arg-type]
plain.options(content_type="text/plain")  # type: ignore[call-arg]
plain.put("ann", count="two")  # type: ignore[arg-type]
plain.put()  # type: ignore[call-arg]
plain.put("ann", bcc="bob")  # type: ignore[call-arg]
plain.item(17)  # type: ignore[arg-type]
plain.call(17)  # type: ignore[arg-type]
plain.options(delay="5m").put(17)  # type: ignore[arg-type]
plain.options(dely="5m")  # type: ignore[call-arg]
plain.options(priority="high")  # type: ignore[arg-type]
with_options.put("one")  # type: ignore[arg-type]
with_context.put()  # type: ignore[call-arg]
with_context.put(17)  # type: ignore[arg-type]
awaited.put(17)  # type: ignore[arg-type]
awaited_with_context.put(17)  # type: ignore[arg-type]
jobs.task(tmie_limit="30s")  # type: ignore[call-overload]


async def on_a_loop(context: Context) -> None:
    assert_type(with_context(context, "ann"), int | Retry)
    assert_type(await awaited("ann"), int)
    assert_type(await awaited_with_context(context, "ann"), int)
    assert_type(await plain.put_async("ann"), TaskHandle[date])
    assert_type(await awaited.call_async("ann"), int)
    assert_type(await (await awaited.put_async("ann")).result_async("5s"), int)
    await plain.put_async(17)  # type: ignore[arg-type]
    await awaited(17)  # type: ignore[arg-type]


@app.middleware
def around(context: Context) -> Iterator[None]:
    yield


def takes_any_task(task: Task[..., object]) -> str:
    return task.name


takes_any_task(plain)
