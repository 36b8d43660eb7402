"""A Horovod program: only its import differs.

hccl-launch --nproc 2 examples/frameworks/horovod.py
"""

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hccl_py.horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
torch.set_num_threads(1)

generator = torch.Generator().manual_seed(1)
values = torch.randn(512, 8, generator=generator)
data = TensorDataset(values, (values.sum(1) > 0).long())
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(data, batch_size=16, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16
)

for epoch in range(5):
    sampler.set_epoch(epoch)
    for batch, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss").item()
    if hvd.rank() == 0:
        print(f"epoch {epoch} on {hvd.size()} ranks: loss {mean:.3f}", flush=True)
weights = hvd.allgather(model[0].weight.detach().sum().reshape(1))
assert (weights == weights[0]).all(), weights
