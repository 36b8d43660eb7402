"""ignite over hccl: hccl-launch --nproc 4 examples/frameworks/train_ignite.py"""

import ignite.distributed as idist
import torch
from ignite.engine import create_supervised_trainer
from torch.utils.data import TensorDataset


def train(_: int) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
    data = TensorDataset(torch.randn(256, 16), torch.randn(256, 4))
    model = idist.auto_model(network)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    loader = idist.auto_dataloader(data, batch_size=32, shuffle=False)
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)
    trainer.run(loader, max_epochs=2)
    weights = sum(each.abs().sum().item() for each in model.parameters())
    print(f"rank {idist.get_rank()}: weights {weights:.6f}", flush=True)


if __name__ == "__main__":
    with idist.Parallel(backend="hccl") as parallel:
        parallel.run(train)
