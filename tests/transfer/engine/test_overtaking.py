"""The more urgent first, and nothing waits for ever."""

from __future__ import annotations

from typing import NamedTuple

from moontide.transfer.engine.overtaking import LEAST_WEIGHT, PATIENCE_BYTES, Overtaking


class Item(NamedTuple):
    priority: int
    num_bytes: int = 1 << 20
    name: str = ""


def queue_of(*items: Item) -> Overtaking[Item]:
    queue = Overtaking[Item](lambda item: item.priority, lambda item: item.num_bytes)
    for item in items:
        queue.put(item)
    return queue


def drain(queue: Overtaking[Item]) -> list[Item]:
    taken = []
    while queue:
        first = queue.first()
        taken.append(queue.take())
        assert taken[-1] is first
    return taken


def test_the_urgent_overtake_and_equals_keep_their_order() -> None:
    late, early, urgent = Item(2, name="late"), Item(1, name="early"), Item(0)
    also = Item(1, name="also")
    assert drain(queue_of(late, early, urgent, also)) == [urgent, early, also, late]


def test_the_least_urgent_has_its_turn_under_endless_urgent_work() -> None:
    background = Item(2)
    queue = queue_of(background)
    taken = []
    for _ in range(200):
        queue.put(Item(0))
        taken.append(queue.take())
    turn = taken.index(background)
    assert turn == PATIENCE_BYTES // (1 << 20)


def test_tiny_items_do_not_overtake_for_ever() -> None:
    background = Item(2)
    queue = queue_of(background, *[Item(0, num_bytes=1)] * 2000)
    assert drain(queue).index(background) == PATIENCE_BYTES // LEAST_WEIGHT


def test_each_lane_has_a_turn_of_its_own() -> None:
    normal, background = Item(1), Item(2)
    queue = queue_of(normal, background, *[Item(0)] * 200)
    order = drain(queue)
    border = PATIENCE_BYTES // (1 << 20)
    assert {order.index(normal), order.index(background)} == {border, border + 1}


def test_what_is_removed_is_gone_and_the_rest_goes_on() -> None:
    unwanted = Item(0, name="unwanted")
    queue = queue_of(unwanted, Item(1), unwanted, Item(2))
    assert queue.remove(lambda item: item.name == "unwanted") == [unwanted, unwanted]
    assert [item.priority for item in queue] == [1, 2]
    assert drain(queue) == [Item(1), Item(2)]
    assert not queue
