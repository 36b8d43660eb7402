"""The entry point `torch.backends`: no import of ours needed, light, and never in the way."""

import os
import subprocess
import sys

import pytest
from quiet_clock import HANG_S


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_init_process_group_without_any_import_of_ours_reads_the_scheduler_for_itself() -> None:
    script = """
import os, sys, torch, torch.distributed as dist
loaded = sorted(name for name in sys.modules if name.startswith("hccl_py"))
try:
    dist.init_process_group("gloo")
except ValueError as error:
    print(error)
print([name for name in ("RANK", "MASTER_ADDR") if name in os.environ])
dist.init_process_group("hccl")
tensor = torch.arange(3.0)
dist.all_reduce(tensor)
assert tensor.tolist() == [0, 1, 2]
print(dist.get_rank(), dist.get_world_size(), os.environ["RANK"], os.environ["LOCAL_RANK"])
print(dist.group.WORLD.name(), *loaded)
print(dist.Backend.default_device_backend_map["cpu"])
"""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    ran = python("-c", script, **step, SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1")
    assert ran.returncode == 0, ran.stderr
    refused, *rest = ran.stdout.splitlines()
    assert "RANK expected, but not set" in refused  # else torch reads Slurm's variables by now
    # Nothing comes with torch but the hooks, and what reads the variables of a scheduler.
    guard = "hccl_py.integrations hccl_py.integrations.guard hccl_py.integrations.guard.first_step"
    loaded = f"hccl_py hccl_py._autoload {guard} hccl_py.torch_backend"
    assert rest == ["[]", "0 1 0 0", f"hccl {loaded}", "gloo"]


@pytest.mark.nightly("training")
def test_taken_name_leaves_the_alias_and_one_warning() -> None:
    # Each order in a process of its own, forked with torch in it; to take that apart takes long.
    script = """
import os, sys, warnings, torch, torch.distributed as dist
del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]  # else hccl_py registers itself
import hccl_py._autoload
def theirs(*arguments):
    raise RuntimeError("theirs")
def register_and_use(*registrations):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for register in registrations * 2:
            register()
        hccl_py._autoload.register()
    print(sum("hccl_py" in str(warning.message) for warning in caught))
    print("hccl_py" in dist.init_process_group.__code__.co_filename)
    dist.init_process_group("hccl_py", store=dist.HashStore(), rank=0, world_size=1)
    print(type(dist.group.WORLD).__name__)
    dist.destroy_process_group()
    try:
        dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    except RuntimeError as error:
        print(error)
ours = hccl_py._autoload.register
register_theirs = lambda: dist.Backend.register_backend("hccl", theirs, devices=["cpu"])
for order in ((register_theirs, ours), (ours, register_theirs)):
    child = os.fork()
    if child == 0:
        register_and_use(*order)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    ran = python("-c", script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ran.returncode == 0, ran.stderr
    theirs_first, ours_first = ran.stdout.split()[:4], ran.stdout.split()[4:]
    assert theirs_first == ["1", "False", "ProcessGroupHccl", "theirs"]
    assert ours_first == theirs_first


@pytest.mark.parametrize("imports", ["torch, hccl_py", "hccl_py, torch"])
def test_import_of_hccl_py_registers_where_torch_loads_no_backends(imports: str) -> None:
    script = f"""
import {imports}
import torch.distributed as dist
dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.group.WORLD).__name__)
"""
    ran = python("-c", script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ran.stdout.split() == ["ProcessGroupHccl"], ran.stderr


def test_failure_of_the_hook_does_not_break_torch() -> None:
    script = """
import sys, warnings
sys.modules["torch.distributed"] = None
import hccl_py._autoload
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    hccl_py._autoload.register()
print(len(caught), "could not register" in str(caught[0].message))
"""
    ran = python("-c", script)
    assert ran.stdout.split() == ["1", "True"], ran.stderr
