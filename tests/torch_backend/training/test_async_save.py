"""docs/api/torch.md shows how a checkpoint is written while training goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import run_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard

PAGE = Path(__file__).resolve().parents[3] / "docs" / "api" / "torch.md"


def save_and_train(rank: int, world_size: int, folder: str) -> None:
    network = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    for layer in (*network, network):
        fully_shard(layer)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def train_step() -> None:
        for _ in range(5):
            network(torch.ones(4, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    state = network.state_dict()
    saved = {name: value.full_tensor().clone() for name, value in state.items()}
    names: dict[str, Any] = {"dist": dist, "dcp": dcp, "train_step": train_step}
    (lines,) = re.findall(r"```python\n(checkpoint_group = .*?)```", PAGE.read_text(), re.DOTALL)
    exec(lines, {**names, "state": state, "folder": folder})  # noqa: S102
    dcp.load(state, checkpoint_id=folder)
    for name, value in state.items():
        assert torch.equal(value.full_tensor(), saved[name])


@pytest.mark.nightly("training")
def test_lines_of_the_page_save_while_training_goes_on(tmp_path: Path) -> None:
    run_ranks(save_and_train, 2, str(tmp_path / "checkpoint"), backend="hccl")
