"""Ranks that share nothing but a unique id, as NCCL's and HCCL's users start them; no torch.

python examples/05_communicator_by_unique_id.py --ranks 4
"""

import argparse
import multiprocessing

import numpy as np

import hccl_py
from hccl_py import Communicator, UniqueId


def be_a_rank(unique_id: UniqueId, rank: int, world_size: int) -> None:
    """Exchange numbers with all other ranks."""
    with Communicator(unique_id, rank, world_size) as comm:
        # In place, out of place, and in the background.
        data = np.full(1_000_000, rank + 1.0, np.float32)
        total = np.empty_like(data)
        comm.all_reduce(data, output=total)
        work = comm.nonblocking.broadcast(data, root=0)
        assert (total == sum(range(1, world_size + 1))).all()
        work.wait()
        assert (data == 1.0).all()

        # Send to and receive from everybody: in any order, because it all begins at the end.
        outgoing = [bytes([rank, peer]) for peer in range(world_size)]
        incoming = [bytearray(2) for _ in range(world_size)]
        with hccl_py.group():
            for peer in range(world_size):
                comm.send(outgoing[peer], peer)
                comm.recv(incoming[peer], peer)
        assert [list(pair) for pair in incoming] == [[peer, rank] for peer in range(world_size)]

        # The even ranks and the odd ones, each among themselves; the last rank leads.
        half = comm.split(color=rank % 2, key=-rank)
        assert half is not None
        with half:
            first = np.array([rank])
            half.broadcast(first, root=0)
            place = f"rank {half.rank} of {half.world_size}, led by {first[0]}"
            # In one piece: the ranks share the terminal.
            print(f"rank {rank} of {world_size} is {place}\n", end="", flush=True)


def main() -> None:
    """Start the ranks, and hand each of them the id."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    world_size = parser.parse_args().ranks
    unique_id = hccl_py.get_unique_id()  # this process serves the ranks until they are connected
    start = multiprocessing.get_context("spawn")
    ranks = [
        start.Process(target=be_a_rank, args=(unique_id, rank, world_size))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit("a rank failed")


if __name__ == "__main__":
    main()
