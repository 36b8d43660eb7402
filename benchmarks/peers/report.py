"""The tables of a run, from what its JSON holds: nothing here measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.contenders import LIMITS, OURS
from benchmarks.peers.machine import Cores, describe, memcpy_gb_per_s, name_cores
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.measure import Spread
from hccl_py.bench.collective.output.plot import size_text
from hccl_py.bench.collective.output.table import lay_out, number

_NOISY = 2.0
_STEADY, _OFTEN = 1.5, 0.9
_UNCACHED = 1 << 20  # below, a share of the speed of memory says nothing
_DTYPE = "float32"
_NUM_WORST = 10
_WANTED = (1, 2, 3)


@dataclass(frozen=True)
class Cell:
    """One size of one collective on some ranks, called in one way.

    Attributes:
        size: bytes asked for; one element for each rank is the least.
        starts_us: the time of every start, by contender.
        cores: those of each of our starts: near, far, slow, moved meanwhile, or empty.
        num_hosts: that the ranks run on.
    """

    group: str
    op: str
    ranks: int
    size: int
    starts_us: dict[str, list[float]]
    cores: list[str]
    num_hosts: int = 1

    @property
    def title(self) -> str:
        """The table that the cell stands in."""
        return f"{self.op}, {self.layout}, {self.group}"

    @property
    def layout(self) -> str:
        """How many ranks, and on how many hosts."""
        hosts = self.num_hosts
        return f"{hosts} x {self.ranks // hosts} ranks" if hosts > 1 else f"{self.ranks} ranks"

    @property
    def spreads(self) -> dict[str, Spread]:
        """Spread over the starts, by contender."""
        return {name: Spread.of(starts) for name, starts in self.starts_us.items()}

    @property
    def ours(self) -> Spread | None:
        """Ours; None where no start ended."""
        return self.spreads.get(OURS[self.group])

    @property
    def best_peer(self) -> str | None:
        """The peer with the lowest median."""
        no_peers = (OURS[self.group], *LIMITS)
        peers = {name: each for name, each in self.spreads.items() if name not in no_peers}
        return min(peers, key=lambda name: peers[name].median, default=None)

    @property
    def ratio(self) -> float | None:
        """The best peer's median by ours; above 1 ours is faster."""
        ours, best = self.ours, self.best_peer
        return self.spreads[best].median / ours.median if ours and best else None

    @property
    def at_most(self) -> float | None:
        """The best peer's median by that of the limit: a ratio that no library is far above."""
        limit, best = self.limit, self.best_peer
        return self.spreads[best].median / limit.median if limit and best else None

    @property
    def limit(self) -> Spread | None:
        """Bare copies, or plain sockets between hosts."""
        return next((it for name, it in self.spreads.items() if name in LIMITS), None)

    @property
    def noisy(self) -> dict[str, float]:
        """p90 by p10, of those of ours and the best peer where it says not to trust the row."""
        compared = {OURS[self.group], self.best_peer}
        ratios = {name: each.p90 / each.p10 for name, each in self.spreads.items()}
        return {name: x for name, x in ratios.items() if x > _NOISY and name in compared}

    @property
    def steady(self) -> str:
        """How many of our starts are within 1.5 times the best: of all, of those on like cores."""
        counts = {"": self.starts_us.get(OURS[self.group], []), **self.by_cores}
        return ", ".join(
            f"{kind} {_count_steady(some)}/{len(some)}".lstrip() for kind, some in counts.items()
        )

    @property
    def by_cores(self) -> dict[str, list[float]]:
        """Our starts on near cores, on far ones and on slow ones, where there were any."""
        ours: dict[str, list[float]] = {"near": [], "far": [], "slow": []}
        for kind, time in zip(self.cores, self.starts_us.get(OURS[self.group], ()), strict=True):
            ours.get(kind, []).append(time)
        return {kind: some for kind, some in ours.items() if some}

    @property
    def busbw_gb_per_s(self) -> float | None:
        """Our busbw."""
        case = CASES[self.op]
        num_bytes = case.num_bytes(case.count(self.size, _DTYPE, self.ranks), _DTYPE, self.ranks)
        if self.ours is None or not num_bytes:
            return None
        return num_bytes / self.ours.median / 1e3 * case.busbw_factor(self.ranks)


