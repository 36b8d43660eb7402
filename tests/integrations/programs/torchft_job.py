"""One replica of a job under torchft: REPLICA hccl|gloo FOLDER [die].

It waits before steps 0 and BACK until FOLDER has a file of that name. `die`: it kills itself in
the middle of step LOST, where the others wait for its gradients.
"""

import hashlib
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import Manager, Optimizer
from torchft.process_group import ProcessGroupGloo

from hccl_py.integrations.torchft import DistributedDataParallel, ProcessGroupHccl

LOST, BACK, STEPS = 4, 8, 40
LIMIT = timedelta(seconds=240)

replica, kind, folder, *fate = sys.argv[1:]
store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
torch.manual_seed(int(replica))  # torchft makes the replicas equal
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
plain = torch.optim.SGD(model.parameters(), lr=0.1)
group = {"hccl": ProcessGroupHccl, "gloo": ProcessGroupGloo}[kind](timeout=LIMIT)
manager = Manager(
    pg=group,
    min_replica_size=2,
    replica_id=f"replica{replica}",
    state_dict=model.state_dict,
    load_state_dict=model.load_state_dict,
    store_addr="localhost",
    store_port=store.port,
    rank=0,
    world_size=1,
    hostname="localhost",
    timeout=LIMIT,
    quorum_timeout=LIMIT,
)
optimizer = Optimizer(manager, plain)
wrapped = DistributedDataParallel(manager, model, bucket_cap_mb=0.0005)  # several buckets
print("ready", flush=True)
while (step := manager.current_step()) < STEPS:
    deadline_s = time.monotonic() + LIMIT.total_seconds()
    while step in (0, BACK) and not (Path(folder) / str(step)).exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    data = torch.Generator().manual_seed(10 * step + int(replica))
    optimizer.zero_grad()
    loss = wrapped(torch.randn(8, 16, generator=data)) - torch.randn(8, 4, generator=data)
    if step == LOST and fate:
        manager.wait_quorum()
        os.kill(os.getpid(), signal.SIGKILL)
    began_s = time.monotonic()
    loss.square().mean().backward()
    if manager.errored():
        print(f"lost after {time.monotonic() - began_s:.1f} s: {manager.errored()}", flush=True)
    optimizer.step()
    print(f"step {manager.current_step()} of {manager.num_participants()}", flush=True)
values = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
print(f"md5 {hashlib.md5(values).hexdigest()}", flush=True)
print(f"model {sum(each.double().sum().item() for each in model.parameters())!r}", flush=True)
manager.shutdown()
group.shutdown()
