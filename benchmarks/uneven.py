"""Races synthesized plans with the table's algorithms, on hosts joined by uneven links (root).

    python -m benchmarks.uneven --rates 50,100,200      links of three speeds
    python -m benchmarks.uneven --rates 100             an even network

Four namespaces stand for hosts. Every pair has a link of its own in each direction, limited by a
token bucket. The links are measured as `hccl-bench --validate` does, plans are synthesized from the
measured matrix, and then all contenders take turns in the same processes.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from benchmarks.harness import parser_of_command, sigterm_as_interrupt
from hccl_py.algorithms.custom import PLANS
from hccl_py.algorithms.plan_file import write_plans
from hccl_py.algorithms.table import names_for
from hccl_py.bench.collective.analysis.validate import Validator
from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.contenders import APIS, with_algorithm
from hccl_py.bench.collective.measure import count_wrong
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.oracle import Call
from hccl_py.bench.collective.output import matrix
from hccl_py.bench.collective.ranks import RankFailure, Ranks
from hccl_py.bench.namespaces import Hosts, NamespaceError
from hccl_py.command_line import parse_numbers, parse_positive, parse_sizes
from hccl_py.lab.synthesis.network_file import read_network
from hccl_py.lab.synthesis.synthesize import SYNTHESIZED, Synthesis, synthesize

NUM_HOSTS = 4
PLAN = "plan"
_LINK_BYTES = 1 << 20
_ROUND_S = 0.6
_MOST_CALLS = 20
_HOPELESS = 3.0
"""Algorithms of the table that take so many times what the best does drop out after one call."""
_PARTNERS = {(0, 1): 0, (2, 3): 0, (0, 2): 1, (1, 3): 1, (0, 3): 2, (1, 2): 2}
"""Which of the rates each pair has: every host has a link of each."""


@dataclass(frozen=True)
class Race:
    """The times of one collective at one size.

    Attributes:
        us: of each round, by contender: `plan` or an algorithm of the table.
        slow_us: of a single call of those that were far behind and took no further part.
        wrong: elements, of all contenders.
    """

    collective: str
    num_bytes: int
    us: dict[str, list[float]]
    slow_us: dict[str, float]
    wrong: int

    @property
    def best(self) -> str:
        """The fastest algorithm of the table, by the median."""
        return min(
            (name for name in self.us if name != PLAN),
            key=lambda one: statistics.median(self.us[one]),
        )

    @property
    def ratios(self) -> list[float]:
        """Time of the best algorithm by that of the plan, round by round."""
        return [one / plan for one, plan in zip(self.us[self.best], self.us[PLAN], strict=True)]


def uneven_hosts(hosts: Hosts, rates_mbit: Sequence[float]) -> None:
    """Give every pair of hosts links of its own, each host one of each rate."""
    for here, there in permutations(range(NUM_HOSTS), 2):
        at = _PARTNERS[min(here, there), max(here, there)]
        hosts.slow_down(here, there, rates_mbit[at % len(rates_mbit)])


def measure_links(hosts: Hosts, path: Path) -> None:
    """Write the matrix of links as `hccl-bench --validate --json` does."""
    options = _options()
    with Ranks(options, [APIS["communicator"]], hosts) as ranks:
        found = Validator(ranks, options.nodes, _LINK_BYTES).run()
    path.write_text(json.dumps(matrix.document(found)))


def race(
    hosts: Hosts, found: Synthesis, path: Path, sizes: Sequence[int], num_rounds: int
) -> Iterator[Race]:
    """Time the plans in a file and every algorithm of the table, in turns.

    Raises:
        RankFailure: a rank raised, died or did not answer in time.
    """
    options, collective = _options(), found.collective
    plan = with_algorithm("communicator", f"{collective}={PLANS}{path}")
    with Ranks(options, [APIS["communicator"], plan], hosts) as ranks:
        for size in sizes:
            yield _race(ranks, options, collective, size, num_rounds)


def _race(ranks: Ranks, options: Options, collective: str, size: int, num_rounds: int) -> Race:
    case, n = CASES[collective], options.world_size
    op = "sum" if case.reduces else "none"
    call = Call(n, 0, op, "float32", case.count(size, "float32", n), in_place=not case.has_root)
    ranks.ask("prepare", collective, call, what=f"preparing {size} bytes")
    first_us = {}
    wrong = 0
    for name in (PLAN, *names_for(collective)):
        contender = _choose(ranks, call, collective, name)
        what = f"checking {name} at {size} bytes"
        wrong += count_wrong(ranks.ask("check", contender, what=what), options)
        first_us[name] = _time_us(ranks, contender, 1, name)
    best_us = min(us for name, us in first_us.items() if name != PLAN)
    racing = [one for one, us in first_us.items() if one == PLAN or us < _HOPELESS * best_us]
    us: dict[str, list[float]] = {name: [] for name in racing}
    for _ in range(num_rounds):
        for name in racing:
            contender = _choose(ranks, call, collective, name)
            calls = max(1, min(_MOST_CALLS, int(_ROUND_S * 1e6 / first_us[name])))
            us[name].append(_time_us(ranks, contender, calls, name))
    slow = {name: one for name, one in first_us.items() if name not in racing}
    return Race(collective, size, us, slow, wrong)


def _choose(ranks: Ranks, call: Call, collective: str, name: str) -> int:
    """Have the first contender run an algorithm of the table; return the contender of `name`."""
    if name == PLAN:
        return 1
    what = f"choosing {name}"
    ranks.ask("call", 0, "force", f"{collective}={name}", what=what)
    ranks.ask("prepare", collective, call, what=what)
    return 0


def _time_us(ranks: Ranks, contender: int, calls: int, name: str) -> float:
    # A call before that is not timed also uses up what a link that stood still may send at once.
    took = ranks.ask("time", contender, calls, 1, what=f"measuring {name}")
    return float(np.mean(took)) * 1e6


def _options() -> Options:
    words = f"-g 1 --nnodes {NUM_HOSTS} --api communicator --timeout 3600"
    (options,) = parse(words.split())
    return options


def main() -> int:
    """Run the command; return its exit code."""
    parser = parser_of_command("benchmarks.uneven", __doc__ or "")
    parser.add_argument(
        "--rates", type=parse_numbers, default="50,100,200", help="of the links in Mbit/s"
    )
    parser.add_argument("--size", type=parse_sizes, default="1M,4M,16M")
    parser.add_argument("--collective", default="all_reduce", choices=SYNTHESIZED)
    parser.add_argument("--rounds", type=parse_positive, default=5)
    given = parser.read()
    try:
        with (
            sigterm_as_interrupt(),
            Hosts(num_hosts=NUM_HOSTS) as hosts,
            tempfile.TemporaryDirectory() as folder,
        ):
            uneven_hosts(hosts, given.rates)
            links, path = Path(folder, "links.json"), Path(folder, "plan.json")
            measure_links(hosts, links)
            found = synthesize(given.collective, read_network(links, separate_links=True))
            write_plans(path, found.plans, str(found.certificate))
            print(f"{given.collective}: {found.name}, {found.certificate}", flush=True)
            for one in race(hosts, found, path, given.size, given.rounds):
                print("\n".join(lines(one)), flush=True)
    except (RankFailure, NamespaceError) as failure:
        print(f"benchmarks.uneven: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmarks.uneven: interrupted", file=sys.stderr)
        return 130
    return 0


def lines(one: Race) -> Iterator[str]:
    """Render a race: median of each contender in ms with its spread, then the ratio."""
    for name, us in sorted(one.us.items(), key=lambda item: statistics.median(item[1])):
        middle, least, most = (pick(us) / 1000 for pick in (statistics.median, min, max))
        size = f"{one.collective} {one.num_bytes >> 10:6} KB"
        yield f"{size}  {name:20} {middle:8.1f} ms ({least:.1f} to {most:.1f})"
    for name, took in one.slow_us.items():
        yield f"{one.collective} {one.num_bytes >> 10:6} KB  {name:20} {took / 1000:8.1f} ms, once"
    ratios = one.ratios
    yield (
        f"  {one.best} / plan: {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}), wrong elements: {one.wrong}"
    )


if __name__ == "__main__":
    sys.exit(main())
