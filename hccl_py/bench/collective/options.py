"""The options of `hccl-bench`, one frozen `Options` for each case."""

from dataclasses import dataclass
from pathlib import Path

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.oracle import ITEM_SIZES, Call


@dataclass(frozen=True)
class Options:
    """One collective to measure, how to measure it, and where to write the result.

    The parser's options have these names; `read` gives each case values for the first six.
    """

    collective: str
    dtype: str
    reduce_op: str
    root: int
    in_place: bool
    pairs: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]
    nproc: int
    nnodes: int
    veth_links: int | None
    rate_mbit: float | None
    compressions: tuple[str, ...]
    reproducible: bool
    algorithms: tuple[str, ...]
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

    def node(self, rank: int) -> int:
        """The emulated node that a rank is on."""
        return rank // self.nproc

    def buffer_bytes(self, size: int) -> int:
        """Return the bytes of a rank's buffers for one contender."""
        blocks = CASES[self.collective].blocks(self.world_size)
        num_blocks = max(blocks) if self.in_place else sum(blocks)
        return num_blocks * self.call(size).count * ITEM_SIZES[self.dtype]

    def call(self, size: int) -> Call:
        """Return the call of `size` bytes."""
        return Call(
            self.collective,
            self.world_size,
            self.root,
            self.reduce_op,
            self.dtype,
            CASES[self.collective].count(size, self.dtype, self.world_size),
            in_place=self.in_place,
            pairs=self.pairs,
        )
