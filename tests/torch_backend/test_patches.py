"""Every patch of torch is listed, does what it is for, and is still needed.

Torch's own function is the patch's `__wrapped__`. A test that fails because torch's own function
does the right thing asks for the patch to be removed from `hccl_py/torch_backend/compat/`.
"""

import importlib
import inspect
import pickle
import pkgutil
import re
import runpy
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from quiet_clock import HANG_S
from ranks import run_ranks
from torch import nn
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from hccl_py.torch_backend import let_signals_interrupt_rendezvous
from hccl_py.torch_backend.compat import AT_IMPORT, PATCHES
from hccl_py.torch_backend.groups.backend import IS_SUPPORTED, RECORDS
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network import system_calls

before_2_14 = pytest.mark.skipif(IS_SUPPORTED, reason="torch 2.14 does without the patch")


def original(name: str) -> Any:
    """Return torch's own function under the dotted `name`."""
    return pkgutil.resolve_name(name).__wrapped__


def test_list_names_every_patch_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("hccl_py.torch_backend.compat")
    printed = capsys.readouterr().out
    for patch in (*AT_IMPORT, *PATCHES):
        assert patch.reason and f"{patch.target}\n    {patch.reason}" in printed


@pytest.mark.skipif(not IS_SUPPORTED, reason="the page has what newer versions of torch need")
def test_page_names_every_patch() -> None:
    page = Path(__file__).parents[2] / "docs/api/torch.md"
    _, _, rest = page.read_text().partition("## What hccl-py changes in torch\n")
    section, _, _ = rest.partition("\n## ")
    named = set(re.findall(r"`(?:\w+\.)?(\w+)`", section))
    assert {patch.target.rpartition(".")[2] for patch in (*AT_IMPORT, *PATCHES)} <= named


def records_of_a_call(rank: int, world_size: int) -> list[int]:
    """Return how often torch's flight recorder has a call, after each of two ways to attach."""
    recorder: Any = _distributed_c10d.FlightRecorderHook  # type: ignore[attr-defined]
    found, kept = [], []
    for attach in (recorder.attach, recorder.attach.__wrapped__):
        kept.append(attach(dist.group.WORLD))
        before = pickle.loads(_distributed_c10d._dump_fr_trace())["entries"]
        dist.all_reduce(torch.ones(1))
        after = pickle.loads(_distributed_c10d._dump_fr_trace())["entries"]
        found.append(len(after) - len(before))
    return found


@pytest.mark.skipif(not (IS_SUPPORTED and RECORDS), reason="torch records no calls, or each once")
def test_call_is_recorded_once_by_torchs_recorder() -> None:
    environment = {"HCCL_NATIVE_BACKEND": "1", "TORCH_FR_BUFFER_SIZE": "100"}
    assert run_ranks(records_of_a_call, 1, env=environment, backend="hccl") == [[1, 2]]


def test_power_sgd_still_drops_the_matrices_of_other_buckets() -> None:
    """In the ranks of `training/test_hooks.py` hccl trains with several buckets."""
    assert "state.q_memory_dict.clear()" in inspect.getsource(powerSGD_hook.powerSGD_hook)


def rejects_groups_in_python(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    prefix = "torch.distributed.distributed_c10d."
    if not IS_SUPPORTED:
        with pytest.raises(ValueError, match="GLOO"):
            original(prefix + "monitored_barrier")(group)
    # Both calls are complete: only that the group has no C++ backend makes them fail.
    with pytest.raises(RuntimeError, match="device|split"):
        original(prefix + "split_group")(group, [[0]])
    metadata = {
        "original_group_name": "",
        "new_group_name": "shrunk",
        "store": dist.HashStore(),
        "bound_device_id": None,
    }
    shrink = original(prefix + "_create_shrunk_process_group")
    with pytest.raises((TypeError, RuntimeError), match="_register_backend|cast"):
        shrink(group, [0], metadata, False)


def check_timeout(rank: int, world_size: int) -> None:
    group: Any = dist.group.WORLD
    before = group.options._timeout
    original("torch.distributed.distributed_c10d._set_pg_timeout")(timedelta(seconds=7), group)
    assert group.options._timeout == before
    c10d._set_pg_timeout(timedelta(seconds=7), group)
    assert group.options._timeout == timedelta(seconds=7)


@before_2_14
def test_torch_still_sets_no_timeout_of_groups_in_python() -> None:
    run_ranks(check_timeout, 1, backend="hccl")


def keeps_calls_after_an_exception(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    manager = original("torch.distributed.distributed_c10d._coalescing_manager")
    with pytest.raises(KeyError), manager(group):
        raise KeyError("of the user's")
    assert c10d._world.pg_coalesce_state.pop(group) == []
    tensor = torch.ones(1)
    with pytest.raises(KeyError), c10d._coalescing_manager(group):
        dist.all_reduce(tensor)
        raise KeyError("of the user's")
    with c10d._coalescing_manager(group):  # of what was left behind nothing is in the way
        dist.all_reduce(tensor)
    assert c10d._world.pg_coalesce_state == {}


def compares_no_memory_of_transfers(rank: int, world_size: int) -> None:
    tensor = torch.ones(4)
    ops = [dist.P2POp(dist.irecv, tensor, 0), dist.P2POp(dist.irecv, tensor[1:], 0)]
    original("torch.distributed.distributed_c10d._check_p2p_op_list")(ops)
    with pytest.raises(InvalidArgumentError, match="call 1, recv.*call 2, recv"):
        dist.batch_isend_irecv(ops)


def requires_nccl_for_bf16_hooks(rank: int, world_size: int) -> None:
    network = DistributedDataParallel(nn.Linear(3, 1))
    with pytest.raises(TypeError, match="BF16"):
        type(network)._check_comm_hook.__wrapped__(network, default_hooks.bf16_compress_hook)


def check_logged_hook(rank: int, world_size: int, kind: str) -> str:
    network = DistributedDataParallel(nn.Linear(3, 1))
    if kind == "default":
        network.register_comm_hook(None, default_hooks.fp16_compress_hook)
    else:
        network._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, kind))
    network(torch.ones(1, 3)).sum().backward()
    return str(network._get_ddp_logging_data()["comm_hook"])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("FP16_COMPRESS", "BuiltinCommHookType.FP16_COMPRESS"),
        ("ALLREDUCE", "BuiltinCommHookType.ALLREDUCE"),
        ("default", "fp16_compress_hook"),
    ],
)
def test_ddp_logs_the_hook_that_was_asked_for(kind: str, name: str) -> None:
    assert run_ranks(check_logged_hook, 1, kind, backend="hccl") == [name]


