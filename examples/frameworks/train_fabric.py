"""Lightning's Fabric over hccl, with DDP or with the model sharded over all ranks (FSDP2):

hccl-launch --nnodes 2 --nproc-per-node 2 examples/frameworks/train_fabric.py hccl_fsdp2
"""

import os
import sys

import torch
from lightning import Fabric
from torch.utils.data import DataLoader, TensorDataset

strategy = sys.argv[1] if len(sys.argv) > 1 else "hccl"
world_size, devices = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
nodes = world_size // devices
fabric = Fabric(accelerator="cpu", devices=devices, num_nodes=nodes, strategy=strategy)
fabric.launch()
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
data = TensorDataset(torch.randn(256, 16), torch.randn(256, 4))
model = fabric.setup_module(network)
optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=32 // world_size))
for _ in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        fabric.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
full = [getattr(each, "full_tensor", lambda each=each: each)() for each in model.parameters()]
print(f"rank {fabric.global_rank}: weights {sum(each.abs().sum().item() for each in full):.6f}")
