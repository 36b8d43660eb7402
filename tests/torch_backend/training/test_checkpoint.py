"""torch.distributed.checkpoint: what some ranks save, others load."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from features import feature
from folders import folder_of_all
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