def cells(document: dict[str, Any]) -> list[Cell]:
    """Sort the results of all starts into cells, in the order in which they were measured."""
    groups = {each["name"]: each["group"] for each in document["contenders"]}
    num_hosts = document.get("hosts", 1)
    found: dict[tuple[str, str, int, int], Cell] = {}
    probes = [[Cores(*each) for each in result.get("cores", ())] for result in document["results"]]
    best_compute_ns = min((cores.compute_ns for pair in probes for cores in pair), default=0.0)
    for result, pair in zip(document["results"], probes, strict=True):
        name = result["contender"]
        key = (groups[name], result["op"], result["ranks"], result["bytes"])
        cell = found.setdefault(key, Cell(*key, {}, [], num_hosts))
        cell.starts_us.setdefault(name, []).append(result["time_us"])
        if name == OURS[cell.group]:
            cell.cores.append(name_cores(pair, best_compute_ns))
    return sorted(found.values(), key=lambda cell: cell.group)


def _count_steady(starts: Sequence[float]) -> int:
    return sum(start <= _STEADY * min(starts) for start in starts)


def introduction(document: dict[str, Any], markdown: bool) -> list[str]:
    """Say what the run is on, who takes part and who does not."""
    machine, versions = document["machine"], document["versions"]
    taking_part = ", ".join(
        f"{each['name']} {each['version']} ({each['group']})" for each in document["contenders"]
    )
    lines = [
        document["command"],
        f"{machine['cpu']}, {machine['usable_cores']} usable cores, {machine['system']}; "
        f"torch {versions['torch']}, Python {versions['python']}; {document['date']}",
        taking_part,
        *document["missing"],
        describe(document["probes"]),
        "a start's time: median over its blocks of the mean call of the slowest rank, in us; "
        "shown: median (p10-p90) over the starts; ratio: best peer / ours",
    ]
    return [f"- {line}" if markdown else f"# {line}" for line in lines]


def tables(document: dict[str, Any], markdown: bool) -> list[str]:
    """Render the counts, the worst cells, every cell, where ours loses, and what failed."""
    copy = memcpy_gb_per_s(document["probes"])
    all_cells = cells(document)
    lines: list[str] = []
    for head, body in (
        ("All cells", [("- " if markdown else "  ") + line for line in _summary(all_cells)]),
        ("The lowest ratios", _worst(all_cells, markdown)),
    ):
        lines += ["", f"{'## ' if markdown else '# '}{head}", *([""] if markdown else []), *body]
    for title in dict.fromkeys(cell.title for cell in all_cells):
        rows = [cell for cell in all_cells if cell.title == title]
        lines += ["", f"{'### ' if markdown else '# '}{title}", *([""] if markdown else [])]
        lines += _table(rows, copy, markdown)
    heads = ("## " if markdown else "# ", "- " if markdown else "  ")
    lines += ["", f"{heads[0]}Where ours loses", *([""] if markdown else [])]
    lines += [heads[1] + line for line in losses(all_cells)] or [f"{heads[1]}nowhere"]
    lines += [heads[1] + line for line in _out_of_reach(all_cells)]
    if document["failures"]:
        lines += ["", f"{heads[0]}Starts that failed", *([""] if markdown else [])]
        lines += [heads[1] + line for line in document["failures"]]
    return lines


def _summary(all_cells: Sequence[Cell]) -> list[str]:
    """Count the cells that reach what a user may want of them."""
    rated = [(ratio, cell) for cell in all_cells if (ratio := cell.ratio) is not None]
    if not rated:
        return ["no peer ended a start"]

    def reach(wanted: float, chosen: Callable[[Cell], bool] = lambda _: True) -> str:
        ratios = [ratio for ratio, cell in rated if chosen(cell)]
        return f"{wanted:g}x in {sum(ratio >= wanted for ratio in ratios)} of {len(ratios)}"

    lines = [
        f"ratio of at least {', '.join(map(reach, _WANTED))}",
        f"from 8 KB {reach(2, lambda cell: cell.size >= 8 << 10)}, from 1 MB "
        f"{reach(3, lambda cell: cell.size >= 1 << 20)}, on 8 ranks "
        f"{reach(2, lambda cell: cell.ranks == 8)}",
    ]
    starts: dict[str, list[list[float]]] = {}
    for cell in all_cells:
        for name, times in cell.starts_us.items():
            starts.setdefault(name, []).append(times)
        for kind, times in cell.by_cores.items():
            starts.setdefault(f"{OURS[cell.group]} on {kind} cores", []).append(times)
    counts = []
    for name, them in starts.items():
        steady = [times for times in them if _count_steady(times) >= _OFTEN * len(times)]
        counts += [f"{name} {len(steady)} of {len(them)}"] if name not in LIMITS else []
    return [*lines, f"cells with nine of ten starts within 1.5 times the best: {', '.join(counts)}"]