def fails_in_its_fp16_hook_on_futures_of_python(rank: int, world_size: int) -> None:
    network = DistributedDataParallel(nn.Linear(3, 1))
    register = type(network)._register_builtin_comm_hook.__wrapped__
    register(network, dist.BuiltinCommHookType.FP16_COMPRESS)
    with pytest.raises(RuntimeError, match="TensorList"):
        network(torch.ones(1, 3)).sum().backward()


def redistributes(rank: int, world_size: int) -> None:
    """The import comes after the group; torch's own function gathers the whole tensor."""
    from torch.distributed.tensor import Shard, distribute_tensor, placement_types
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = init_device_mesh("cpu", (world_size,))
    whole = torch.arange(70.0).view(7, 10)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    with CommDebugMode() as debugged:
        columns = rows.redistribute(mesh, [Shard(1)])
    assert [str(one) for one in debugged.get_comm_counts()] == ["_dtensor.shard_dim_alltoall"]
    assert torch.equal(columns.full_tensor(), whole)
    part = torch.ones(world_size, world_size)
    with CommDebugMode() as debugged:
        placement_types.shard_dim_alltoall.__wrapped__(part, 0, 1, mesh, 0)
    assert not any("alltoall" in str(one) for one in debugged.get_comm_counts())


@pytest.mark.parametrize("world_size", [2, 3])
def test_shards_of_another_dimension_go_by_all_to_all(world_size: int) -> None:
    run_ranks(redistributes, world_size, backend="hccl")


def keeps_only_the_cpp_half_of_a_work(rank: int, world_size: int) -> None:
    network = DistributedDataParallel(nn.Linear(3, 1))
    keep = type(network.reducer)._set_forward_pass_work_handle
    for function, is_kept in ((keep.__wrapped__, False), (keep, True)):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert work is not None
        work.wait()
        function(network.reducer, work, False)
        python_half = weakref.ref(work)
        del work
        assert (python_half() is not None) == is_kept


@pytest.mark.parametrize(
    "check",
    [
        rejects_groups_in_python,
        keeps_calls_after_an_exception,
        compares_no_memory_of_transfers,
        pytest.param(requires_nccl_for_bf16_hooks, marks=before_2_14),
        fails_in_its_fp16_hook_on_futures_of_python,
        keeps_only_the_cpp_half_of_a_work,
    ],
)
def test_torch_still(check: Callable[[int, int], None]) -> None:
    run_ranks(check, 1, backend="hccl")


class PythonGroup(dist.ProcessGroup):
    """A group that notes the calls which reach its methods in Python."""

    called: list[str] = []

    def getGroupName(self) -> str:  # noqa: N802
        return "python"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        pass

    def all_gather_single(self, *arguments: Any) -> None:
        self.called.append("all_gather_single")

    def send(self, *arguments: Any) -> None:
        self.called.append("send")


def check_functional(rank: int, world_size: int) -> list[str]:
    # This process has made no group of hccl, so no patch of the list is applied.
    group, tensor = PythonGroup(0, 1), torch.ones(2)
    torch._C._distributed_c10d._register_process_group("python", group)
    ops = torch.ops._c10d_functional
    if not IS_SUPPORTED:
        with pytest.raises((RuntimeError, NotImplementedError)):
            ops.all_gather_into_tensor_out(tensor, 1, "python", out=torch.empty(2))
    if hasattr(ops, "batch_p2p_ops"):
        with pytest.raises((RuntimeError, NotImplementedError)):
            ops.batch_p2p_ops(["isend"], [0], [0], [tensor], "python")
    return group.called


