"""This process as a rank of a launcher's job: all ranks do the same and exchange the results.

`ranks.Ranks` is the other way: one command that starts ranks on this machine and asks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from hccl_py.bench.collective.contender import Endpoint

if TYPE_CHECKING:
    from hccl_py.bench.collective.rank import Rank
    from hccl_py.communicator import Communicator

_CONNECT_S = 60.0
_NAME_BYTES = 64


def is_rank() -> bool:
    """Say whether a launcher started this process as a rank of a job."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def rank_of_job() -> Iterator[tuple[Rank, Communicator]]:
    """Join the job's ranks, which all do this; leaving it closes the communicator."""
    # They bring torch, which the command does without where it only starts ranks.
    from hccl_py.bench.collective.communicator_contender import CommunicatorContender
    from hccl_py.bench.collective.rank import Rank

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    endpoint = Endpoint(rank, world_size, address, port, timeout_s=_CONNECT_S)
    with closing(CommunicatorContender(endpoint)) as contender:
        yield Rank(rank, [contender]), contender.communicator


class JobRanks:
    """Asks all ranks of the job at once, because each of them asks the same."""

    def __init__(self, rank: Rank, communicator: Communicator) -> None:
        """Speak for `rank`; answers go through `communicator`."""
        self._rank, self._communicator = rank, communicator

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of each rank."""
        nodes = enumerate(self._communicator.nodes)
        node_of = {rank: index for index, node in nodes for rank in node}
        return tuple(node_of[rank] for rank in range(len(node_of)))

    def ask(self, method: str, *arguments: Any, what: str) -> Sequence[Any]:
        """Do something on all ranks.

        Args:
            method: of `rank.Rank`; it returns numbers, or None.
            arguments: of it, the same on all ranks.
            what: it is for, unused here: an error of the communicator names the call.

        Returns:
            By rank, an array of float64; nothing where the method returns None.
        """
        mine = getattr(self._rank, method)(*arguments)
        return () if mine is None else self._gathered(np.atleast_1d(np.float64(mine)))

    def names(self) -> list[str]:
        """Return the name of each rank's host."""
        mine = np.zeros(_NAME_BYTES, np.uint8)
        name = os.uname().nodename.encode()[:_NAME_BYTES]
        mine[: len(name)] = bytearray(name)
        found = self._gathered(mine)
        return [bytes(one).rstrip(b"\0").decode(errors="replace") for one in found]

    def _gathered(self, mine: np.ndarray[Any, Any]) -> Sequence[np.ndarray[Any, Any]]:
        every = np.empty((self._communicator.world_size, len(mine)), mine.dtype)
        self._communicator.all_gather(every, mine)
        return list(every)
