"""Users' algorithms: the decorator, and the rules for the calls that an algorithm serves.

A job imports this only if it names an algorithm of its own. `hccl_py/own_algorithms.py` proves each
for the job's ranks before its first call.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

from hccl_py.algorithms.choice.tuner import UNKNOWN_SIZE, size_class
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.algorithms.table import Algorithm, write_plan
from hccl_py.plan.contracts import COLLECTIVES, Contract
from hccl_py.plan.explain import explain
from hccl_py.plan.language import Nodes, Plan, PlanBuilder, PlanError
from hccl_py.plan.limits import MOST_CHUNKS
from hccl_py.plan.progress import ProofProgress
from hccl_py.plan.verify import verify
from hccl_py.transport.arguments import whole_number, wrong
from hccl_py.transport.errors import InvalidArgumentError

PLANS = "plan:"
"""Prefix of a file with plans, instead of a function."""


class WrongAlgorithmError(InvalidArgumentError):
    """The proof rejects an algorithm; the message draws the history of the wrong block."""


@dataclass(frozen=True, eq=False)
class CustomAlgorithm:
    """A user's algorithm with its rules; `algorithm` makes one from a function.

    Attributes:
        name: file and function, such as `mine.py:mine`.
        cost: in the user's words.
        min_bytes, max_bytes: it serves calls of more than min_bytes, up to max_bytes.
        when: decides by world size and nodes; None: serves all.
        world_size: the only world size that it serves; None: `when` decides.
    """

    collective: str
    name: str
    entry: Algorithm
    cost: str
    min_bytes: int
    max_bytes: int | None
    when: Callable[[int, Nodes], bool] | None
    world_size: int | None = None

    def __call__(self, me: int, n: int, plan: PlanBuilder) -> None:
        """Write the plan, as the function under the decorator does."""
        self.entry.write(me, n, plan)

    def __str__(self) -> str:
        return f"{self.collective}={self.name}"

    @property
    def contract(self) -> Contract:
        """Its postcondition, and its precondition."""
        return replace(COLLECTIVES[self.collective], equal_blocks=self.entry.equal_blocks)

    def serves(self, nodes: Nodes) -> bool:
        """Return whether it serves these nodes."""
        n = count_ranks(nodes)
        if self.world_size not in (None, n):
            return False
        return self.when is None or bool(self._call(f"`when` of {n} ranks", self.when, n, nodes))

    def fits(self, num_bytes: int) -> bool:
        """Return whether it serves calls of this size; equal for all sizes of a size class."""
        largest_of_class = 1 << size_class(num_bytes)
        return self.min_bytes < largest_of_class <= (self.max_bytes or largest_of_class)

    def settled(self, nodes: Nodes) -> "CustomAlgorithm":
        """Return it with a fixed number of chunks for these nodes, computed once.

        Raise InvalidArgumentError: the result is not a number, or the function raised.
        """
        where = f"`chunks` of {count_ranks(nodes)} ranks"
        expected = f"a whole number from 1 to {MOST_CHUNKS}", range(1, MOST_CHUNKS + 1)
        got = self._call(where, self.entry.data_chunks, nodes)
        chunks = whole_number(f"{self}: chunks", got, *expected)
        return replace(self, entry=self.entry._replace(data_chunks=lambda _nodes: chunks))

    def plan(self, rank: int, nodes: Nodes, root: int | None) -> Plan:
        """Write the plan of a rank; InvalidArgumentError: the function raised."""
        n = count_ranks(nodes)
        if self.world_size not in (None, n):
            raise InvalidArgumentError(f"{self}: expected {self.world_size} ranks, got {n}")
        header = Plan(self.collective, self.name, rank, n, root)
        where = f"rank {rank} of {header.world_size}"
        plan: Plan = self._call(where, write_plan, self.entry, header, nodes)
        return plan

    def plans(self, nodes: Nodes, root: int | None) -> tuple[Plan, ...]:
        """Write the plans of all ranks."""
        settled = self.settled(nodes)
        return tuple(settled.plan(rank, nodes, root) for rank in range(count_ranks(nodes)))

    def verify(self, nodes: Nodes, root: int | None = None) -> tuple[Plan, ...]:
        """Write its plans for these ranks and prove them; return the proved plans.

        Raise WrongAlgorithmError: it is wrong.
        """
        with ProofProgress("hccl-plan:") as progress:
            settled = self.settled(nodes)
            plans = list[Plan]()
            progress.now = lambda: f"{self} writes the plan of rank {len(plans)}"
            for rank in range(count_ranks(nodes)):
                plans.append(settled.plan(rank, nodes, root))
            self.prove(plans, nodes, progress)
        return tuple(plans)

    def prove(self, plans: Sequence[Plan], nodes: Nodes, progress: ProofProgress) -> None:
        """Prove its plans, one for each rank, out of place and in place.

        Raise WrongAlgorithmError: they are wrong.
        """
        contract, root = self.contract, plans[0].root
        rooted = "" if root is None else f", root {root}"
        where = f"{len(plans)} ranks on {len(nodes)} node(s){rooted}"

        def watch(done: Callable[[], str]) -> None:
            progress.now = lambda: f"{self} is proved for {where}: {done()}"

        # A collective on `data` is always in place.
        for in_place in (False,) if contract.blocks is None else (False, True):
            try:
                verify(plans, contract, in_place=in_place, watch=watch)
            except PlanError as error:
                story = explain(plans, contract, error, in_place=in_place)
                raise WrongAlgorithmError(f"{self} is wrong for {where}: {story}") from error

    def _call(self, where: str, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:  # anything that a user's function may raise
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if Path(frame.filename).name == self.name.partition(":")[0]
            ]
            line = f" in line {lines[-1]}" if lines else ""
            problem = f"{self}, {where}: {type(error).__name__}{line}: {error}"
            raise InvalidArgumentError(problem) from error


def algorithm(
    collective: str,
    *,
    cost: str = "",
    chunks: int | Callable[[int, Nodes], int] = 1,
    equal_blocks: bool = False,
    min_bytes: int = 0,
    max_bytes: int | None = None,
    when: Callable[[int, Nodes], bool] | None = None,
) -> Callable[[Callable[[int, int, PlanBuilder], None]], CustomAlgorithm]:
    """Make an algorithm from a function that writes the plan of rank `me` of `n`.

    See docs/internals/algorithms.md. It is proved for the job's ranks before its first call.

    Args:
        collective: the collective, as torch spells it.
        cost: a description, shown where the algorithm is chosen.
        chunks: number of chunks of `data`, or of each block, or a function of world size and nodes.
        equal_blocks: it relies on blocks of one length, the same on all ranks.
        min_bytes: it serves calls of more bytes than this, a power of two, or 0.
        max_bytes: it serves calls of up to this many bytes, a power of two; None: any size.
        when: whether it serves a world size and nodes; None: it serves all.

    Raises:
        InvalidArgumentError: unknown collective, or one whose size is not known for the limits.
    """
    if not isinstance(collective, str) or collective not in COLLECTIVES:
        valid = ", ".join(COLLECTIVES)
        raise wrong("collective", f"one of {valid}", collective)
    if when is not None and not callable(when):
        raise wrong("when", "a function of world size and nodes", when)
    for name, limit in (("min_bytes", min_bytes), ("max_bytes", max_bytes)):
        number = 0 if limit is None else whole_number(name, limit, "a power of two", range(1 << 63))
        if number.bit_count() > 1:
            raise wrong(name, "a power of two", limit)
        if limit and (collective in UNKNOWN_SIZE or COLLECTIVES[collective].meets):
            raise InvalidArgumentError(f"{name}: no rank knows the size of a whole {collective}")

    def data_chunks(nodes: Nodes) -> int:
        return chunks(count_ranks(nodes), nodes) if callable(chunks) else chunks

    def wrap(write: Callable[[int, int, PlanBuilder], None]) -> CustomAlgorithm:
        if not isinstance(write, FunctionType):
            raise wrong("algorithm", "a function of me, n and plan under it", write)
        name = f"{Path(write.__code__.co_filename).name}:{write.__name__}"
        entry = Algorithm(write, data_chunks, equal_blocks=equal_blocks)
        return CustomAlgorithm(collective, name, entry, cost, min_bytes, max_bytes, when)

    return wrap
