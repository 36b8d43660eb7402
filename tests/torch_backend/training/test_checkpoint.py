"""torch.distributed.checkpoint: what some ranks save, others load, also beside training."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.distributed.checkpoint as dcp
from features import feature
from folders import folder_of_all
from ranks import run_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training import model, train

SECTION = "Checkpoints"


def sharded(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    network = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (network[0], network[2], network):
        fully_shard(layer, mesh=mesh)
    return network, torch.optim.Adam(network.parameters(), lr=0.01)


def state_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    parameters, state = get_state_dict(network, optimizer)
    return {"model": parameters, "optimizer": state}


@feature(
    SECTION,
    "save on 4 ranks, load on 2",
    covers=("init_process_group", "destroy_process_group"),
    world_size=4,
    own_group=True,
)
def test_four_ranks_save_and_two_load(
    rank: int, world_size: int, backend: str
) -> list[torch.Tensor]:
    """A sharded model and its optimizer; a job of two ranks goes on where one of four ended."""
    dist.init_process_group(backend)
    with folder_of_all(rank) as folder:
        network, optimizer = sharded(rank)
        train(network, rank, world_size, optimizer=optimizer)
        checkpoint.save(state_of(network, optimizer), checkpoint_id=folder)
        dist.barrier()
        dist.destroy_process_group()
        assert len(list(Path(folder).glob("*.distcp"))) == world_size
        if rank >= 2:
            return []
        os.environ["WORLD_SIZE"] = "2"
        os.environ["TORCHELASTIC_RESTART_COUNT"] += " after saving"
        try:
            dist.init_process_group(backend)
            network, optimizer = sharded(rank)
            state = state_of(network, optimizer)
            checkpoint.load(state, checkpoint_id=folder)
            set_state_dict(
                network,
                optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            values = train(network, rank, 2, optimizer=optimizer)
            dist.destroy_process_group()
        finally:
            os.environ["WORLD_SIZE"] = str(world_size)
        return values


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
