"""hccl as one backend of a torch process group: groups of several backends, torch's hooks."""

import os
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.distributed._functional_collectives import (
    allow_inflight_collective_as_graph_input_ctx,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from hccl_py.torch_backend.groups.backend import IS_SUPPORTED, RECORDS, HcclBackend, backend_of
from hccl_py.torch_backend.groups.process_group import ProcessGroupHccl
from hccl_py.torch_backend.groups.replace_gloo import replace_gloo
from hccl_py.transport.errors import InvalidArgumentError

pytestmark = pytest.mark.skipif(not IS_SUPPORTED, reason="this torch has no backends in Python")

MIXED = "cpu:hccl,cuda:gloo"
CPU = torch.device("cpu")


def kind(group: Any, device: str = "cpu") -> str:
    return type(group._get_backend(torch.device(device))).__name__


def kinds(rank: int, world_size: int) -> list[list[str]]:
    """Return, by configuration, the class of a group, and of its backends."""
    found = []
    for index, config in enumerate(("hccl", "cpu:hccl", MIXED, "cuda:hccl,cpu:gloo", "hccl_py")):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(index)
        dist.init_process_group(config)
        group: Any = dist.group.WORLD
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [world_size] * 2
        found.append(
            [type(group).__name__, *(kind(group, one.type) for one in group._device_types)]
        )
        dist.destroy_process_group()
    return found


def test_group_of_several_backends_keeps_each() -> None:
    fast, mixed = ["ProcessGroupHccl"] * 2, ["ProcessGroup", "ProcessGroupGloo", "HcclBackend"]
    (found, _) = run_ranks(kinds, 2)
    assert [found[0], found[1], found[4]] == [fast] * 3
    assert [sorted(one) for one in found[2:4]] == [sorted(mixed)] * 2


def test_group_of_hccl_alone_is_a_backend_if_asked() -> None:
    environment = {"HCCL_NATIVE_BACKEND": "1"}
    assert run_ranks(kinds, 2, env=environment)[0][0] == ["ProcessGroup", "HcclBackend"]


def beside_another_package(rank: int, world_size: int) -> list[str]:
    """Return the classes of the backends, of which none is torch's own."""

    class Other(c10d.Backend):  # type: ignore[misc]
        def getBackendName(self) -> str:  # noqa: N802
            return "other"

    def make(options: Any, _: Any) -> Any:
        return Other(options.group_rank, options.group_size)

    dist.Backend.register_backend("other", make, extended_api=True, devices=["meta"])
    dist.init_process_group("cpu:hccl,meta:other")
    group: Any = dist.group.WORLD
    return [kind(group), kind(group, "meta")]


def test_other_packages_backend_keeps_its_device() -> None:
    assert run_ranks(beside_another_package, 1) == [["HcclBackend", "Other"]]


def in_place_of_gloo(rank: int, world_size: int) -> list[str]:
    """Return the names in torch's records, and the classes of the backends behind them."""
    torch.accelerator.is_available = lambda: True  # type: ignore[assignment]
    os.environ["HCCL_REPLACE"] = "gloo"
    replace_gloo()
    dist.init_process_group("cpu:gloo,cuda:fake")
    found = []
    for group in (dist.group.WORLD, dist.new_group(), dist.split_group(split_ranks=[[0]])):
        dist.all_reduce(torch.ones(1), group=group)
        found += [dist.get_backend(group), kind(group), kind(group, "cuda")]
    return found


def test_replace_gloo_replaces_its_part_of_a_mixed_group() -> None:
    one = ["cpu:gloo,cuda:fake", "HcclBackend", "FakeProcessGroup"]
    assert run_ranks(in_place_of_gloo, 1) == [one * 3]


def merged(rank: int, world_size: int) -> list[int]:
    """Merge the groups of two jobs of one rank each."""
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    group: Any = dist.group.WORLD
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False)
    both = group.merge_remote_group(dist.PrefixStore("both", store), 2, timedelta(seconds=30))
    ones = torch.ones(1)
    both.allreduce([ones]).wait()
    return [both.size(), int(ones)]


def test_groups_of_two_jobs_merge() -> None:
    assert run_ranks(merged, 2, env={"HCCL_NATIVE_BACKEND": "1"}) == [[2, 2]] * 2