def test_torch_still_bypasses_groups_in_python_in_functional_collectives() -> None:
    assert run_ranks(check_functional, 1) == [[]]


@pytest.mark.nightly("training")
def test_dynamo_still_fails_on_our_functions() -> None:
    script = """
import torch, torch.distributed as dist
from hccl_py.torch_backend import compat
left_out = "torch._C._dynamo.eval_frame"
compat.PATCHES = tuple(patch for patch in compat.PATCHES if patch.target != left_out)
dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
layers = [torch.nn.Linear(30, 30) for _ in range(4)]
network = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
compiled = torch.compile(network, backend="aot_eager")
for _ in range(3):
    compiled(torch.ones(1, 30)).sum().backward()
"""
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert ran.returncode != 0 and "Dynamo" in ran.stderr, ran.stderr


def check_replacement(rank: int, world_size: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        original("torch.distributed.Backend.register_backend")("hccl", print, devices=["cpu"])
    assert dist.Backend._plugins["HCCL"].creator_fn is print


def test_torch_still_replaces_backends_without_a_warning() -> None:
    run_ranks(check_replacement, 1)


def group_of(kind: str, members: list[int], rank: int) -> Any:
    """Make a group in one of torch's ways; every rank calls. Return it on its members."""
    if kind == "new_group":
        made: Any = dist.new_group(members)
    elif kind == "local":
        made = None
        if rank in members:  # torch lets the others call, or not
            made = dist.new_group(members, use_local_synchronization=True)
    elif kind == "split":
        others = [it for it in range(dist.get_world_size()) if it not in members]
        made = dist.split_group(split_ranks=[members, others] if others else [members])
    else:
        rows = [[0, 1], [2, 3]] if len(members) == 2 else [[0, 2], [1, 3]]
        made = DeviceMesh("cpu", rows, mesh_dim_names=("a", "b")).get_group("b")
    return None if made == dist.GroupMember.NON_GROUP_MEMBER else made


def make_groups_in_any_order(rank: int, world_size: int, seed: int) -> None:
    """Each group knows who is in it: the sum of its ranks, by their bits."""
    random = Random(seed)
    groups: list[Any] = []
    for _ in range(12):
        kind = random.choice(["new_group", "local", "split", "mesh", "destroy"])
        members = random.sample(range(world_size), random.randint(1, world_size))
        if kind == "destroy":
            if groups and (group := groups.pop(random.randrange(len(groups)))) is not None:
                dist.destroy_process_group(group)
            continue
        group = group_of(kind, members, rank)
        groups.append(group)
        if group is not None:
            bits = torch.tensor([1 << rank])
            dist.all_reduce(bits, group=group)
            assert bits.item() == sum(1 << it for it in dist.get_process_group_ranks(group))
    dist.barrier()


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(it, marks=pytest.mark.nightly("faults")) for it in range(3, 40))]
)
def test_groups_of_uneven_members_in_any_order_find_each_other(seed: int) -> None:
    run_ranks(make_groups_in_any_order, 4, seed, backend="hccl")


def make_groups_after_uneven_ones(rank: int, world_size: int) -> None:
    dist.new_group([0, 1])
    for count in range(2):
        groups: list[Any] = [dist.split_group(split_ranks=[[0, 2], [1, 3]])]
        if rank != 2:  # only members need call it
            groups.append(dist.new_group([0, 3, 1], use_local_synchronization=True))
        for group in groups:
            ones = torch.ones(1)
            dist.all_reduce(ones, group=group)
            assert ones.item() == group.size(), count
    torchs = original("torch.distributed.distributed_c10d._process_group_name")
    if rank != 2:
        torchs([0, 3, 1], True)  # torch 2.14 counts such calls
    names: list[Any] = [None] * world_size
    dist.all_gather_object(names, torchs([0, 1, 2, 3], True))
    assert len(set(names)) > 1, "torch derives one name itself"


def test_members_of_a_later_group_derive_one_name() -> None:
    run_ranks(make_groups_after_uneven_ones, 4, backend="hccl", timeout_s=60)


@pytest.mark.parametrize(
    ("torchs_error", "limit", "text"),
    [(None, 1024, "rank 0 did not come"), (RuntimeError("uv loop"), 8, "uv loop: ulimit -n is 8")],
)
def test_store_that_cannot_be_had_is_an_error_in_time_that_says_what_to_look_at(
    monkeypatch: pytest.MonkeyPatch, torchs_error: Exception | None, limit: int, text: str
) -> None:
    """Torch waits longer than its timeout, and does not say that no descriptor is left."""
    ended = threading.Event()

    def create(*_arguments: Any) -> None:
        if torchs_error is not None:
            raise torchs_error
        ended.wait(HANG_S)

    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(rendezvous, "_create_c10d_store", create)
    monkeypatch.setattr(system_calls, "descriptor_limits", lambda: (limit, limit))
    let_signals_interrupt_rendezvous()
    with pytest.raises(RuntimeError, match=text):
        rendezvous._create_c10d_store("127.0.0.1", 1, 1, 2, timedelta(seconds=0.1))
    ended.set()
