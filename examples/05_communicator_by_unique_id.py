"""Ranks that share only a unique id, as with NCCL and HCCL; no torch.

python examples/05_communicator_by_unique_id.py --ranks 4
"""

import argparse
import multiprocessing

import numpy as np

import hccl_py
from hccl_py import Communicator, UniqueId


def run_rank(unique_id: UniqueId, rank: int, world_size: int) -> None:
    """Exchange numbers with all other ranks."""
    with Communicator(unique_id, rank, world_size) as comm:
        # Out of place, then in place and in the background.
        data = np.full(1_000_000, rank + 1.0, np.float32)
        total = np.empty_like(data)
        comm.all_reduce(data, output=total)
        work = comm.nonblocking.broadcast(data, root=0)
        assert (total == sum(range(1, world_size + 1))).all()
        work.wait()
        assert (data == 1.0).all()

        # Send to and receive from every rank, in any order: all calls start when the group ends.
        outgoing = [bytes([rank, peer]) for peer in range(world_size)]
        incoming = [bytearray(2) for _ in range(world_size)]
        with hccl_py.group():
            for peer in range(world_size):
                comm.send(outgoing[peer], peer)
                comm.recv(incoming[peer], peer)
        assert [list(pair) for pair in incoming] == [[peer, rank] for peer in range(world_size)]

        # One communicator of the even ranks and one of the odd ones, in descending order.
        half = comm.split(color=rank % 2, key=-rank)
        assert half is not None
        with half:
            first = np.array([rank])
            half.broadcast(first, root=0)
            position = f"rank {half.rank} of {half.world_size}, where rank 0 was {first[0]}"
            # One write for the whole line: the ranks share the terminal.
            print(f"rank {rank} of {world_size} is {position}\n", end="", flush=True)


def main() -> None:
    """Start the ranks and give each of them the id."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    world_size = parser.parse_args().ranks
    unique_id = hccl_py.get_unique_id()  # this process serves the ranks until they are connected
    start = multiprocessing.get_context("spawn")
    ranks = [
        start.Process(target=run_rank, args=(unique_id, rank, world_size))
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
