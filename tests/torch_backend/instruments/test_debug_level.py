"""TORCH_DISTRIBUTED_DEBUG=DETAIL: hccl needs no wrapper, and says what gloo's wrapper says."""

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class HalfUsed(nn.Module):
    """Uses only the first of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.used(data)
        return output


def debug(rank: int, world_size: int) -> str:
    dist.set_debug_level_from_env()  # torch was imported before
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    tensor = torch.ones(2)
    for group in (None, dist.new_group([0, 1])):
        dist.all_reduce(tensor, group=group)
        dist.monitored_barrier(group)
    assert tensor.tolist() == [4, 4]
    network = DistributedDataParallel(nn.Linear(4, 4))
    network(torch.ones(1, 4)).sum().backward()
    assert network._get_ddp_logging_data()["backend_name"] == "hccl"
    partly = DistributedDataParallel(HalfUsed())
    partly(torch.ones(1, 4)).sum().backward()
    with pytest.raises(RuntimeError, match=r"did not receive grad.*: unused.bias, unused.weight"):
        partly(torch.ones(1, 4))
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(3 + rank))
    return str(caught.value)


@pytest.mark.nightly("calls")
def test_detail_works_with_groups_and_ddp_and_mismatches_name_ranks_and_sizes() -> None:
    texts = run_ranks(debug, 2, backend="hccl", env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert texts[0] == texts[1]
    assert "rank 1 called all_reduce(sum, float32[4])" in texts[0]
    assert "rank 0 called all_reduce(sum, float32[3])" in texts[0]
