"""What plans put on the links of a network: read off their ops, whoever wrote them."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from hccl_py.lab.synthesis.bound import Bound
from hccl_py.lab.synthesis.network import Arc, Network
from hccl_py.plan.language import OpKind, Plan


class Certificate(NamedTuple):
    """How good plans are: the time of the busiest link beside the bound, in the same units."""

    time: Fraction
    busiest: str
    bound: Bound

    @property
    def share(self) -> float:
        """Share of the bound that is reached, 0 to 1."""
        return float(self.bound.time / self.time)

    @property
    def rates(self) -> str:
        """How much of the data is done in a second, if links are all that takes time."""
        plans, most = (float(1 / time) / 1000 for time in (self.time, self.bound.time))
        return f"{plans:.4g} of at most {most:.4g} Mbit/s of the data; busiest link: {self.busiest}"

    def __str__(self) -> str:
        return f"{self.share:.1%} of the bound; the bottleneck is {self.bound.bottleneck}"


def certify(plans: Sequence[Plan], network: Network, bound: Bound) -> Certificate:
    """Find the busiest link of plans, one for each rank."""
    load = Counter[Arc]()
    for plan in plans:
        whole = plan.shape.data_chunks or plan.world_size
        for op in plan.ops:
            if op.kind is not OpKind.SEND or op.src is None:
                continue
            for peer in op.peers:
                for arc in network.routes[plan.rank, peer]:
                    load[arc] += op.src.end - op.src.begin
    times = {arc: Fraction(count, whole * network.kbit_per_s[arc]) for arc, count in load.items()}
    busiest = max(times, key=lambda arc: times[arc])
    return Certificate(times[busiest], network.spelt(busiest), bound)
