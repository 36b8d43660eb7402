"""The tables of a run, from its JSON; measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.harness import Document, Page
from benchmarks.overlap.contenders import CONTENDERS
from hccl_py.bench.collective.analysis.trust import spread_doubts
from hccl_py.bench.collective.output.text import number
from hccl_py.bench.collective.results import Spread

_MOST_EXPOSED = 1 / 3
_HEAD = ["", "step ms", "of alone", "gloo / it", "cpu ms", "reduce ms", "exposed ms", "of reduce"]
_HEAD += ["of gloo's"]


@dataclass
class TrainingCase:
    """A model on a number of ranks.

    Attributes:
        step_ms: the time of a step in each round of all starts, by contender.
        cpu_ms: the same for the CPU time of a rank in a step.
        reduce_ms: the same for an all_reduce of all gradients.
        num_steps: timed steps of each contender.
        doubts: reasons not to trust the figures.
    """

    model: str
    ranks: int
    batch: int
    gradient_bytes: int
    step_ms: dict[str, list[float]] = field(default_factory=dict)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    reduce_ms: dict[str, list[float]] = field(default_factory=dict)
    num_steps: int = 0
    doubts: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Return the model, ranks, samples and bytes of gradients as text."""
        samples = f"{self.batch} sample{'s' * (self.batch > 1)} each"
        megabytes = number(self.gradient_bytes / 1e6)
        return f"{self.model}, {self.ranks} ranks, {samples}, {megabytes} MB of gradients"

    def step(self, name: str) -> Spread:
        """Return the spread of a contender's step times."""
        return Spread.of(self.step_ms[name])

    def exposed(self, name: str) -> Spread:
        """Return the step's time less that of the silent step of the same round."""
        silent = CONTENDERS[name].silent
        assert silent is not None
        pairs = zip(self.step_ms[name], self.step_ms[silent], strict=True)
        return Spread.of([step - without for step, without in pairs])

    def speed_of_gloo(self, name: str) -> float:
        """Return how many times faster a step is than the same kind of step over gloo."""
        return self.step(CONTENDERS[name].rival).median / self.step(name).median

    def exposed_of_gloo(self, name: str) -> float | None:
        """Return the exposed time as a part of gloo's; None if gloo's is below the noise."""
        gloo = self.exposed(CONTENDERS[name].rival)
        return self.exposed(name).median / gloo.median if gloo.p10 > 0 else None

    def losses(self) -> list[str]:
        """Return where hccl is slower than gloo, or exposes more than a third of gloo's time."""
        lines = []
        for name in self.step_ms:
            if CONTENDERS[name].silent is None or CONTENDERS[name].backend != "hccl":
                continue
            ratio = self.speed_of_gloo(name)
            if ratio < 1:
                lines.append(f"{self.title}: {CONTENDERS[name].title}: {ratio:.2f}x gloo's speed")
            share = self.exposed_of_gloo(name)
            if share is not None and share > _MOST_EXPOSED:
                lines.append(
                    f"{self.title}: {CONTENDERS[name].title}: exposes {share:.0%} of gloo's time, "
                    f"more than {_MOST_EXPOSED:.0%}"
                )
        note = "; not to be trusted, see above" if self.doubts else ""
        return [line + note for line in lines]


def cases(document: Document) -> list[TrainingCase]:
    """Sort the results of all starts into cases."""
    found: dict[tuple[str, int], TrainingCase] = {}
    for each in document["results"]:
        key = each["model"], each["ranks"]
        case = found.setdefault(key, TrainingCase(*key, each["batch"], each["gradient_bytes"]))
        name = each["contender"]
        case.step_ms.setdefault(name, []).extend(each["step_ms"])
        case.cpu_ms.setdefault(name, []).extend(each["cpu_ms"])
        case.reduce_ms.setdefault(name, []).extend(each["reduce_ms"])
        if name == "none":
            case.num_steps += len(each["step_ms"]) * each["steps_per_round"]
        case.doubts += [doubt for doubt in each["doubts"] if doubt not in case.doubts]
    for case in found.values():
        for name, steps in case.step_ms.items():
            case.doubts += [
                f"{CONTENDERS[name].title}: {why}" for why in spread_doubts(steps, case.num_steps)
            ]
        case.doubts += [
            f"{way.title}: its exposed time is below the noise"
            for name, way in CONTENDERS.items()
            if way.backend == "gloo" and name in case.step_ms and case.exposed(name).p10 <= 0
        ]
    return sorted(found.values(), key=lambda case: (case.ranks, case.model))


def introduce(document: Document, page: Page) -> None:
    """Add what was run and how it was measured."""
    nodes = document["nnodes"]
    where = "1 node" if nodes == 1 else f"{nodes} emulated nodes"
    if load := document.get("load"):
        where += f", beside {load} busy process{'es' * (load > 1)}"
    page.introduction(
        document,
        f"{where}; {document['starts']} fresh starts of {document['seconds']:g} s for each model, "
        "in which the contenders' rounds alternate",
        "step: on the slowest rank, median (p10-p90) over the rounds; silent: without "
        "communication; reduce: one all_reduce of all gradients; exposed: step - silent step of "
        "the same round",
    )


def report(document: Document, page: Page) -> None:
    """Add every case, then where hccl loses, then what failed."""
    all_cases = cases(document)
    for case in all_cases:
        page.heading(case.title, level=3)
        page.table([_HEAD, *(_row(case, name) for name in case.step_ms)])
        if case.doubts:
            page.items([f"not to be trusted: {'; '.join(case.doubts)}"])
    page.heading("Where hccl loses")
    losses = [line for case in all_cases for line in case.losses()]
    page.items(losses, none="nowhere" if all_cases else "unknown")
    page.failures(document)


def _row(case: TrainingCase, name: str) -> Sequence[str]:
    step, alone = case.step(name), case.step("none")
    row = [
        CONTENDERS[name].title,
        f"{number(step.median)} ({number(step.p10)}-{number(step.p90)})",
        f"{step.median / alone.median:.2f}x",
        f"{case.speed_of_gloo(name):.2f}x",
        number(Spread.of(case.cpu_ms[name]).median),
    ]
    if CONTENDERS[name].silent is None:
        return [*row, *[""] * (len(_HEAD) - len(row))]
    reduce, exposed = Spread.of(case.reduce_ms[name]).median, case.exposed(name)
    share = case.exposed_of_gloo(name)
    return [
        *row,
        number(reduce),
        f"{exposed.median:.2f} ({exposed.p10:.2f}-{exposed.p90:.2f})",
        f"{exposed.median / reduce:.0%}",
        "" if share is None else f"{share:.2f}",
    ]
