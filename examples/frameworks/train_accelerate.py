"""Accelerate over hccl: hccl-launch --nproc 4 examples/frameworks/train_accelerate.py"""

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="hccl")])
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
data = TensorDataset(torch.randn(256, 16), torch.randn(256, 4))
loader = DataLoader(data, batch_size=32 // accelerator.num_processes)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(network, optimizer, loader)
for _ in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
weights = sum(each.abs().sum().item() for each in model.parameters())
print(f"rank {accelerator.process_index}: weights {weights:.6f}")
accelerator.end_training()
