"""The tables of a run, from what its JSON holds: nothing here measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.harness import Document, Page
from benchmarks.overlap.contenders import CONTENDERS
from hccl_py.bench.collective.analysis.trust import spread_doubts
from hccl_py.bench.collective.output.text import number
from hccl_py.bench.collective.results import Spread

_MOST_EXPOSED = 1 / 3
_HEAD = ["", "step ms", "of alone", "gloo / it", "reduce ms", "exposed ms", "of reduce"]
_HEAD += ["of gloo's"]


@dataclass
class Cell:
    """One model on some ranks.

    Attributes:
        step_ms: the time of a step in each round of all starts, by contender.
        reduce_ms: the same of an all_reduce of all gradients.
        num_steps: timed ones of each contender.
        doubts: why its figures cannot be trusted.
    """

    model: str
    ranks: int
    batch: int
    gradient_bytes: int
    step_ms: dict[str, list[float]] = field(default_factory=dict)
    reduce_ms: dict[str, list[float]] = field(default_factory=dict)
    num_steps: int = 0
    doubts: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Describe the model, and the averaged bytes of a step."""
        samples = f"{self.batch} sample{'s' * (self.batch > 1)} each"
        megabytes = number(self.gradient_bytes / 1e6)
        return f"{self.model}, {self.ranks} ranks, {samples}, {megabytes} MB of gradients"

    def step(self, name: str) -> Spread:
        """Return the time of a step."""
        return Spread.of(self.step_ms[name])

    def exposed(self, name: str) -> Spread:
        """Return what a step takes beyond a silent one of the same round."""
        silent = CONTENDERS[name].silent
        assert silent is not None
        pairs = zip(self.step_ms[name], self.step_ms[silent], strict=True)
        return Spread.of([step - without for step, without in pairs])

    def exposed_of_gloo(self, name: str) -> float | None:
        """Return the exposed time by gloo's; None where gloo's is lost in the noise."""
        gloo = self.exposed("gloo")
        return self.exposed(name).median / gloo.median if gloo.p10 > 0 else None

    def losses(self) -> list[str]:
        """Say where ours is slower than gloo, or exposes more than a third of what gloo does."""
        lines = []
        for name in ("hccl", "fast_ddp"):
            ratio = self.step("gloo").median / self.step(name).median
            if ratio < 1:
                lines.append(f"{self.title}: {CONTENDERS[name].title}: {ratio:.2f}x gloo's speed")
            share = self.exposed_of_gloo(name)
            if share is not None and share > _MOST_EXPOSED:
                lines.append(
                    f"{self.title}: {CONTENDERS[name].title}: exposes {share:.0%} of what gloo "
                    f"does, more than {_MOST_EXPOSED:.0%}"
                )
        note = "; not to be trusted, see above" if self.doubts else ""
        return [line + note for line in lines]


def cells(document: Document) -> list[Cell]:
    """Sort the results of all starts into cells."""
    found: dict[tuple[str, int], Cell] = {}
    for each in document["results"]:
        key = each["model"], each["ranks"]
        cell = found.setdefault(key, Cell(*key, each["batch"], each["gradient_bytes"]))
        name = each["contender"]
        cell.step_ms.setdefault(name, []).extend(each["step_ms"])
        cell.reduce_ms.setdefault(name, []).extend(each["reduce_ms"])
        if name == "none":
            cell.num_steps += len(each["step_ms"]) * each["steps_per_round"]
        cell.doubts += [doubt for doubt in each["doubts"] if doubt not in cell.doubts]
    for cell in found.values():
        for name, steps in cell.step_ms.items():
            cell.doubts += [
                f"{CONTENDERS[name].title}: {why}" for why in spread_doubts(steps, cell.num_steps)
            ]
        if cell.exposed("gloo").p10 <= 0:
            cell.doubts.append("what gloo exposes is lost in the noise")
    return sorted(found.values(), key=lambda cell: (cell.ranks, cell.model))


def introduce(document: Document, page: Page) -> None:
    """Say what the run is on and how it was measured."""
    nodes = document["nnodes"]
    where = "1 node" if nodes == 1 else f"{nodes} emulated nodes"
    page.introduction(
        document,
        f"{where}; {document['starts']} fresh starts of {document['seconds']:g} s for each model, "
        "in which the contenders' rounds alternate",
        "step: on the slowest rank, median (p10-p90) over the rounds; silent: without "
        "communication; reduce: one all_reduce of all gradients; exposed: step - silent step of "
        "the same round",
    )


def report(document: Document, page: Page) -> None:
    """Add every cell, then where ours loses, then what failed."""
    all_cells = cells(document)
    for cell in all_cells:
        page.heading(cell.title, level=3)
        page.table([_HEAD, *(_row(cell, name) for name in cell.step_ms)])
        if cell.doubts:
            page.items([f"not to be trusted: {'; '.join(cell.doubts)}"])
    page.heading("Where hccl loses")
    losses = [line for cell in all_cells for line in cell.losses()]
    page.items(losses, none="nowhere" if all_cells else "unknown")
    page.failures(document)


def _row(cell: Cell, name: str) -> Sequence[str]:
    step, alone, gloo = cell.step(name), cell.step("none"), cell.step("gloo")
    row = [
        CONTENDERS[name].title,
        f"{number(step.median)} ({number(step.p10)}-{number(step.p90)})",
        f"{step.median / alone.median:.2f}x",
        f"{gloo.median / step.median:.2f}x",
    ]
    if CONTENDERS[name].silent is None:
        return [*row, *[""] * (len(_HEAD) - len(row))]
    reduce, exposed = Spread.of(cell.reduce_ms[name]).median, cell.exposed(name)
    share = cell.exposed_of_gloo(name)
    return [
        *row,
        number(reduce),
        f"{exposed.median:.2f} ({exposed.p10:.2f}-{exposed.p90:.2f})",
        f"{exposed.median / reduce:.0%}",
        "" if share is None else f"{share:.2f}",
    ]
