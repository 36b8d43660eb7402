"""Trains a small model with Accelerate; prints its parameters. Argument: how it is set up."""

import sys

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState, debug_launcher
from accelerate.local_sgd import LocalSGD
from accelerate.utils import InitProcessGroupKwargs
from torch import distributed as dist
from torch import nn


def set_up(kind: str) -> Accelerator:
    if kind == "unpatched":  # the trap: Accelerate believes it is one process
        PartialState._prepare_backend = PartialState._prepare_backend.__wrapped__
    if kind in ("backend", "unpatched", "fsdp"):
        plugin = FullyShardedDataParallelPlugin() if kind == "fsdp" else None
        handlers = [InitProcessGroupKwargs(backend="hccl")]
        return Accelerator(kwargs_handlers=handlers, fsdp_plugin=plugin)
    if kind in ("group", "local_sgd"):
        dist.init_process_group("hccl")
    return Accelerator(cpu=kind != "group")


def train(kind: str) -> None:
    accelerator = set_up(kind)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randn(96, 4))
    torch.manual_seed(1 + dist.get_rank())
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    period = 5 if kind == "local_sgd" else 1
    with LocalSGD(accelerator, model, local_sgd_steps=period, enabled=period > 1) as local_sgd:
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
            local_sgd.step()
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    group = f"{type(dist.group.WORLD).__name__} {dist.get_backend()}"
    print(f"model {total!r} group {group}", flush=True)


if sys.argv[1] == "debug_launcher":  # it starts the ranks
    debug_launcher(train, ("cpu",), num_processes=2)
else:
    train(sys.argv[1])
