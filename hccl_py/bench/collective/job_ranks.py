"""This process as a rank of a launcher's job: all ranks run the same and exchange the results.

`ranks.Ranks` is the other way: one command that starts ranks on this machine and asks them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from hccl_py.bench.collective.contender import Endpoint
from hccl_py.bench.collective.contenders import Api
from hccl_py.bench.collective.over_communicator import CommunicatorContender
from hccl_py.bench.collective.rank import Rank

_CONNECT_S = 60.0
_NAME_BYTES = 64


def is_rank() -> bool:
    """Return whether a launcher started this process as a rank of a job."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def rank_of_job() -> Iterator[Rank]:
    """Connect with the job's ranks, which all call this; closes the communicator at the end."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    endpoint = Endpoint(rank, world_size, address, port, timeout_s=_CONNECT_S)
    with closing(Api("communicator")(endpoint)) as contender:
        yield Rank(rank, [contender])


class JobRanks:
    """All ranks of the job, as seen by one: each makes the same requests.

    Attributes:
        communicator: of the rank's only contender; results are gathered over it.
    """

    def __init__(self, rank: Rank) -> None:
        """Take the communicator of `rank`."""
        self._rank, (contender,) = rank, rank.contenders
        assert isinstance(contender, CommunicatorContender)
        self.communicator = contender.communicator

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of each rank."""
        nodes = enumerate(self.communicator.nodes)
        node_of = {rank: index for index, node in nodes for rank in node}
        return tuple(node_of[rank] for rank in range(len(node_of)))

    def ask(self, function: Callable[..., Any], *arguments: Any, what: str) -> Sequence[Any]:
        """Run a function on all ranks.

        Args:
            function: called with this rank; it returns numbers, or None.
            arguments: of it, the same on all ranks.
            what: unused here: an error of the communicator names the call.

        Returns:
            An array of float64 for each rank; nothing where the function returns None.
        """
        mine = function(self._rank, *arguments)
        return () if mine is None else self._gathered(np.atleast_1d(np.float64(mine)))

    def names(self) -> list[str]:
        """Return the name of each rank's host."""
        mine = np.zeros(_NAME_BYTES, np.uint8)
        name = os.uname().nodename.encode()[:_NAME_BYTES]
        mine[: len(name)] = bytearray(name)
        found = self._gathered(mine)
        return [bytes(one).rstrip(b"\0").decode(errors="replace") for one in found]

    def _gathered(self, mine: np.ndarray[Any, Any]) -> Sequence[np.ndarray[Any, Any]]:
        every = np.empty((self.communicator.world_size, len(mine)), mine.dtype)
        self.communicator.all_gather(every, mine)
        return list(every)
