"""Groups: subsets, several at once and from several threads, ending and beginning again."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ended_scripts import end_as_script
from ranks import run_ranks

from hccl_py.launcher.ports import free_port


def check_identity(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    assert dist.get_backend() == "hccl"
    assert type(group).__name__ == "ProcessGroupHccl"
    assert group.name() == "hccl"
    assert group.rank() == dist.get_rank() == rank
    assert group.size() == dist.get_world_size() == world_size
    assert group.group_name
    assert group._device_types == [torch.device("cpu")]
    assert group._get_backend(torch.device("cpu")) is group
    with pytest.raises(RuntimeError, match="meta"):
        group._get_backend(torch.device("meta"))
    group.get_group_store().set("a key", "a value")
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.ones(1), 0)
    assert group._get_sequence_number_for_group() == before + 2
    assert dist.new_group(group_desc="mine").group_desc == "mine"


@pytest.mark.parametrize("backend", ["hccl", "HCCL", "hccl_py", "cpu:hccl"])
def test_group_says_what_it_is_under_every_spelling(backend: str) -> None:
    if backend == "hccl":
        run_ranks(check_identity, 2, backend=backend)
    else:
        run_ranks(check_sum, 2, backend=backend)


def check_sum(rank: int, world_size: int) -> None:
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world_size * (world_size + 1) / 2] * 3
    assert type(dist.group.WORLD).__name__ == "ProcessGroupHccl"


def check_subsets(rank: int, world_size: int) -> None:
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3], [3])]
    mine = [group for group in pairs if group is not dist.GroupMember.NON_GROUP_MEMBER]
    for _ in range(20):
        for group in mine:
            members = dist.get_process_group_ranks(group)
            tensor = torch.full((50,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert (tensor == sum(members)).all()
            # A root and a peer are named by their global rank.
            root = members[-1]
            dist.broadcast(tensor.fill_(rank), root, group=group)
            assert (tensor == root).all()
    works = []
    for group in mine * 10:
        tensor = torch.full((50_000,), float(rank))
        works.append((group, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for group, tensor, work in reversed(works):
        work.wait()
        assert (tensor == sum(dist.get_process_group_ranks(group))).all()
    dist.destroy_process_group(mine[0])
    dist.barrier()


def test_overlapping_subsets_communicate_at_once() -> None:
    run_ranks(check_subsets, 4, backend="hccl")


def check_threads(rank: int, world_size: int) -> None:
    groups = [dist.new_group() for _ in range(3)]
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for round_ in range(100):
                tensor = torch.full((round_ * 11,), float(rank + index))
                dist.all_reduce(tensor, group=groups[index])
                expected = sum(range(world_size)) + world_size * index
                assert (tensor == expected).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        dist.barrier()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not failures, failures


def test_groups_in_several_threads_do_not_disturb_each_other() -> None:
    run_ranks(check_threads, 2, backend="hccl")


def check_lives(rank: int, world_size: int) -> None:
    store = dist.TCPStore(
        "127.0.0.1", int(os.environ["MASTER_PORT"]), world_size, is_master=rank == 0
    )
    for life in range(3):
        # The same store each time, as under torchrun.
        dist.init_process_group("hccl", store=store, rank=rank, world_size=world_size)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [world_size] * 2, life
        half = dist.new_group([0, 1])
        dist.barrier(group=half)
        old = dist.group.WORLD
        dist.destroy_process_group()
        with pytest.raises(dist.DistBackendError):
            old.allreduce([tensor]).wait()
    store.set(f"done {rank}", "")
    if rank == 0:
        store.wait([f"done {r}" for r in range(world_size)], timedelta(seconds=20))


def test_destroyed_world_can_be_made_again_on_the_same_store() -> None:
    run_ranks(check_lives, 2)


def check_abort(rank: int, world_size: int) -> None:
    group = dist.new_group()
    if rank == 0:
        work = group.allreduce([torch.ones(3)])
        threading.Timer(0.2, group.abort).start()
        with pytest.raises(dist.DistBackendError, match="abort"):
            work.wait()
    else:
        with pytest.raises(dist.DistBackendError, match="abort"):
            dist.recv(torch.ones(1), 0, group=group)
    dist.barrier()


def test_abort_ends_what_is_in_flight_on_every_rank() -> None:
    run_ranks(check_abort, 2, backend="hccl")


def check_monitored_barrier(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=10))
    if rank != 2:
        with pytest.raises(dist.DistBackendError, match=r"Timed out.*rank\(s\) 2 did not come"):
            group.monitored_barrier(timedelta(seconds=1), wait_all_ranks=True)
    dist.barrier()


def test_monitored_barrier_names_who_is_missing() -> None:
    run_ranks(check_monitored_barrier, 3, backend="hccl")


def check_peer_dies(rank: int, world_size: int) -> str:
    if rank == 1:
        os._exit(3)
    with pytest.raises(dist.DistBackendError, match="rank 1") as caught:
        for _ in range(1000):
            dist.all_reduce(torch.ones(3))
    Path(os.environ["SAID"]).write_text(str(caught.value))
    dist.destroy_process_group()
    return str(caught.value)


def test_dead_peer_is_named(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with pytest.raises(AssertionError, match="rank 1: ended without a word"):
        run_ranks(check_peer_dies, 2, backend="hccl", env={"SAID": str(said)})
    assert "rank 1" in said.read_text()


SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("hccl")
work = dist.all_reduce(torch.ones(70_000), async_op=True)
work.get_future().then(lambda done: None)
print("done", dist.get_rank(), flush=True)
"""


def test_script_ends_in_good_order() -> None:
    with_port = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, **with_port, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    deadline = time.monotonic() + 60
    try:
        outputs = [process.communicate(timeout=deadline - time.monotonic()) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0, 0], outputs
    assert [output for output, _ in outputs] == ["done 0\n", "done 1\n"]


def forked_script_ends(rank: int, world_size: int, end: str) -> int:
    """Return the exit code of a process that was forked to be the script, with torch in it."""
    faulthandler.cancel_dump_traceback_later()  # the fork would wait for its thread at its end
    script = os.fork()
    if script == 0:
        signal.alarm(60)
        exec(SCRIPT, {})
        if end == "destroy_process_group":
            dist.destroy_process_group()
        end_as_script(SystemExit(0) if end == "sys.exit(0)" else None)
    return os.waitpid(script, 0)[1]


@pytest.mark.parametrize("end", ["destroy_process_group", "sys.exit(0)"])
def test_script_that_says_how_it_ends_does_so_in_good_order(end: str) -> None:
    assert run_ranks(forked_script_ends, 2, end) == [0, 0]
