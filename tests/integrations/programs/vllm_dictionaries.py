"""Two ranks of a group of vLLM, which send each other dictionaries of tensors, and sum."""

import os
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.plugins import load_general_plugins

NUM_SENDS = 50
SENT: dict[str, Any] = {
    "hidden": torch.arange(15, dtype=torch.float32).reshape(3, 5),
    "large": torch.arange(1 << 20, dtype=torch.int32).to(torch.bfloat16),
    "empty": torch.empty(0, 4),
    "ids": torch.tensor([1 << 40, -1]),
    "bits": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "text": "no tensor",
    "none": None,
}


def check(received: dict[str, Any]) -> None:
    assert list(received) == list(SENT)
    for name, value in SENT.items():
        got = received[name]
        same = torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value
        assert same and getattr(got, "dtype", None) == getattr(value, "dtype", None), name


rank = int(os.environ["RANK"])
load_general_plugins()
with set_current_vllm_config(VllmConfig()):
    parallel_state.init_distributed_environment(2, rank, "env://", rank, "gloo")
    parallel_state.initialize_model_parallel(1, 2)
group = parallel_state.get_pp_group()
assert type(group.device_communicator).__name__ == "HcclCommunicator"

if rank == 0:
    group.send_tensor_dict(SENT)
    check(group.recv_tensor_dict())
    for number in range(NUM_SENDS):  # nobody waits for them
        group.isend_tensor_dict({"number": torch.full((1 << 16,), number)})
else:
    check(group.recv_tensor_dict())
    group.send_tensor_dict(SENT)
    for number in range(NUM_SENDS):
        (received,) = group.recv_tensor_dict().values()
        assert torch.equal(received, torch.full((1 << 16,), number))
for data in (torch.arange(512.0), torch.ones(2, 256, dtype=torch.bfloat16), torch.ones(3, 5).t()):
    summed = group.device_communicator.all_reduce(data.clone())
    assert torch.equal(summed, 2 * data)
traced = torch.compile(group.device_communicator.all_reduce, backend="eager", fullgraph=True)
assert torch.equal(traced(torch.ones(8)), torch.full((8,), 2.0))
check(group.broadcast_tensor_dict(SENT if rank == 1 else None, src=1))
group.barrier()
group._reap_completed_isends()
assert not group._pending_isends  # vLLM keeps the tensors of a send until is_completed()
print("the same")
parallel_state.destroy_model_parallel()
parallel_state.destroy_distributed_environment()
