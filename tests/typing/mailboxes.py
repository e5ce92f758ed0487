"""How type checkers see mailboxes. Checked, not run: a line that is marked must be refused, every other accepted."""

from dataclasses import dataclass
from typing import Generic, TypeVar, assert_type

from redrive import AsyncBroker, Broker
from redrive.mailbox import AsyncMailbox, AsyncMessage, Mailbox, Message

T = TypeVar("T")


@dataclass
class Question:
    text: str


@dataclass
class Envelope(Generic[T]):
    content: T


def blocking(broker: Broker) -> None:
    questions = Mailbox(broker, "questions", body=Question, reply=int)
    assert_type(questions, Mailbox[Question, int])
    assert_type(questions.send(Question("?")), str)
    assert_type(questions.request(Question("?"), "5s"), int)
    assert_type(questions.receive(), list[Message[Question, int]])
    for message in questions.receive(max_messages=2):
        assert_type(message.body, Question)
        message.reply(1)
        message.acknowledge(reply=2)
        message.reply("one")  # type: ignore[arg-type]
        message.acknowledge(reply="one")  # type: ignore[arg-type]
    questions.send("?")  # type: ignore[arg-type]
    questions.receive(most=2)  # type: ignore[call-arg]
    wrapped = Mailbox(broker, "wrapped", body=Envelope[Question], reply=list[int])
    assert_type(wrapped.receive()[0].body.content, Question)
    answers: Mailbox[int, None] = Mailbox(broker, "answers", body=int)
    questions.send(Question("?"), reply_to=answers)
    wrapped.send(Envelope(Question("?")), reply_to=answers)  # type: ignore[arg-type]


async def on_a_loop(broker: AsyncBroker) -> None:
    questions = AsyncMailbox(broker, "questions", body=Question, reply=int)
    assert_type(await questions.request(Question("?")), int)
    assert_type(await questions.receive(), list[AsyncMessage[Question, int]])
    await (await questions.receive())[0].acknowledge(reply="one")  # type: ignore[arg-type]
    Mailbox(broker, "questions")  # type: ignore[arg-type]
