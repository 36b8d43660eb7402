"""The agents of a job: who has come, which ranks they have, and how they are named in messages."""

from collections.abc import Sequence
from dataclasses import dataclass

from hccl_py.launcher.failure import RankFailure
from hccl_py.launcher.job.layout import Hello, node_sizes
from hccl_py.launcher.number_ranges import name_ranks

_MOST_NAMES = 8


@dataclass
class AgentState:
    """An agent that has come, and how its ranks ended in this attempt."""

    hello: Hello
    port: int
    """Free on its host, for rank 0's store in the next attempt."""
    is_running: bool = False
    failures: tuple[RankFailure, ...] = ()


class Agents(dict[int, AgentState]):
    """Those that have come, by index. Ranks follow one another in that order."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Expect as many as there are hosts; a host is empty where it is not known yet."""
        super().__init__()
        self._hosts = hosts

    @property
    def num_missing(self) -> int:
        """How many have not come."""
        return len(self._hosts) - len(self)

    @property
    def missing(self) -> list[int]:
        """Those that have not come."""
        return [index for index in range(len(self._hosts)) if index not in self]

    def why_not(self, index: int) -> str:
        """Return why no agent can come with this index; empty: one can."""
        if index not in range(len(self._hosts)):
            return f"this job has {len(self._hosts)} nodes; there is no node {index}"
        if index in self:
            return (
                f"{self.name(index)} is there already, as process {self[index].hello.pid}: "
                "give each node a number of its own"
            )
        return ""

    def hellos(self) -> list[Hello]:
        """Return what all said when they came, in the order of their ranks."""
        return [self[index].hello for index in sorted(self)]

    def node_sizes(self) -> tuple[int, ...]:
        """Return the number of ranks of each node; raise ValueError as `layout.node_sizes`."""
        return node_sizes([slot for hello in self.hellos() for slot in hello.slots])

    def ranks(self) -> dict[int, range]:
        """Return the ranks of each agent."""
        found, first = {}, 0
        for index in sorted(self):
            found[index] = range(first, first + len(self[index].hello.slots))
            first = found[index].stop
        return found

    def failures(self) -> list[RankFailure]:
        """Return those of all ranks."""
        found = [one for agent in self.values() for one in agent.failures]
        # The only host needs no name.
        return [one._replace(host="") for one in found] if len(self) == 1 else found

    def name(self, index: int) -> str:
        """Return what a message calls a node."""
        host = self[index].hello.host if index in self else self._hosts[index]
        return f"node {index} ({host})" if host else f"node {index}"

    def name_with_ranks(self, index: int) -> str:
        """Return what a message calls a node that was lost."""
        return f"{self.name(index)} with {name_ranks(self.ranks()[index])}"

    def names_here(self) -> str:
        """Return the names of all that have come."""
        return ", ".join(map(self.name, sorted(self))) or "none"

    def names_missing(self) -> str:
        """Return the names of those that have not come, at most eight of them."""
        names = [self.name(index) for index in self.missing]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return ", ".join(names[:_MOST_NAMES]) + more
