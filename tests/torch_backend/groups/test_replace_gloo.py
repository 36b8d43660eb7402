"""HCCL_REPLACE=gloo: programs that name gloo, or nothing, get hccl under the name gloo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import launch
from quiet_clock import HANG_S

from hccl_py.torch_backend.groups.backend import IS_SUPPORTED

SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch.distributed import device_mesh, init_process_group
# Once for all cases.
import hccl_py.integrations.guard.guard, hccl_py.torch_backend.groups.lifecycle

def kind(group):
    return type(group).__name__

def case(*backend, accelerator=False, setting="gloo", **named):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.environ["HCCL_REPLACE"] = setting
        torch.accelerator.is_available = lambda: accelerator
        # As a build of torch for another accelerator has one.
        dist.Backend.register_backend("fast", lambda *_: dist.ProcessGroup(0, 1), devices=["xpu"])
        try:
            init_process_group(*backend, store=dist.HashStore(), rank=0, world_size=1, **named)
        except Exception as error:
            print(error)
        else:
            if not accelerator or "fast" not in backend[0]:
                dist.all_reduce(torch.ones(3))
            print(*backend, kind(dist.group.WORLD), dist.get_backend())
            if backend == ("gloo",) or setting == "gloo:all":
                more()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def more():
    derived, asked = dist.new_group(), dist.new_group(backend="gloo")
    split = dist.split_group(dist.group.WORLD, [[0]])
    mesh = device_mesh.init_device_mesh("cpu", (1, 1)).get_group(0)
    subgroup, _ = dist.new_subgroups(group_size=1, backend="gloo")
    named = dist.new_group(backend="cpu:gloo,cuda:gloo")
    for group in (derived, asked, split, mesh, subgroup, named):
        dist.all_reduce(torch.ones(3), group=group)
        print(kind(group), dist.get_backend(group))
    for group in (derived, asked):
        if dist.get_backend(group) == "gloo":
            dist.monitored_barrier(group)
    dist.destroy_process_group()
    init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

for backend in ("gloo", "GLOO", "cpu:gloo,cuda:nccl", "hccl"):
    case(backend)
case()
case(backend=None)
case("gloo", accelerator=True)
case("cpu:gloo,cuda:gloo", accelerator=True)
case("cuda:gloo,cpu:hccl")
from hccl_py.torch_backend.groups.backend import IS_SUPPORTED
if not IS_SUPPORTED:
    case("cpu:gloo,xpu:fast", accelerator=True)
case("gloo", setting="gloo:all")
case("hccl", setting="gloo:all")
case("gloo", setting="nccl")
"""


def test_names_of_gloo_give_groups_of_hccl() -> None:
    environment = {**os.environ, "HCCL_REPLACE": "gloo"}
    command = [sys.executable, "-c", SCRIPT]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert ran.returncode == 0, ran.stderr
    ours = "ProcessGroupHccl"
    derived = [f"{ours} gloo", "ProcessGroup gloo", f"{ours} gloo", f"{ours} gloo"]
    derived += ["ProcessGroup gloo", "ProcessGroup cpu:gloo,cuda:gloo"]
    every = [line.replace("ProcessGroup ", f"{ours} ") for line in derived]
    by_default = [0, 2, 3]
    beside = [f"{ours} hccl" if i in by_default else line for i, line in enumerate(every)]
    assert ran.stdout.splitlines() == [
        *(f"gloo {ours} gloo", *derived),
        f"GLOO {ours} gloo",
        f"cpu:gloo,cuda:nccl {ours} cpu:gloo,cuda:nccl",
        f"hccl {ours} hccl",
        *(f"{ours} gloo", f"{ours} gloo"),
        *(f"gloo {ours} gloo", *derived),
        f"cpu:gloo,cuda:gloo {ours} cpu:gloo,cuda:gloo",
        f"cuda:gloo,cpu:hccl {'ProcessGroup' if IS_SUPPORTED else ours} cuda:gloo,cpu:hccl",
        *([] if IS_SUPPORTED else ["cpu:gloo,xpu:fast ProcessGroup cpu:gloo,xpu:fast"]),
        *(f"gloo {ours} gloo", *every),
        *(f"hccl {ours} hccl", *beside),
        "HCCL_REPLACE: expected gloo or gloo:all, got 'nccl'",
    ]
    # A line of each process, also of one that makes a second group.
    assert ran.stderr.count("HCCL_REPLACE=gloo: hccl carries CPU tensors in place of gloo") == 7
    by_all = [line for line in ran.stderr.splitlines() if "HCCL_REPLACE=gloo:all: hccl" in line]
    assert len(by_all) == 2 * 2, ran.stderr  # two names in each process
    assert ran.stderr.count("leaves cpu:gloo,xpu:fast alone") == (not IS_SUPPORTED)


@pytest.mark.nightly("launchers")
@pytest.mark.parametrize("setting", ["gloo", "gloo:all"])
def test_setting_gives_ranks_of_a_job_hccl_and_says_so_once(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group()\n"
        "asked, sums = dist.new_group(backend='gloo'), torch.ones(1)\n"
        "for group in (dist.group.WORLD, asked):\n"
        "    dist.all_reduce(sums, group=group)\n"
        "print(type(dist.group.WORLD).__name__, type(asked).__name__, dist.get_backend(asked), "
        "int(sums))\n"
    )
    monkeypatch.setenv("HCCL_REPLACE", setting)
    option = ["--replace-gloo"] if setting == "gloo" else []
    ran = launch(*option, "--nproc", 2, script)
    asked = "ProcessGroup" if setting == "gloo" else "ProcessGroupHccl"
    assert ran.stdout.splitlines() == [f"ProcessGroupHccl {asked} gloo 4"] * 2, ran.stderr
    assert ran.stderr.count(f"HCCL_REPLACE={setting}:") == 1