def _worst(all_cells: Sequence[Cell], markdown: bool) -> list[str]:
    rated = [(ratio, cell) for cell in all_cells if (ratio := cell.ratio) is not None]
    table = [["case", "size", "ours", "best peer", "ratio", "at most", "steady"]]
    for ratio, cell in sorted(rated, key=lambda each: each[0])[:_NUM_WORST]:
        assert cell.ours is not None and cell.best_peer is not None
        peer = f"{number(cell.spreads[cell.best_peer].median)} us {cell.best_peer}"
        size = size_text(cell.size) if cell.size else ""
        ours = f"{number(cell.ours.median)} us"
        ratios = (f"{ratio:.2f}x", _limit(cell))
        table.append([cell.title, size, ours, peer, *ratios, cell.steady])
    return lay_out(table, markdown)


def losses(all_cells: Sequence[Cell]) -> list[str]:
    """Name the cells where a peer is faster, the worst first."""
    lost = [(ratio, cell) for cell in all_cells if (ratio := cell.ratio) is not None and ratio < 1]
    lines = []
    for ratio, cell in sorted(lost, key=lambda each: each[0]):
        assert cell.ours is not None and cell.best_peer is not None
        times = f"{number(cell.ours.median)} us, {cell.best_peer} "
        times += f"{number(cell.spreads[cell.best_peer].median)} us"
        lines.append(
            f"{ratio:.2f}x {cell.title}, {size_text(cell.size)}: ours {times}{_note(cell)}"
        )
    return lines


def _out_of_reach(all_cells: Sequence[Cell]) -> list[str]:
    """Say in how many cells the limit would not reach a ratio."""
    limits = [limit for cell in all_cells if (limit := cell.at_most) is not None]
    if not limits:
        return []
    counts = [f"{wanted}x in {sum(limit < wanted for limit in limits)}" for wanted in _WANTED]
    what = "bare copies" if all_cells[0].num_hosts == 1 else "plain sockets"
    return [f"{what} themselves would miss {', '.join(counts)} of {len(limits)} cells"]


def _table(rows: Sequence[Cell], copy_gb_per_s: float, markdown: bool) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row.starts_us))
    between = rows[0].num_hosts > 1
    share = "of sockets" if between else "of memcpy"
    table = [["size", *names, "ratio", "at most", "busbw GB/s", share, "steady", ""]]
    for row in rows:
        spreads = row.spreads
        times = [spreads.get(name) for name in names]
        busbw = row.busbw_gb_per_s
        best = "" if row.ratio is None else f"{row.ratio:.2f}x {row.best_peer}"
        table.append(
            [
                size_text(row.size),
                *(
                    f"{number(it.median)} ({number(it.p10)}-{number(it.p90)})" if it else "-"
                    for it in times
                ),
                best,
                _limit(row),
                f"{busbw:.2f}" if busbw else "",
                _of_sockets(row) if between else _of_memcpy(row, copy_gb_per_s),
                row.steady,
                _note(row).lstrip(", "),
            ]
        )
    return lay_out(table, markdown)


def _of_memcpy(cell: Cell, copy_gb_per_s: float) -> str:
    busbw = cell.busbw_gb_per_s
    return f"{busbw / copy_gb_per_s:.0%}" if busbw and cell.size >= _UNCACHED else ""


def _of_sockets(cell: Cell) -> str:
    sockets, ours = cell.limit, cell.ours
    return f"{sockets.median / ours.median:.0%}" if sockets and ours else ""


def _limit(cell: Cell) -> str:
    return "" if cell.at_most is None else f"{cell.at_most:.2f}x"


def _note(cell: Cell) -> str:
    """Say why a row is not to be trusted, if so."""
    noisy = ", ".join(f"{name} {spread:.1f}" for name, spread in cell.noisy.items())
    return f", not to be trusted: p90/p10 of {noisy}" if noisy else ""
