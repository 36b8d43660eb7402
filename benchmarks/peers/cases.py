"""The results of a run by case: a collective, size, number of ranks and way to call it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.harness import Document
from benchmarks.peers.contenders import BUFFERS, DTYPE, LIMITS, OURS, places_of
from benchmarks.peers.machine import Cores, name_cores
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.results import Spread
from hccl_py.quantities import busbw_factor

_NOISY = 2.0
_STEADY = 1.5


@dataclass(frozen=True)
class PeerCase:
    """The results of one case.

    Attributes:
        size: requested bytes; a call has at least one element for each rank.
        place, buffers: as in Start.
        starts_us: the time of every start, by contender.
        first_us: the mean of its first calls, of every start that has it, by contender.
        cores: kind of the cores at each of our starts: near, far, slow, moved (from one kind to
            another), or empty.
        num_hosts: hosts of the ranks.
    """

    group: str
    op: str
    ranks: int
    size: int
    place: str
    buffers: str
    num_hosts: int = 1
    starts_us: dict[str, list[float]] = field(default_factory=dict)
    first_us: dict[str, list[float]] = field(default_factory=dict)
    cores: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The title of the table that has this case."""
        out = " out of place" if self.place != places_of(self.op)[0] else ""
        rewritten = f", {self.buffers} buffers" if self.buffers != BUFFERS[0] else ""
        return f"{self.op}{out}, {self.layout}, {self.group}{rewritten}"

    @property
    def layout(self) -> str:
        """Number of ranks and hosts, as text."""
        hosts = self.num_hosts
        return f"{hosts} x {self.ranks // hosts} ranks" if hosts > 1 else f"{self.ranks} ranks"

    @property
    def spreads(self) -> dict[str, Spread]:
        """Spread over the starts, by contender."""
        return {name: Spread.of(starts) for name, starts in self.starts_us.items()}

    @property
    def ours(self) -> Spread | None:
        """Spread of hccl's starts; None if none ended."""
        return self.spreads.get(OURS[self.group])

    @property
    def limit(self) -> Spread | None:
        """Spread of the limit: bare copies, or plain sockets between hosts."""
        return next((it for name, it in self.spreads.items() if name in LIMITS), None)

    @property
    def best_peer(self) -> str | None:
        """The peer with the lowest median."""
        no_peers = (OURS[self.group], *LIMITS)
        peers = {name: each for name, each in self.spreads.items() if name not in no_peers}
        return min(peers, key=lambda name: peers[name].median, default=None)

    @property
    def ratio(self) -> float | None:
        """The best peer's median / ours; above 1 ours is faster."""
        return self._of_best(self.ours)

    @property
    def first(self) -> float | None:
        """The same ratio of the first calls."""
        medians = {name: Spread.of(starts).median for name, starts in self.first_us.items()}
        ours = medians.pop(OURS[self.group], None)
        return min(medians.values()) / ours if ours and medians else None

    @property
    def at_most(self) -> float | None:
        """The best peer's median / that of the limit, which no ratio can be far above."""
        return self._of_best(self.limit)

    def _of_best(self, one: Spread | None) -> float | None:
        best = self.best_peer
        return self.spreads[best].median / one.median if one and best else None

    @property
    def of_limit(self) -> float | None:
        """The limit's median / ours."""
        return self.limit.median / self.ours.median if self.limit and self.ours else None

    @property
    def noisy(self) -> dict[str, float]:
        """p90 / p10 of hccl and of the best peer, where it is too large to trust the row."""
        compared = {OURS[self.group], self.best_peer}
        ratios = {name: each.p90 / each.p10 for name, each in self.spreads.items()}
        return {name: x for name, x in ratios.items() if x > _NOISY and name in compared}

    @property
    def steady(self) -> str:
        """Share of our starts within 1.5 times the best: of all, and by kind of cores."""
        counts = {"": self.starts_us.get(OURS[self.group], []), **self.by_cores}
        return ", ".join(
            f"{kind} {count_steady(some)}/{len(some)}".lstrip() for kind, some in counts.items()
        )

    @property
    def by_cores(self) -> dict[str, list[float]]:
        """Our starts by kind of cores: near, far and slow, if there are any."""
        ours: dict[str, list[float]] = {"near": [], "far": [], "slow": []}
        for kind, time in zip(self.cores, self.starts_us.get(OURS[self.group], ()), strict=True):
            ours.get(kind, []).append(time)
        return {kind: some for kind, some in ours.items() if some}

    @property
    def busbw_gb_per_s(self) -> float | None:
        """Our busbw."""
        case = CASES[self.op]
        num_bytes = case.num_bytes(case.count(self.size, DTYPE, self.ranks), DTYPE, self.ranks)
        if self.ours is None or not num_bytes:
            return None
        return num_bytes / self.ours.median / 1e3 * busbw_factor(self.op, self.ranks)


def count_steady(starts: Sequence[float]) -> int:
    """Count the starts that are within 1.5 times the best."""
    return sum(start <= _STEADY * min(starts) for start in starts)


def cases(document: Document) -> list[PeerCase]:
    """Sort the results of all starts into cases, in the order in which they were measured."""
    groups = {each["name"]: each["group"] for each in document["contenders"]}
    found: dict[tuple[str, str, int, int, str, str], PeerCase] = {}
    probes = [[Cores(*each) for each in result.get("cores", ())] for result in document["results"]]
    best_compute_ns = min((cores.compute_ns for pair in probes for cores in pair), default=0.0)
    for result, pair in zip(document["results"], probes, strict=True):
        name = result["contender"]
        op = result["op"]
        kind = (result.get("place", places_of(op)[0]), result.get("buffers", BUFFERS[0]))
        key = (groups[name], op, result["ranks"], result["bytes"], *kind)
        case = found.setdefault(key, PeerCase(*key, document.get("hosts", 1)))
        case.starts_us.setdefault(name, []).append(result["time_us"])
        if "first_us" in result and name not in LIMITS:
            case.first_us.setdefault(name, []).append(result["first_us"])
        if name == OURS[case.group]:
            case.cores.append(name_cores(pair, best_compute_ns))
    return sorted(found.values(), key=lambda case: case.group)