def works(rank: int, world_size: int) -> None:
    """Torch's Work answers as hccl's behind it."""
    tensor = torch.full((3,), rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is tensor
    with allow_inflight_collective_as_graph_input_ctx():
        work = dist.all_reduce(tensor, async_op=True)
        assert c10d._get_work_registry_size() == 1
        work.wait()
        assert c10d._get_work_registry_size() == 0
    tensor /= world_size * (world_size + 1) // 2
    group: Any = dist.group.WORLD
    before = group._get_backend(CPU)._get_sequence_number_for_group()
    work = dist.all_reduce(tensor, async_op=True)
    assert work._get_sequence_number() == before + 1
    while not work.is_completed():
        pass
    assert tensor.tolist() == [2.0 * world_size] * 3
    if rank == 0:
        dist.send(tensor, 1)
    if rank == 1:
        assert dist.recv(tensor) == 0


def test_work_of_a_backend_answers() -> None:
    run_ranks(works, 2, backend=MIXED)


def groups(rank: int, world_size: int) -> None:
    def total(group: Any) -> int:
        ones = torch.ones(1)
        dist.all_reduce(ones, group=group)
        return int(ones)

    turned = dist.new_group(range(world_size)[::-1], sort_ranks=False)
    assert kind(turned) == "HcclBackend" and total(turned) == world_size
    fast = dist.new_group(backend="hccl")
    assert isinstance(fast, ProcessGroupHccl) and total(fast) == world_size
    part = dist.split_group(split_ranks=[[0], [2, 1]])
    assert kind(part) == "HcclBackend" and total(part) == (1 if rank == 0 else 2)
    part = dist.split_group(split_ranks=[[1, 0]])
    if rank < 2:
        assert (dist.get_rank(part), total(part)) == (1 - rank, 2)
    else:
        assert part == dist.GroupMember.NON_GROUP_MEMBER
    whole: Any = dist.group.WORLD
    part = whole.split_group([2, 1, 0], group_name="turned")
    assert kind(part) == "HcclBackend" and total(part) == world_size
    assert total(init_device_mesh("cpu", (world_size,)).get_group()) == world_size


def test_groups_of_a_mixed_group() -> None:
    run_ranks(groups, 3, backend=MIXED)


def monitored(rank: int, world_size: int) -> str:
    dist.monitored_barrier()
    if rank == 1:
        return ""
    with pytest.raises(dist.DistBackendError) as caught:
        dist.monitored_barrier(timeout=timedelta(seconds=0.2), wait_all_ranks=True)
    return str(caught.value)


def test_monitored_barrier_of_a_mixed_group_names_the_missing() -> None:
    said, _ = run_ranks(monitored, 2, backend=MIXED)
    assert "rank(s) 1 did not come" in said


def hooked(rank: int, world_size: int) -> list[str]:
    group: Any = dist.group.WORLD
    seen: list[str] = []
    group.register_pre_hook(1, lambda told: seen.append(f"pre {told.name.name}"))
    group.register_post_hook(2, lambda told: seen.append(f"post {told.name.name}"))
    dist.all_reduce(torch.ones(1))
    group.unregister_pre_hook(1)
    group.unregister_post_hook(2)
    dist.broadcast(torch.ones(1), 0)
    named = {} if RECORDS else {"backend": "hccl"}
    entries = pickle.loads(c10d._dump_fr_trace(**named))["entries"]
    return [*seen, *(entry["profiling_name"] for entry in entries if not entry["is_p2p"])]


def test_hooks_and_recorder_of_torch_see_calls() -> None:
    seen = ["pre ALLREDUCE", "post ALLREDUCE"]
    for found in run_ranks(hooked, 2, backend=MIXED, env={"TORCH_FR_BUFFER_SIZE": "10"}):
        assert found[:2] == seen
        assert ("c10d" if RECORDS else "hccl") + ":broadcast" in found


def named(rank: int, world_size: int) -> list[str]:
    """Return the events of two calls, of which the user has named one."""
    tensor = torch.ones(1)
    with torch.profiler.profile() as profile:
        with dist.record_comm("layer 1"):
            dist.all_reduce(tensor)
        dist.all_reduce(tensor)
    return [event.name for event in profile.events() or () if event.name[:4] in ("laye", "hccl")]


def test_record_comm_names_calls_to_the_profiler() -> None:
    assert run_ranks(named, 2, backend="hccl") == [["layer 1", "hccl:all_reduce"]] * 2
    # C++ begins another event of the name with the Work that it makes for a backend in Python.
    mixed = ["layer 1", "layer 1", "hccl:all_reduce"]
    assert run_ranks(named, 2, backend=MIXED) == [mixed] * 2


def gathered_in_detail(rank: int, world_size: int) -> list[int]:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    found = [-1] * world_size
    dist.all_gather_object(found, rank, group=dist.new_group())
    return found


def test_backend_outlives_the_wrapper_of_the_debug_level_detail() -> None:
    assert run_ranks(gathered_in_detail, 2, backend=MIXED) == [[0, 1]] * 2


def with_nan(rank: int, world_size: int) -> None:
    dist.init_process_group("hccl")
    with pytest.raises(RuntimeError, match="NaN"):
        dist.all_reduce(torch.tensor([float("nan")]))


def test_nan_check_of_torch_sees_calls() -> None:
    run_ranks(with_nan, 2, env={"TORCH_DIST_NAN_CHECK": "1"})


def gathered(rank: int, world_size: int) -> list[list[float]]:
    """Return what `gather_single` collects on each rank, of three elements and of none."""
    found = []
    for count in (3, 0):
        all_of = torch.zeros(count * world_size) if rank == 1 else None
        dist.gather_single(torch.full((count,), float(rank)), all_of, dst=1)
        found.append([] if all_of is None else all_of.tolist())
    return found


def test_gather_into_one_tensor() -> None:
    assert run_ranks(gathered, 2, backend="hccl") == [[[], []], [[0, 0, 0, 1, 1, 1], []]]


def refuses_hooks(rank: int, world_size: int) -> str:
    group: Any = dist.group.WORLD
    with pytest.raises(InvalidArgumentError) as caught:
        group.register_pre_hook(1, print)
    return str(caught.value)


def test_group_of_hccl_alone_names_the_kind_of_group_with_hooks() -> None:
    assert "HCCL_NATIVE_BACKEND=1" in run_ranks(refuses_hooks, 1, backend="hccl")[0]


def aborted(rank: int, world_size: int) -> list[str]:
    group: Any = dist.group.WORLD
    seen: list[str] = []
    group.register_abort_hook(1, lambda: seen.append("hook"))
    group.register_abort_hook(2, lambda: seen.append("forgotten"))
    group.unregister_abort_hook(2)
    if rank == 0:
        group.set_timeout(timedelta(seconds=0.2))
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(1))
    else:
        group.abort()
    return seen


