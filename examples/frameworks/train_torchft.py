"""Train on replicas of which one may die and start again while the others continue (torchft).

torchft_lighthouse --min_replicas 2
export TORCHFT_LIGHTHOUSE=http://HOST:29510 HCCL_SECRET=THE_SAME_FOR_ALL
REPLICA=0 hccl-launch --nproc 1 examples/frameworks/train_torchft.py    # and one with REPLICA=1
"""

import os

import torch
import torch.distributed as dist
from torchft import Manager, Optimizer

from hccl_py.integrations.torchft import DistributedDataParallel, ProcessGroupHccl

dist.init_process_group("hccl")  # of this replica's own ranks; its store serves torchft
model = torch.nn.Linear(16, 4)
plain = torch.optim.AdamW(model.parameters(), lr=0.01)
manager = Manager(
    pg=ProcessGroupHccl(),
    min_replica_size=2,
    replica_id=f"replica{os.environ['REPLICA']}",
    state_dict=lambda: [model.state_dict(), plain.state_dict()],
    load_state_dict=lambda state: [
        model.load_state_dict(state[0]),
        plain.load_state_dict(state[1]),
    ],
)
optimizer = Optimizer(manager, plain)
wrapped = DistributedDataParallel(manager, model)
while manager.current_step() < 10:
    optimizer.zero_grad()  # the live replicas agree on this step
    loss = wrapped(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()  # does nothing if a replica was lost meanwhile
total = sum(parameter.double().sum().item() for parameter in model.parameters())
print(f"step {manager.current_step()}, model {total!r}", flush=True)
manager.shutdown()
dist.destroy_process_group()
