"""Lightning's Trainer over hccl, with DDP or with the model sharded over all ranks (FSDP2):

hccl-launch --nnodes 2 --nproc-per-node 2 examples/frameworks/train_lightning.py hccl_fsdp2
"""

import os
import sys

import torch
from lightning import LightningModule, Trainer
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))

    def configure_model(self) -> None:
        if self.device_mesh is not None:  # hccl_fsdp2
            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


strategy = sys.argv[1] if len(sys.argv) > 1 else "hccl"
world_size, devices = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
size = {"accelerator": "cpu", "devices": devices, "num_nodes": world_size // devices}
torch.manual_seed(0)
model, data = Model(), TensorDataset(torch.randn(256, 16), torch.randn(256, 4))
trainer = Trainer(strategy=strategy, max_epochs=2, logger=False, barebones=True, **size)
trainer.fit(model, DataLoader(data, batch_size=32 // world_size))
full = [getattr(each, "full_tensor", lambda each=each: each)() for each in model.parameters()]
print(f"rank {trainer.global_rank}: weights {sum(each.abs().sum().item() for each in full):.6f}")
