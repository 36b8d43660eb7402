"""Torch's store, whose connection is reset, keeps what it has; one that ended is no riddle."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from network_resets import strike
from quiet_clock import HANG_S
from ranks import run_ranks
from torch import distributed as dist
from torch.distributed import DistNetworkError, PrefixStore, TCPStore

from hccl_py.membership.lasting_store import LastingStore, lasting

LONG = timedelta(seconds=HANG_S / 4)


def client_of(server: TCPStore) -> LastingStore:
    client = TCPStore("127.0.0.1", server.port, wait_for_workers=False, timeout=LONG)
    made = lasting(PrefixStore("one", PrefixStore("two", client)))
    assert isinstance(made, LastingStore)
    return made


@pytest.fixture
def server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.mark.parametrize(
    "ask, answer",
    [
        (lambda store: store.get("key"), b"value"),
        (lambda store: store.check(["key"]), True),
        (lambda store: store.check(["other"]), False),
        (lambda store: store.set("key", b"new"), None),
        (lambda store: store.compare_set("key", b"value", b"new"), b"new"),
        (lambda store: store.compare_set("key", b"other", b"new"), b"value"),
    ],
)
def test_question_after_a_reset_is_answered(
    ask: Callable[[Any], Any], answer: Any, server: TCPStore
) -> None:
    store = client_of(server)
    store.set("key", b"value")
    for _ in range(3):
        store.set("key", b"value")
        strike(server.port)
        assert ask(store) == answer


def test_store_that_ended_raises_at_once() -> None:
    ending = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store, began_s = client_of(ending), time.monotonic()
    del ending
    with pytest.raises(DistNetworkError):
        store.set("key", b"value")
    assert time.monotonic() < began_s + LONG.total_seconds() / 2


def sum_after_a_reset(rank: int, world_size: int) -> float:
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(*place, wait_for_workers=False)
    strike(place[1])
    dist.init_process_group("hccl", store=store, rank=rank, world_size=world_size)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return float(tensor.sum())


def test_torch_group_whose_store_is_reset_before_is_made() -> None:
    assert run_ranks(sum_after_a_reset, 2) == [6.0, 6.0]
