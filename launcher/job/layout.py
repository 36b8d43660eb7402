"""Which rank runs where: from what the agents bring to the environment of each rank."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Slot(NamedTuple):
    """Room for a rank: its node in the job, and its number on that node."""

    node: int
    local_rank: int


class Hello(NamedTuple):
    """What an agent says when it comes.

    Attributes:
        host, pid: of the agent, for messages.
        slots: for its ranks, in their order.
        address: how the other hosts reach this one.
        port: a free port there, for rank 0's store.
    """

    host: str
    pid: int
    slots: tuple[Slot, ...]
    address: str
    port: int


class Attempt(NamedTuple):
    """One start of all ranks, as the coordinator tells it to an agent.

    Attributes:
        number: 0, and one more after every restart.
        first_rank: of the agent's ranks, which follow one another.
        slots: of the agent's ranks.
        world_size: ranks of the job.
        node_sizes: ranks on each node.
        master_addr, master_port: where rank 0 serves the store.
        job_id: the same on all nodes.
        max_restarts: of the job.
        sample_s: seconds between two looks at the progress of a rank; 0: there are none.
    """

    number: int
    first_rank: int
    slots: tuple[Slot, ...]
    world_size: int
    node_sizes: tuple[int, ...]
    master_addr: str
    master_port: int
    job_id: str
    max_restarts: int
    sample_s: float = 0.0


def node_sizes(slots: Sequence[Slot]) -> tuple[int, ...]:
    """Count the ranks of each node.

    Raises:
        ValueError: a slot is taken twice, or a node or local rank is left out.
    """
    twice = [slot for slot, times in Counter(slots).items() if times > 1]
    if twice:
        raise ValueError(
            f"local rank {twice[0].local_rank} of node {twice[0].node} was started twice"
        )
    sizes, there = Counter(slot.node for slot in slots), set(slots)
    missing = [
        f"local rank {local} of node {node}"
        for node in range(max(sizes) + 1)
        for local in range(max(1, sizes[node]))
        if Slot(node, local) not in there
    ]
    if missing:
        raise ValueError(f"nobody started {missing[0]}")
    return tuple(sizes[node] for node in range(len(sizes)))


def rank_environment(attempt: Attempt, index: int) -> dict[str, str]:
    """Return what the `index`-th rank of an agent finds in its environment, as torchrun sets it."""
    rank, slot, nodes = attempt.first_rank + index, attempt.slots[index], len(attempt.node_sizes)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(slot.local_rank),
        "WORLD_SIZE": str(attempt.world_size),
        "LOCAL_WORLD_SIZE": str(attempt.node_sizes[slot.node]),
        "NODE_RANK": str(slot.node),
        "GROUP_RANK": str(slot.node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(attempt.world_size),
        "MASTER_ADDR": attempt.master_addr,
        "MASTER_PORT": str(attempt.master_port),
        # An agent's store would hold the keys of a failed attempt.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RUN_ID": attempt.job_id,
        "TORCHELASTIC_RESTART_COUNT": str(attempt.number),
        "TORCHELASTIC_MAX_RESTARTS": str(attempt.max_restarts),
    }
