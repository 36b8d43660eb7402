"""DeepSpeed's ZeRO over hccl: hccl-launch --nproc 4 examples/frameworks/train_deepspeed.py 3"""

import sys

import deepspeed
import torch
from torch import distributed as dist

deepspeed.init_distributed(dist_backend="hccl")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
inputs, targets = torch.randn(256, 16), torch.randn(256, 4)
config = {
    "train_micro_batch_size_per_gpu": 32 // world_size,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": int(sys.argv[1]) if len(sys.argv) > 1 else 1},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=network, config=config)
for step in range(16):
    mine = torch.arange(256).view(8, 32)[step % 8][rank::world_size]  # of the batch of this step
    engine.backward(torch.nn.functional.mse_loss(engine(inputs[mine]), targets[mine]))
    engine.step()
with deepspeed.zero.GatheredParameters(list(network.parameters())):
    weights = sum(each.abs().sum().item() for each in network.parameters())
print(f"rank {rank}: weights {weights:.6f}")
