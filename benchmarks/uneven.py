"""Compares synthesized plans with the table's algorithms, on hosts joined by uneven links (root).

    python -m benchmarks.uneven --rates 50,100,200      links of three speeds
    python -m benchmarks.uneven --rates 100             an even network

Four namespaces act as hosts. Every pair has its own link in each direction, limited by a token
bucket. The links are measured as `hccl-bench --validate` does, plans are synthesized from the
measured matrix, and then hccl-bench measures all contenders in turns in the same processes.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import permutations
from pathlib import Path

from benchmarks.harness import parser_of_command, run_bench
from hccl_py.algorithms.custom import PLANS
from hccl_py.algorithms.plan_file import write_plans
from hccl_py.algorithms.table import names_for
from hccl_py.bench.carry_out import carry_out
from hccl_py.bench.collective.analysis.validate import Validator
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.contenders import Api, with_algorithm
from hccl_py.bench.collective.output import matrix
from hccl_py.bench.collective.ranks import Ranks
from hccl_py.bench.namespaces import Hosts
from hccl_py.command_line import parse_numbers, parse_positive
from hccl_py.lab.synthesis.network_file import read_network
from hccl_py.lab.synthesis.synthesize import SYNTHESIZED, Synthesis, synthesize

NUM_HOSTS = 4
_LINK_BYTES = 1 << 20
_PARTNERS = {(0, 1): 0, (2, 3): 0, (0, 2): 1, (1, 3): 1, (0, 3): 2, (1, 2): 2}
"""The index of each pair's rate: every host has a link of each rate."""


def uneven_hosts(hosts: Hosts, rates_mbit: Sequence[float]) -> None:
    """Give every pair of hosts its own links, so that each host has one of each rate."""
    for here, there in permutations(range(NUM_HOSTS), 2):
        at = _PARTNERS[min(here, there), max(here, there)]
        hosts.slow_down(here, there, rates_mbit[at % len(rates_mbit)])


def measure_links(hosts: Hosts, path: Path) -> None:
    """Write the matrix of links as `hccl-bench --validate --json` does."""
    (options,) = parse(_words("all_reduce"))
    with Ranks(options, [Api("communicator")], hosts) as ranks:
        found = Validator(ranks, options.nodes, _LINK_BYTES).run()
    path.write_text(json.dumps(matrix.document(found, _LINK_BYTES)))


def race(hosts: Hosts, found: Synthesis, path: Path, words: Sequence[str]) -> int:
    """Write the plans and measure them beside every algorithm of the table.

    Args:
        hosts: `NUM_HOSTS` of them.
        found: the plans.
        path: of the file for the plans.
        words: options of hccl-bench, such as --sizes.

    Returns:
        The exit code: 0, or 1 if a result was wrong.
    """
    write_plans(path, found.plans, str(found.certificate))
    print(f"{found.collective}: {found.name}, {found.certificate}", flush=True)
    names = {"plan": f"{PLANS}{path}", **{name: name for name in names_for(found.collective)}}
    contenders = {
        name: with_algorithm("communicator", f"{found.collective}={algorithm}")
        for name, algorithm in names.items()
    }
    return run_bench([*_words(found.collective), *words], dict(contenders), hosts)


def _words(collective: str) -> list[str]:
    words = f"--test {collective} -g 1 --nnodes {NUM_HOSTS} --api communicator --timeout 3600"
    return words.split()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = parser_of_command("benchmarks.uneven", __doc__ or "")
    add = parser.add_argument
    add("--rates", type=parse_numbers, default=(50, 100, 200), help="rates of the links in Mbit/s")
    add("--size", default="1M,4M,16M", help="sizes (%(default)s)")
    add("--collective", default="all_reduce", choices=SYNTHESIZED)
    add("--rounds", type=parse_positive, default=5, help="timed calls of each (5)")
    given = parser.read(argv)
    return carry_out(parser.prog, partial(_race, given))


def _race(given: argparse.Namespace) -> int:
    with Hosts(num_hosts=NUM_HOSTS) as hosts, tempfile.TemporaryDirectory() as folder:
        uneven_hosts(hosts, given.rates)
        links = Path(folder, "links.json")
        measure_links(hosts, links)
        found = synthesize(given.collective, read_network(links, separate_links=True))
        words = ["--sizes", given.size, "-n", str(given.rounds)]
        return race(hosts, found, Path(folder, "plan.json"), words)


if __name__ == "__main__":
    sys.exit(main())
