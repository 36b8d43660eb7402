"""HCCL_REPLACE=gloo: programs that name gloo, or nothing, get hccl under the name gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from launching import launch

SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch.distributed import device_mesh, init_process_group

def kind(group):
    return type(group).__name__

def case(*backend, accelerator=False, **named):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        torch.accelerator.is_available = lambda: accelerator
        try:
            init_process_group(*backend, store=dist.HashStore(), rank=0, world_size=1, **named)
        except Exception as error:
            print(*backend, type(error).__name__, error)
        else:
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            print(*backend, kind(dist.group.WORLD), dist.get_backend())
            if backend == ("gloo",):
                more()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def more():
    derived, asked = dist.new_group(), dist.new_group(backend="gloo")
    split = dist.split_group(dist.group.WORLD, [[0]])
    mesh = device_mesh.init_device_mesh("cpu", (1, 1)).get_group(0)
    for group in (derived, asked, split, mesh):
        dist.all_reduce(torch.ones(3), group=group)
        print(kind(group), dist.get_backend(group))
    dist.monitored_barrier(derived)
    dist.destroy_process_group()
    init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

for backend in ("gloo", "GLOO", "cpu:gloo,cuda:nccl", "hccl"):
    case(backend)
case()
case(backend=None)
case("gloo", accelerator=True)
case("cpu:gloo,cuda:gloo", accelerator=True)
case("cuda:gloo,cpu:hccl")
"""


def python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_names_of_gloo_give_groups_of_hccl() -> None:
    ran = python(SCRIPT, HCCL_REPLACE="gloo")
    assert ran.returncode == 0, ran.stderr
    ours = "ProcessGroupHccl"
    derived = [f"{ours} gloo", "ProcessGroup gloo", f"{ours} gloo", f"{ours} gloo"]
    assert ran.stdout.splitlines() == [
        *(f"gloo {ours} gloo", *derived),
        f"GLOO {ours} gloo",
        f"cpu:gloo,cuda:nccl {ours} cpu:gloo,cuda:nccl",
        f"hccl {ours} hccl",
        *(f"{ours} gloo", f"{ours} gloo"),
        *(f"gloo {ours} gloo", *derived),
        f"cpu:gloo,cuda:gloo {ours} cpu:gloo,cuda:gloo",
        f"cuda:gloo,cpu:hccl {ours} cuda:gloo,cpu:hccl",
    ]
    # A line of each process, also of one that makes a second group.
    assert ran.stderr.count("HCCL_REPLACE=gloo: hccl carries CPU tensors in place of gloo") == 7


def test_groups_of_an_accelerator_are_left_alone() -> None:
    script = """
import torch, torch.distributed as dist
torch.accelerator.is_available = lambda: True
# As a build with xccl would have it.
dist.Backend.register_backend("fast", lambda *options: dist.ProcessGroup(0, 1), devices=["xpu"])
dist.init_process_group("cpu:gloo,xpu:fast", store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.group.WORLD).__name__)
"""
    ran = python(script, HCCL_REPLACE="gloo")
    assert "leaves cpu:gloo,xpu:fast alone" in ran.stderr, ran.stderr
    assert "ProcessGroupHccl" not in ran.stdout


def test_wrong_value_is_one_line() -> None:
    script = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
    ran = python(script, HCCL_REPLACE="nccl")
    assert ran.stderr.splitlines()[-1].endswith("HCCL_REPLACE: expected gloo, got 'nccl'")


def test_option_of_the_launcher_says_so_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group()\n"
        "dist.all_reduce(torch.ones(1))\n"
        "print(type(dist.group.WORLD).__name__, dist.get_backend())\n"
    )
    ran = launch("--replace-gloo", "--nproc", 2, script)
    assert ran.stdout.splitlines() == ["ProcessGroupHccl gloo"] * 2, ran.stderr
    assert ran.stderr.count("HCCL_REPLACE=gloo") == 1
