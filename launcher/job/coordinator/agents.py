"""The agents of a job: the ones that have joined, their ranks, and their names in messages."""

from collections.abc import Sequence
from dataclasses import dataclass

from hccl_py.launcher.failure import RankFailure
from hccl_py.launcher.job.layout import Hello, node_sizes
from hccl_py.launcher.number_ranges import name_ranks

_MOST_NAMES = 8
_LEFT = "it ended while others still called it: see where it returns early or calls sys.exit(0)"


@dataclass
class AgentState:
    """An agent that has joined, and how its ranks ended in this attempt."""

    hello: Hello
    port: int
    """A free port of its host, for rank 0's store in the next attempt."""
    is_running: bool = False
    ends: tuple[RankFailure, ...] = ()


class Agents(dict[int, AgentState]):
    """The agents that have joined, by index, in the order of their ranks."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Expect one agent per host; an empty host is not known yet."""
        super().__init__()
        self._hosts = hosts

    @property
    def num_missing(self) -> int:
        """Number of agents that have not joined."""
        return len(self._hosts) - len(self)

    @property
    def missing(self) -> list[int]:
        """Indices of agents that have not joined."""
        return [index for index in range(len(self._hosts)) if index not in self]

    def why_not(self, index: int) -> str:
        """Return why no agent can join with this index; empty: one can."""
        if index not in range(len(self._hosts)):
            return f"this job has {len(self._hosts)} nodes; there is no node {index}"
        if index in self:
            return (
                f"{self.name(index)} has joined already, as process {self[index].hello.pid}: "
                "give each node a number of its own"
            )
        return ""

    def hellos(self) -> list[Hello]:
        """Return the hellos of all agents, in the order of their ranks."""
        return [self[index].hello for index in sorted(self)]

    def node_sizes(self) -> tuple[int, ...]:
        """Return the number of ranks of each node; ValueError as in `layout.node_sizes`."""
        return node_sizes([slot for hello in self.hellos() for slot in hello.slots])

    def ranks(self) -> dict[int, range]:
        """Return the ranks of each agent."""
        found, first = {}, 0
        for index in sorted(self):
            found[index] = range(first, first + len(self[index].hello.slots))
            first = found[index].stop
        return found

    def failures(self) -> list[RankFailure]:
        """Return the failures of all ranks, and the ranks that left others alone in a call."""
        ends = [one for agent in self.values() for one in agent.ends]
        blamed = {one.blames for one in ends if one.exit_code}
        left = [one._replace(reason=_LEFT) for one in ends if one.rank in blamed]
        found = [one for one in ends if one.exit_code]
        found += [one for one in left if not one.exit_code]
        # The only host needs no name.
        return [one._replace(host="") for one in found] if len(self) == 1 else found

    def name(self, index: int) -> str:
        """Return the name of a node in messages."""
        host = self[index].hello.host if index in self else self._hosts[index]
        return f"node {index} ({host})" if host else f"node {index}"

    def name_with_ranks(self, index: int) -> str:
        """Return the name of a lost node in messages."""
        return f"{self.name(index)} with {name_ranks(self.ranks()[index])}"

    def names_here(self) -> str:
        """Return the names of all agents that have joined."""
        return ", ".join(map(self.name, sorted(self))) or "none"

    def names_missing(self) -> str:
        """Return the names of missing agents, at most eight."""
        names = [self.name(index) for index in self.missing]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return ", ".join(names[:_MOST_NAMES]) + more
