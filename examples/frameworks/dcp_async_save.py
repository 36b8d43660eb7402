"""Save a checkpoint while training goes on: hccl-launch --nproc 2 dcp_async_save.py"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("hccl")
checkpoints = dist.new_group()  # not the group that trains: both have calls at the same time
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
for step in range(50):
    if step == 10:
        saved = {name: value.clone() for name, value in model.module.state_dict().items()}
        saving = dcp.async_save(saved, checkpoint_id=folder[0], process_group=checkpoints)
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
saving.result()
loaded = {name: torch.zeros_like(value) for name, value in saved.items()}
dcp.load(loaded, checkpoint_id=folder[0])
assert all(torch.equal(loaded[name], saved[name]) for name in saved)
print("loaded what was saved after step 10", flush=True)
dist.destroy_process_group()