def test_abort_hooks_run_once_before_an_abort_and_after_a_failure() -> None:
    assert run_ranks(aborted, 2, env={"HCCL_NATIVE_BACKEND": "1"}, backend="hccl") == [["hook"]] * 2


def trained(rank: int, world_size: int, folder: str) -> None:
    """DDP, its hooks in C++ and in Python, and a checkpoint that is saved in the background."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    for hook in (None, bf16_compress_hook, dist.BuiltinCommHookType.FP16_COMPRESS):  # type: ignore[attr-defined]
        model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
        if callable(hook):
            model.register_comm_hook(None, hook)
        elif hook is not None:
            model._register_builtin_comm_hook(hook)
        model(torch.full((1, 3), float(rank))).sum().backward()
        gradient = model.module.weight.grad
        torch.testing.assert_close(gradient, torch.full((1, 3), (world_size - 1) / 2))
    state = {"weight": torch.arange(3.0)}
    dcp.async_save(state, checkpoint_id=folder).result()
    loaded = {"weight": torch.zeros(3)}
    dcp.load(loaded, checkpoint_id=folder)
    assert loaded["weight"].tolist() == [0, 1, 2]
    part = backend_of(dist.group.WORLD)
    assert dist.get_backend_impl(dist.group.WORLD, CPU) is part
    assert isinstance(part, HcclBackend) and part.statistics()["calls"]["all_reduce"]["calls"] > 0


@pytest.mark.nightly("torch")
def test_training_and_checkpoints_in_a_mixed_group(tmp_path: Path) -> None:
    run_ranks(trained, 2, str(tmp_path), backend=MIXED)
