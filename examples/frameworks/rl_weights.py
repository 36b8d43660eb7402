"""Send weights from a trainer to an inference engine, two jobs with a default group each.

export WEIGHTS=tcp://HOST_OF_THE_TRAINER:29700 HCCL_SECRET=THE_SAME_FOR_BOTH
hccl-launch --nproc 2 examples/frameworks/rl_weights.py trainer
hccl-launch --nproc 2 examples/frameworks/rl_weights.py inference
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def init_custom_process_group(init_method, rank, world_size, name):
    """Make a group beside the default one, as RL stacks do; its ranks are numbered for it alone."""
    limit = timedelta(minutes=5)
    store, rank, world_size = next(dist.rendezvous(init_method, rank, world_size, timeout=limit))
    names = {"backend": dist.Backend("hccl"), "group_name": name, "timeout": limit}
    store = dist.PrefixStore(name, store)
    group, _ = c10d._new_process_group_helper(world_size, rank, [], store=store, **names)
    c10d._world.pg_group_ranks[group] = {each: each for each in range(world_size)}
    return group


role = sys.argv[1]
dist.init_process_group("hccl")
model = torch.nn.Linear(16, 4)  # the trainer's values differ from the engine's
sender = role == "trainer" and dist.get_rank() == 0
if sender or role == "inference":
    rank = 0 if sender else dist.get_rank() + 1
    group = init_custom_process_group(os.environ["WEIGHTS"], rank, 3, "weights")
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0, group=group)
    dist.destroy_process_group(group)
    print(f"{role} {sum(each.double().sum().item() for each in model.parameters())!r}")
dist.destroy_process_group()
