"""Ctrl-C in one rank ends the call under way at once, everywhere."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from quiet_clock import HANG_S, Moment
from rank_processes import is_asleep, on_nodes
from ranks import run_ranks
from thread_ranks import wait_until
from torch.distributed import _functional_collectives as functional_collectives
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from hccl_py import AbortedError, Communicator, capture, get_unique_id, group
from hccl_py.membership.reconfigure import Member
from hccl_py.schedulers.ports import free_port
from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.deadline import Deadline


def one_is_interrupted(rank: int, world_size: int) -> tuple[float, str, int | None]:
    comm = Communicator()
    began = 0.0
    if rank == 0:
        comm.barrier()
        slept = comm.statistics()["sleeps"]

        def interrupt() -> None:
            wait_until(
                lambda: comm.statistics()["sleeps"] > slept and is_asleep(os.getpid()),
                "rank 0 is blocked in the call",
            )
            nonlocal began
            began = Moment.now()
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            comm.all_reduce(np.ones(10))
        except KeyboardInterrupt:
            took = Moment.now() - began
            with pytest.raises(AbortedError, match="signal") as caught:
                comm.barrier()
            return took, str(caught.value), caught.value.rank
        raise AssertionError("not interrupted")
    with pytest.raises(AbortedError) as caught:
        comm.barrier()  # a slow rank is still here
        comm.recv(np.zeros(1), 3 - rank)  # another call altogether
    return 0.0, str(caught.value), caught.value.rank


@pytest.mark.parametrize("nodes", [1, 3])
def test_interrupt_ends_the_call_at_once_everywhere(nodes: int) -> None:
    results = run_ranks(one_is_interrupted, 3, env=on_nodes(nodes, 3))
    assert results[0][0] < 0.5
    for _, message, culprit in results:
        assert culprit == 0
        assert "aborted by rank 0 (host" in message
        assert "a signal interrupted the call half-way" in message


class Told(TimeoutError, RuntimeError):
    """Out of a handler of a signal; of kinds that waits raise and expect themselves."""


Wait = Callable[[], object]


def tell(number: int, frame: object) -> None:
    raise Told("timeout")


def interrupted(wait: Wait, number: int) -> None:
    """Have a handler raise while this thread waits: it comes out as itself, soon."""
    raised = KeyboardInterrupt if number == signal.SIGINT else Told
    came: list[Moment] = []

    def interrupt() -> None:
        time.sleep(0.3)  # what the wait does first need not last as long
        wait_until(lambda: is_asleep(os.getpid()), "the main thread waits")
        came.append(Moment.now())
        os.kill(os.getpid(), number)

    if raised is Told:
        signal.signal(number, tell)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(raised) as caught:
        wait()
    assert type(caught.value) is raised
    assert Moment.now() - came[0] < 1.0
    thread.join()


def init(method: str | None = None, **settings: str) -> None:
    os.environ.update(settings)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("hccl", init_method=method, rank=rank, world_size=size)


def init_at_own_store() -> Wait:
    return lambda: init(TORCHELASTIC_USE_AGENT_STORE="False", MASTER_PORT=str(free_port()))


def init_at_no_store() -> Wait:
    os.environ["RANK"] = "1"
    return init_at_own_store()


def init_at_file() -> Wait:
    return lambda: init(f"file://{tempfile.mkdtemp()}/store")


def comm() -> Communicator:
    return Communicator(name="job")


def unique_id() -> Wait:
    made = get_unique_id()
    return lambda: Communicator(made, 0, 2)


def own_store() -> Wait:
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="False", MASTER_PORT=str(free_port()))
    return comm


def no_store() -> Wait:
    os.environ["RANK"] = "1"
    return own_store()


def native(call: Callable[[Communicator], object]) -> Callable[[], Wait]:
    def prepare() -> Wait:
        job = comm()
        job.barrier()
        return lambda: call(job)

    return prepare


def replay() -> Wait:
    job, data = comm(), np.ones(1000)
    with capture() as graph:
        job.all_reduce(data)
    graph.replay()
    return graph.replay


def replay_async() -> Wait:
    job, data = comm(), np.ones(1000)
    with capture() as graph:
        job.all_reduce(data)
    graph.replay()
    return lambda: graph.replay(async_op=True).wait()


def grouped(job: Communicator) -> None:
    with group():
        job.all_reduce(np.ones(3))
        job.broadcast(np.ones(3), 1)


def leave(job: Communicator) -> None:
    job.nonblocking.all_reduce(np.ones(3))
    job.close()


def torchs(call: Callable[[torch.Tensor], object]) -> Callable[[], Wait]:
    def prepare() -> Wait:
        init()
        dist.barrier()
        return lambda: call(torch.ones(8))

    return prepare


def any_of(works: Any) -> None:
    for work in works:
        work.wait()


def coalesced(data: torch.Tensor) -> None:
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(data)
        dist.all_reduce(torch.ones(3))


def coalesced_async(data: torch.Tensor) -> None:
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(data)
        dist.all_reduce(torch.ones(3))
    manager.wait()


def destroy(data: torch.Tensor) -> None:
    dist.all_reduce(data, async_op=True)
    dist.destroy_process_group()


def destroy_with_future(data: torch.Tensor) -> None:
    work: Any = dist.all_reduce(data, async_op=True)
    work.get_future().then(lambda done: done.value())
    dist.destroy_process_group()


def future(data: torch.Tensor) -> Any:
    work: Any = dist.all_reduce(data, async_op=True)
    return work.get_future()


def functional(data: torch.Tensor) -> None:
    out = functional_collectives.all_reduce(data, "sum", dist.group.WORLD)
    functional_collectives.wait_tensor(out)


def functional_used(data: torch.Tensor) -> None:
    out = functional_collectives.all_gather_tensor(data, 0, dist.group.WORLD)
    (out + 1).sum().item()


def full_tensor(data: torch.Tensor) -> None:
    mesh = dist.init_device_mesh("cpu", (2,))
    DTensor.from_local(data, mesh, [Shard(0)]).full_tensor()


def at_store(data: torch.Tensor) -> None:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    SealedStore(store, None).wait(["a"], 0, 1, Deadline(HANG_S), "", list)


def reconfigure() -> Wait:
    mine, other = Member(), Member()
    epoch = mine.epoch(1, [mine.handle, other.handle])
    return lambda: epoch.connect(HANG_S, partial(Communicator, timeout_s=HANG_S))


def model() -> torch.nn.Module:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8))
    layers.register_buffer("statistics", torch.ones(1_000_000))  # too many to be sent ahead
    return layers


def ddp(step: Callable[[Any], Wait], **options: Any) -> Callable[[], Wait]:
    def prepare() -> Wait:
        init()
        wrapped = DistributedDataParallel(model(), **options)
        return step(wrapped)

    return prepare


def backward(wrapped: Any) -> Wait:
    inputs = torch.ones(2, 8)
    for _ in range(2):
        wrapped(inputs).sum().backward()
    loss = wrapped(inputs).sum()
    dist.barrier()
    return lambda: (loss.backward(), wrapped)


def forward(wrapped: Any) -> Wait:
    inputs = torch.ones(2, 8)
    for _ in range(2):
        wrapped(inputs).sum().backward()
    dist.barrier()
    return lambda: wrapped(inputs)


def hooked(hook: Any) -> Callable[[Any], Wait]:
    def step(wrapped: Any) -> Wait:
        wrapped.register_comm_hook(None, hook)
        return backward(wrapped)

    return step


def own_hook(bucket: Any) -> Any:
    return future(bucket.buffer()).then(lambda done: done.value()[0])


def late_hook(bucket: Any) -> Any:
    tensor = bucket.buffer()
    dist.all_reduce(tensor)
    done: Any = torch.futures.Future()
    done.set_result(tensor)
    return done


def powersgd(wrapped: Any) -> Wait:
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return backward(wrapped)


def fsdp(step: Callable[[Any], Wait]) -> Callable[[], Wait]:
    def prepare() -> Wait:
        init()
        whole = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        for part in whole:
            fully_shard(part, mesh=dist.init_device_mesh("cpu", (2,)))
        return step(fully_shard(whole, mesh=dist.init_device_mesh("cpu", (2,))))

    return prepare


def fsdp1(step: Callable[[Any], Wait]) -> Callable[[], Wait]:
    def prepare() -> Wait:
        init()
        whole = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        return step(FullyShardedDataParallel(whole, device_id=torch.device("cpu")))

    return prepare


WAITS: dict[str, Callable[[], Wait]] = {
    "ddp backward": ddp(backward),
    "fsdp backward": fsdp(backward),
    "init": lambda: init,
    "init at own store": init_at_own_store,
    "destroy": torchs(destroy),
    "init at no store": init_at_no_store,
    "init at file": init_at_file,
    "init at tcp": lambda: (
        lambda: init(f"tcp://127.0.0.1:{free_port()}", TORCHELASTIC_USE_AGENT_STORE="False")
    ),
    "new_group": torchs(lambda data: dist.new_group([0, 1])),
    "new_group local": torchs(lambda data: dist.new_group([0, 1], use_local_synchronization=True)),
    "split_group": torchs(lambda data: dist.split_group(None, [[0, 1]])),
    "shrink_group": torchs(lambda data: dist.shrink_group([2])),  # type: ignore[attr-defined]
    "full_tensor": torchs(full_tensor),
    "all_reduce": torchs(dist.all_reduce),
    "work.wait": torchs(lambda data: dist.all_reduce(data, async_op=True).wait()),
    "future": torchs(lambda data: future(data).wait()),
    "future, then": torchs(lambda data: future(data).then(lambda done: done.value()).wait()),
    "futures": torchs(lambda data: torch.futures.wait_all([future(data)])),
    "collected futures": torchs(lambda data: torch.futures.collect_all([future(data)]).wait()),
    "barrier": torchs(lambda data: dist.barrier()),
    "monitored_barrier": torchs(lambda data: dist.monitored_barrier()),
    "recv": torchs(lambda data: dist.recv(data, 1)),
    "recv of any": torchs(lambda data: dist.recv(data)),
    "large send": torchs(lambda data: dist.send(torch.ones(10_000_000), 1)),
    "batch_isend_irecv": torchs(
        lambda data: any_of(dist.batch_isend_irecv([dist.P2POp(dist.irecv, data, 1)]))
    ),
    "coalesced": torchs(coalesced),
    "coalesced, async": torchs(coalesced_async),
    "objects": torchs(lambda data: dist.all_gather_object([None, None], "one")),
    "object list": torchs(lambda data: dist.broadcast_object_list(["one"], src=1)),
    "recv_object_list": torchs(lambda data: dist.recv_object_list([None], src=1)),
    "destroy with future": torchs(destroy_with_future),
    "functional": torchs(functional),
    "functional, used": torchs(functional_used),
    "at store": torchs(at_store),
    "ddp": torchs(lambda data: DistributedDataParallel(model())),
    "ddp forward": ddp(forward),
    "ddp static": ddp(backward, static_graph=True),
    "ddp unused": ddp(backward, find_unused_parameters=True),
    "ddp fp16": ddp(hooked(default_hooks.fp16_compress_hook)),
    "ddp own hook": ddp(hooked(lambda state, bucket: own_hook(bucket))),
    "ddp late hook": ddp(hooked(lambda state, bucket: late_hook(bucket))),
    "ddp powersgd": ddp(powersgd),
    "fsdp forward": fsdp(forward),
    "fsdp1 forward": fsdp1(forward),
    "fsdp1 backward": fsdp1(backward),
    "communicator": lambda: comm,
    "communicator, unique id": unique_id,
    "communicator, own store": own_store,
    "communicator, no store": no_store,
    "subset": native(lambda job: job.subset([0, 1], "part")),
    "shrink": native(lambda job: job.shrink(timeout_s=HANG_S)),
    "grow": native(lambda job: job.grow(get_unique_id())),
    "reconfigure": reconfigure,
    "native all_reduce": native(lambda job: job.all_reduce(np.ones(3))),
    "native work.wait": native(lambda job: job.nonblocking.all_reduce(np.ones(3)).wait()),
    "native recv": native(lambda job: job.recv(np.ones(3), 1)),
    "native group": native(grouped),
    "native close": native(leave),
    "replay": replay,
    "replay, async": replay_async,
}
"""What both ranks do first; it returns what rank 0 then does, while rank 1 does not come."""
FIRST = 4
"""So many stand in the default tier."""


def one_waits(rank: int, world_size: int, name: str, number: int) -> None:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    wait = WAITS[name]()
    if rank > 0:
        store.get("interrupted")
        return
    try:
        interrupted(wait, number)
    finally:
        store.set("interrupted", "")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(
            name, number, marks=[pytest.mark.nightly("faults")] if i >= FIRST or i % 2 != j else []
        )
        for i, name in enumerate(WAITS)
        for j, number in enumerate((signal.SIGALRM, signal.SIGINT))
    ],
)
def test_what_a_handler_raises_comes_out_of_a_wait_as_itself(name: str, number: int) -> None:
    if name == "shrink_group" and not hasattr(dist, name):
        pytest.skip("this torch has none")
    run_ranks(one_waits, 3 if name == "shrink_group" else 2, name, number, timeout_s=60)
