"""Runs on each of two virtual machines: two ranks here, two there, collectives over RDMA.

    NUMBER=1 python guest_ranks.py

Everything is checked against numpy. It imports no torch, which an emulated processor loads for a
minute.
"""

import contextlib
import gc
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from guest_store import FileStore

sys.path.append(str(Path(__file__).parents[1] / "harness"))

from oracle import KINDS, ROOTED, Collective  # noqa: E402

import hccl_py
from hccl_py import Communicator

RANKS_HERE = 2
WORLD_SIZE = 4
# None, few, uneven parts, more than a slot.
COUNTS = (0, 1, 7, 1001, 70_001)
SHARED = Path(os.environ["SHARED"])
LOSSES = ("duplicate_request", "out_of_seq_request", "rcvd_seq_err", "retry_exceeded_err")
NOT_READY = ("rcvd_rnr_err", "send_rnr_err")
COUNTED = ("rdma_sends", "rdma_recvs", "sent_pkts", "rcvd_pkts")
NUM_MESSAGES = 400
REGISTERED_COUNT = 73_728  # no message below the least that is not copied
OTHER_COUNT = 1_000_003  # 4 MB, with ends that fill no page
FEW_COPIES = {"reduce_scatter": 3}
"""Collectives on registered arrays that send partial sums out of scratch, which is copied."""
COUNTERS = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")


def check_collectives(comm: Communicator) -> None:
    """Compare every collective with numpy, on integers and on floats that hold them."""
    for dtype in ("int64", "float32"):
        for count in COUNTS:
            _check_all(comm, count, dtype)
    _check_transfers(comm)


def _part(rank: int, count: int, dtype: str) -> np.ndarray:
    return ((np.arange(count) * (rank + 3) + rank) % 1000).astype(dtype)


def _check_all(comm: Communicator, count: int, dtype: str) -> None:
    for kind in KINDS:
        if kind != "exchange":
            _check(comm, kind, count, dtype)


def _check(comm: Communicator, kind: str, count: int, dtype: str) -> None:
    me, n = comm.rank, comm.world_size
    what = Collective(kind, dtype, count, n, root=n - 1)
    given, expected = what.given(me), what.expected(me)
    data = np.concatenate(given) if given else None
    root = (what.root,) if kind in ROOTED else ()
    if kind in ("all_reduce", "reduce", "broadcast"):
        getattr(comm, kind)(data, *root)
        what.check(me, [data] if expected else [])
        return
    output = np.zeros(len(expected) * count, dtype) if expected else None
    getattr(comm, kind)(output, data, *root)
    what.check(me, np.split(output, len(expected)) if expected else [])


def _check_transfers(comm: Communicator) -> None:
    n, me = comm.world_size, comm.rank
    received = np.zeros(100_003)
    work = comm.nonblocking.send(np.full(received.size, float(me)), (me + 1) % n)
    comm.recv(received, (me - 1) % n)
    work.wait()
    assert (received == (me - 1) % n).all()
    comm.barrier()


def counters() -> dict[str, int]:
    """Read what the device counted so far."""
    return {file.name: int(file.read_text()) for file in sorted(COUNTERS.iterdir())}


def check_losses(before: dict[str, int], after: dict[str, int]) -> None:
    """Fail if a packet was lost or sent twice."""
    lost = {name: after[name] - before[name] for name in LOSSES if after[name] != before[name]}
    assert not lost, lost


def check_counters(comm: Communicator) -> None:
    """Print what lanes and device counted: nothing went over TCP, no packet was sent twice."""
    devices = comm.statistics()["devices"]
    assert devices["verbs"]["messages"] > 0 < devices["shm"]["messages"], devices
    assert devices["tcp"]["messages"] == 0, devices
    if comm.rank == 0:
        print("lanes:", devices["verbs"])
    if comm.rank % RANKS_HERE == 0:
        print("device:", after := counters())
        check_losses(dict.fromkeys(after, 0), after)
        assert not any(after[name] for name in NOT_READY), after


def count_packets(comm: Communicator) -> None:
    """Print what one message costs: rank 0 sends many to a rank of the other machine."""
    for num_bytes in (64, 100_000):
        data = np.zeros(num_bytes, np.uint8)
        comm.barrier()
        before = counters()
        for _ in range(NUM_MESSAGES):
            if comm.rank == 0:
                comm.send(data, RANKS_HERE)
            elif comm.rank == RANKS_HERE:
                comm.recv(data, 0)
        after = counters()
        grew = {name: after[name] - before[name] for name in COUNTED}
        if comm.rank == 0:
            print(f"{NUM_MESSAGES} messages of {num_bytes} bytes: {grew}")


