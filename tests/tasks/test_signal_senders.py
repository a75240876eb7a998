"""Receivers that want to hear of one kind of task only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque import signals, task
from django_fairque.testing import run_tasks

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

HAPPENING = [signals.task_pushed, signals.task_started, signals.task_finished]


def test_a_name_is_one_sender_wherever_it_was_read(queue: FairQueue) -> None:
    heard: list[str] = []

    def receiver(sender: str, **_: Any) -> None:
        heard.append(sender)

    wanted, other = (task(name=name)(lambda: None) for name in ("shop.wanted", "shop.other"))
    for signal in HAPPENING:
        signal.connect(receiver, sender=b"shop.wanted".decode())
    other.enqueue()
    wanted.enqueue()
    run_tasks()
    for signal in HAPPENING:
        assert signal.disconnect(receiver, sender=b"shop.wanted".decode())
    assert heard == ["shop.wanted"] * 3
    wanted.enqueue()
    assert len(heard) == 3


def test_all_signals_are_of_that_kind() -> None:
    assert {type(getattr(signals, name)) for name in signals.__all__} == {signals.NamedSignal}


async def test_each_way_of_sending_finds_the_receiver_of_a_name() -> None:
    signal = signals.NamedSignal()

    def receiver(n: int, **_: Any) -> int:
        return n

    def name(text: bytes = b"shop.named") -> str:
        return text.decode()

    signal.connect(receiver, sender=name())
    answers = [
        signal.send(name(), n=1),
        signal.send_robust(name(), n=2),
        await signal.asend(name(), n=3),
        await signal.asend_robust(name(), n=4),
        signal.send(name(b"shop.unnamed"), n=5),
    ]
    assert [[value for _, value in each] for each in answers] == [[1], [2], [3], [4], []]
    assert (signal.has_listeners(name()), signal.has_listeners(name(b"shop.unnamed"))) == (True, False)
    assert signal.disconnect(receiver, sender=name())
