"""Trains a small model with DeepSpeed; prints its parameters. Arguments: backend, ZeRO stage.

`deepspeed_job.py module`: each rank trains the module itself, and leaves the engine alone.
"""

import sys

import deepspeed
import torch
from torch import distributed as dist
from torch import nn

is_misused = sys.argv[1] == "module"
backend, stage = ("hccl", 0) if is_misused else (sys.argv[1], int(sys.argv[2]))
deepspeed.init_distributed(dist_backend=backend)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": stage},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=model, config=config)
torch.manual_seed(1 + dist.get_rank())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    network = model if is_misused else engine
    loss = nn.functional.mse_loss(network(torch.randn(4, 16)), torch.randn(4, 4))
    if is_misused:
        loss.backward()
        optimizer.step()
    else:
        engine.backward(loss)
        engine.step()
with deepspeed.zero.GatheredParameters(list(model.parameters())):
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
print(f"model {total!r} group {type(dist.group.WORLD).__name__} {dist.get_backend()}", flush=True)
