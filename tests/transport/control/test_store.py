"""The store of a coordinator: what a repeated question changes."""

from typing import Any

from hccl_py.transport.control.store import StoreServer


def test_repeated_set_does_not_bring_a_prefix_back_that_its_client_has_left() -> None:
    answers: list[tuple[int, int, Any]] = []
    store: StoreServer[int] = StoreServer(lambda *answer: answers.append(answer))
    store.set(0, 1, "a/x", b"1")
    store.set(1, 1, "b/x", b"2")
    for client, number in ((0, 2), (1, 2)):
        store.leave(client, number, "a/", 2)
    store.set(0, 1, "a/x", b"1")  # its answer was on the way
    store.check(0, 3, ["a/x"])
    assert answers[-2:] == [(0, 1, True), (0, 3, False)]
    store.set(0, 4, "a/x", b"3")  # the prefix is used again
    store.check(0, 5, ["a/x", "b/x"])
    assert answers[-1] == (0, 5, True)
