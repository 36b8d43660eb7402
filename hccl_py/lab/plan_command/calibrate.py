"""`hccl-plan calibrate`: costs for simulations, from what `hccl-bench --tune` measured."""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hccl_py.algorithms.choice.tuning import Tuning, read
from hccl_py.command_line import parse_seconds
from hccl_py.lab.algorithms import nodes_of
from hccl_py.lab.simulation.costs import COSTS, Costs, LinkCosts, written
from hccl_py.lab.simulation.fitting import Sample, fit
from hccl_py.lab.simulation.topology import Topology
from hccl_py.plan.language import Nodes
from hccl_py.transport.errors import InvalidArgumentError

_COLLECTIVE = "all_reduce"
_LEAST_BYTES = 16 << 10  # smaller calls inside a node take a path that is not simulated
_NONE = LinkCosts(0.0, 0.0, 0.0)
EPILOG = """\
examples:
  hccl-bench -g 4 --tune node.json; hccl-bench -g 2 --nnodes 2 --veth 1 --tune nodes.json
  hccl-plan calibrate node.json nodes.json --out costs.json
  hccl-plan predict --costs costs.json --nodes 16x4 --what-if network=10Gbit"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    about = "files of hccl-bench --tune, for one or several layouts of the same machines"
    add("files", type=Path, nargs="+", metavar="FILE", help=about)
    add("-o", "--out", type=Path, default=Path("costs.json"), help="write this file (costs.json)")
    about = "begin the last turn of the search within this time (60 s)"
    add("--budget", type=parse_seconds, default=60.0, metavar="SECONDS", help=about)


def run(given: argparse.Namespace) -> int:
    """Fit costs and write the file; return 0."""
    found = [(path, *read(path)) for path in given.files]
    samples = _fastest(one for _, content, tuning in found for one in _samples(content, tuning))
    if not samples:
        raise InvalidArgumentError(
            f"expected measurements of {_COLLECTIVE} of {_LEAST_BYTES >> 10} KB or more, got none"
        )
    machines = {_machine(content, tuning) for _, content, tuning in found}
    if len(machines) > 1:
        raise InvalidArgumentError(
            "expected files of machines with the same cores and caches, got "
            + " and ".join(f"{cores} cores, {cache} bytes" for cores, cache in sorted(machines))
        )
    ((cores, cache_bytes),) = machines
    start = Costs(_NONE, _NONE, 0.0, cores_per_machine=cores, cache_bytes=cache_bytes)
    costs, errors = fit(samples, start, given.budget)
    median, p90 = (float(x) for x in np.percentile(np.abs(errors), (50, 90)))
    document = {
        COSTS: written(costs),
        "error": {"median": round(median, 3), "p90": round(p90, 3)},
        "from": [str(path) for path in given.files],
    }
    given.out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"# {len(samples)} measurements, off by {median:.0%} (median), {p90:.0%} (90 of 100)")
    print(json.dumps(document[COSTS], indent=2))
    print(f"# wrote {given.out}; use it with hccl-plan predict --costs {given.out}")
    return 0


def _fastest(samples: Iterable[Sample]) -> list[Sample]:
    """Keep the fastest of equal calls from several files of one layout."""
    found: dict[tuple[str, Nodes, int], Sample] = {}
    for one in samples:
        key = one.what, one.topology.nodes, one.num_bytes
        if key not in found or one.us < found[key].us:
            found[key] = one
    return list(found.values())


def _machine(content: dict[str, Any], tuning: Tuning) -> tuple[int, int]:
    """Return a machine's cores, and the bytes of its largest cache."""
    machines = content.get("machines") or [0]
    cores = round(tuning.cores_per_node * machines.count(machines[0]))
    return max(1, cores), int(content.get("cache_bytes", 0))


def _samples(content: dict[str, Any], tuning: Tuning) -> Iterator[Sample]:
    topology = Topology(nodes_of(tuning.layout), tuple(content.get("machines") or ()))
    for one in content["measurements"]:
        if one["collective"] == _COLLECTIVE and one["bytes"] >= _LEAST_BYTES:
            # The fastest round: other work on the machine only adds time.
            us = min(one.get("rounds_us") or [one["us"]])
            yield Sample(f"{_COLLECTIVE}={one['algorithm']}", topology, one["bytes"], us)
