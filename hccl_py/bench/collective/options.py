"""What `hccl-bench` was asked for, one frozen `Options` for each case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hccl_py.bench.collective.cases import CASES


@dataclass(frozen=True)
class Options:
    """One collective to measure, how, and what to do with the result."""

    collective: str
    nproc: int
    nnodes: int
    veth_links: int | None
    rate_mbit: float | None
    compressions: tuple[str, ...]
    reproducible: bool
    algorithms: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str
    reduce_op: str
    root: int
    in_place: bool
    pairs: tuple[tuple[int, int], ...]
    measure: str
    validate: bool
    profile: bool
    iters: int | None
    warmup: int | None
    checks: int
    average: int
    timeout_s: float
    api: str
    compare: tuple[str, ...]
    registered: bool
    json_path: Path | None
    csv_path: Path | None
    plot_path: Path | None
    tune_path: Path | None
    tune_check: bool
    markdown: bool
    csv: bool
    verbose: bool

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of each rank."""
        return tuple(map(self.node, range(self.world_size)))

    @property
    def world_size(self) -> int:
        """Number of ranks in all."""
        return self.nproc * self.nnodes

    @property
    def contenders(self) -> tuple[str, ...]:
        """Names of what is measured; the others are compared with the first."""
        first = "registered" if self.registered else None
        algorithms = (Path(place).name for place in self.algorithms)
        reproducible = "reproducible" if self.reproducible else None
        names = (first, "hccl", *self.compressions, reproducible, *algorithms, *self.compare)
        return tuple(name for name in names if name)

    @property
    def has_root(self) -> bool:
        """Whether the collective has a root."""
        return CASES[self.collective].has_root

    def node(self, rank: int) -> int:
        """The emulated node that a rank is on."""
        return rank // self.nproc
