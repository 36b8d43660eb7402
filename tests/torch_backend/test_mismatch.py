"""Different calls under torch.distributed: one text on all ranks, with the user's lines, once."""

import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks


def one_broadcasts(rank: int, world_size: int) -> list[str]:
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.full((1000,), float(rank), dtype=torch.float8_e4m3fn if rank == 2 else None)
    with pytest.raises(dist.DistBackendError) as caught:
        if rank == 2:
            # A rank that had not called yet would be named as that, rightly.
            store.wait([f"called/{other}" for other in range(world_size) if other != rank])
            dist.broadcast(tensor, 0)  # the odd one
        else:
            work = dist.all_reduce(tensor, async_op=True)  # the usual one
            store.set(f"called/{rank}", "")
            work.wait()
    with pytest.raises(dist.DistBackendError) as again:
        dist.barrier(async_op=True).wait()
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count(str(caught.value)) == printed.count("Traceback") == 1, printed
    assert printed.index("in one_broadcasts") < printed.index(str(caught.value))
    return [str(caught.value), str(again.value)]


def test_all_ranks_raise_the_same_with_the_users_lines() -> None:
    results = run_ranks(one_broadcasts, 4, backend="hccl", env={"HCCL_DEBUG": "1"})
    texts = {text for result in results for text in result}
    assert len(texts) == 1, texts
    (text,) = texts
    lines = Path(__file__).read_text().splitlines()
    odd, usual = (
        next(number for number, line in enumerate(lines, 1) if mark in line)
        for mark in ("# the odd one", "# the usual one")
    )
    assert "rank 2 called broadcast(src=0, float8_e4m3fn[1000]) as number " in text
    assert "ranks 0, 1, 3 called all_reduce(sum, float32[1000]) at " in text
    name = Path(__file__).name
    assert f"{name}:{odd}, ranks" in text
    assert f"{name}:{usual};" in text