def check_registered(comm: Communicator) -> None:
    """Compare collectives on registered arrays with numpy, and count what was copied for them."""
    n, me, count = comm.world_size, comm.rank, REGISTERED_COUNT
    parts = [_part(rank, n * count, "float32").reshape(n, count) for rank in range(n)]
    mine = _registered(parts[me])
    gathered, exchanged = hccl_py.empty((n, count), "float32"), hccl_py.empty((n, count), "float32")
    block, moved = hccl_py.empty(count, "float32"), _registered(parts[me])
    received, sent = hccl_py.empty(2 * count, "float32"), _registered(parts[me][:2].ravel())

    too_many: list[str] = []

    def check(name: str, call: Callable[[], object], result: np.ndarray, expected: object) -> None:
        comm.barrier()
        before = comm.statistics()
        call()
        after = comm.statistics()
        np.testing.assert_array_equal(result, expected)
        messages = after["devices"]["verbs"]["messages"] - before["devices"]["verbs"]["messages"]
        copies, reads = (after[key] - before[key] for key in ("slot_copies", "remote_reads"))
        print(f"{name} on rank {me}: {messages} sent, {copies} copied, {reads} read")
        if copies > FEW_COPIES.get(name, 0):
            too_many.append(name)

    def exchange() -> None:
        work = comm.nonblocking.send(sent, (me + 2) % n)
        comm.recv(received, (me - 2) % n)
        work.wait()

    firsts = [one[0] for one in parts]
    check("all_gather", lambda: comm.all_gather(gathered, mine[0]), gathered, firsts)
    mixed = [one[me] for one in parts]
    check("all_to_all", lambda: comm.all_to_all(exchanged, mine), exchanged, mixed)
    check("broadcast", lambda: comm.broadcast(moved, 1), moved, parts[1])
    total = np.sum(parts, 0, dtype="float32")
    check("reduce_scatter", lambda: comm.reduce_scatter(block, mine), block, total[me])
    sum_ = _registered(parts[me])
    check("all_reduce", lambda: comm.all_reduce(sum_), sum_, total)
    check("send", exchange, received, parts[(me - 2) % n][:2].ravel())
    assert not too_many, too_many


def _registered(values: np.ndarray) -> np.ndarray:
    array = hccl_py.empty(values.shape, values.dtype)
    array[:] = values
    return array


def check_release(comm: Communicator) -> None:
    """Memory that goes back to the system is not the device's any more, and is used anew."""
    gc.collect()
    before_kb = _locked_kb()
    for turn in range(20):
        data = _registered(np.full(REGISTERED_COUNT, comm.rank + turn, "float32"))
        comm.all_reduce(data)
        assert (data == sum(range(comm.world_size)) + turn * comm.world_size).all()
        del data
    print(f"locked: {before_kb} kB before, {_locked_kb()} kB after")
    assert _locked_kb() == before_kb


def check_other_memory(comm: Communicator) -> None:
    """Ordinary memory that comes again is registered too, and no more once it is unmapped."""
    n, me = comm.world_size, comm.rank
    before_kb = _locked_kb()
    for turn in range(4):
        # Each turn has other memory at the address of the one before.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, (n + 1) * OTHER_COUNT * 4, flags=private)
        arrays = np.frombuffer(memory, "float32").reshape(n + 1, OTHER_COUNT)
        gathered, block = arrays[:n], arrays[n]
        block[:] = me + turn
        for use in range(3):
            gathered[:] = 0
            before = comm.statistics()
            comm.all_gather(gathered, block)
            after = comm.statistics()
            assert (gathered == np.arange(n).reshape(n, 1) + turn).all(), (turn, use)
            copies, reads = (after[key] - before[key] for key in ("slot_copies", "remote_reads"))
            print(f"all_gather {use} of turn {turn} on rank {me}: {copies} copied, {reads} read")
        assert reads > 0, "the last use of each turn was not registered"
        locked_kb = _locked_kb()
        assert locked_kb > before_kb
        del arrays, gathered, block
        memory.close()
    comm.all_reduce(np.ones(1_000_000))
    print(f"locked: {before_kb} kB, {locked_kb} kB with arrays, {_locked_kb()} kB without")
    assert _locked_kb() == before_kb


def _locked_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmPin"))


def check_several_pairs(rank: int) -> None:
    """Compute over three queue pairs for each lane."""
    os.environ["HCCL_IB_QPS_PER_CONNECTION"] = "3"
    folder = SHARED.parent / "three"
    folder.mkdir(exist_ok=True)
    with Communicator(FileStore(folder), rank, WORLD_SIZE, timeout_s=200) as comm:
        for count in (7, 70_001):
            _check_all(comm, count, "float32")
        check_registered(comm)
        assert comm.statistics()["devices"]["tcp"]["messages"] == 0
        if rank % RANKS_HERE == 0:
            check_losses(dict.fromkeys(LOSSES, 0), counters())


def check_alone(rank: int) -> None:
    """Ranks of one node leave the device alone."""
    folder = SHARED / "alone"
    folder.mkdir(exist_ok=True)
    with Communicator(FileStore(folder), rank % RANKS_HERE, RANKS_HERE, timeout_s=200):
        files = _open_files()
        assert not [file for file in files if "infiniband" in file], files


def _open_files() -> list[str]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return found


def run_rank(rank: int) -> None:
    """Be one rank."""
    check_alone(rank)
    with Communicator(FileStore(SHARED.parent), rank, WORLD_SIZE, timeout_s=200) as comm:
        assert comm.nodes == ((0, 1), (2, 3))
        print("locked by lanes:", _locked_kb(), "kB")
        check_collectives(comm)
        check_registered(comm)
        check_release(comm)
        check_other_memory(comm)
        check_counters(comm)
        count_packets(comm)
    check_several_pairs(rank)
    print(f"rank {rank}: collectives done", flush=True)


def main() -> int:
    """Run the ranks of this machine; return the exit code."""
    # HCCL_TRANSPORT is not set: auto chooses RDMA.
    os.environ.update(HCCL_SECRET="of two virtual machines", HCCL_SOCKET_IFNAME="eth0")
    first = RANKS_HERE * (int(os.environ["NUMBER"]) - 1)
    child = os.fork()
    if child == 0:
        run_rank(first + 1)
        return 0
    run_rank(first)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
