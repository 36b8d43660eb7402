"""Trains a small model with Lightning; prints its parameters. Argument: how it is set up."""

import sys

import torch
from lightning import LightningModule, Trainer
from torch import distributed as dist
from torch import nn


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self) -> None:
        total = sum(parameter.double().sum().item() for parameter in self.parameters())
        group = f"{type(dist.group.WORLD).__name__} {dist.get_backend()}"
        print(f"model {total!r} group {group}", flush=True)


alone = sys.argv[1] == "alone"  # a Trainer of one device in each rank
if alone:
    dist.init_process_group("hccl")
torch.manual_seed(dist.get_rank() if alone else 0)
data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randn(96, 4))
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
place = {"devices": 1} if alone else {"devices": 2, "strategy": "ddp"}
trainer = Trainer(max_epochs=1, accelerator="cpu", **place, **quiet)
trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
