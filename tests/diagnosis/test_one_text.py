"""A rank prints an error once, with the user's line before it."""

from __future__ import annotations

import traceback

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks


def calls_differ(rank: int, world_size: int) -> str:
    data = torch.ones(1000)
    with pytest.raises(dist.DistBackendError) as caught:
        if rank:
            dist.broadcast(data, 0)
        else:
            dist.all_reduce(data)  # the user's line
        dist.barrier()
    return "".join(traceback.format_exception(caught.value))


def test_traceback_of_a_torch_error_has_its_text_once() -> None:
    for text in run_ranks(calls_differ, 2, backend="hccl"):
        assert text.count("ranks made different calls") == 1, text
        assert text.count("Traceback") == 1, text
        assert text.index("in calls_differ") < text.index("ranks made different calls")
