"""Train with Ray Train on CPU workers: python examples/frameworks/train_ray.py"""

import tempfile

import ray
import torch
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train():
    torch.manual_seed(get_context().get_world_rank())
    model = prepare_model(torch.nn.Linear(16, 4))  # DistributedDataParallel
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"model {total!r} group {type(torch.distributed.group.WORLD).__name__}", flush=True)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        torch_config=TorchConfig(backend="hccl"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tempfile.mkdtemp()),
    )
    trainer.fit()
