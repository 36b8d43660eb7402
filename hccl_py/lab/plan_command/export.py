"""`hccl-plan export`: plans, or a recorded job, for other programs."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from hccl_py.algorithms.plan_file import write_plans
from hccl_py.algorithms.table import names_for, plans_for
from hccl_py.command_line import parse_output, parse_size
from hccl_py.lab.interchange import msccl, mscclpp_file
from hccl_py.lab.interchange.schedule import Schedule, chakra, goal
from hccl_py.lab.plan_command.arguments import add_costs, add_nodes, chosen, parsed_nodes
from hccl_py.lab.simulation.costs import Costs, costs_of
from hccl_py.lab.simulation.recorded import calls_by_rank
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Plan
from hccl_py.transport.errors import InvalidArgumentError

EPILOG = """\
examples:
  hccl-plan export mine.py:ring --nodes 4 -o ring.json           a plan file
  hccl-plan export all_reduce=ring --nodes 8 -o ring.xml         MSCCL
  hccl-plan export all_reduce=ring --nodes 8 -o ring.mscclpp.json        MSCCL++
  hccl-plan export all_reduce=ring --nodes 2x4 --size 1M -o ring.goal    LogGOPSim, ATLAHS
  hccl-plan export all_reduce=ring --nodes 2x4 --size 1M -o ring.et      ASTRA-sim, ring.0.et and on
  hccl-plan export --trace traces -o job.et                      the calls of a recorded job"""

_MSCCLPP = ".mscclpp.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    about = "all_reduce=ring of the table, mine.py:ring of your own, or plan:FILE, plans in a file"
    add("algorithm", nargs="?", help=about)
    add_nodes(parser)
    add_costs(parser, required=False)
    add("--size", type=parse_size, metavar="SIZE", help="for .goal and .et: bytes of the call")
    add("--trace", type=Path, metavar="DIR", help="the calls in these flight recorders instead")
    about = (
        ".json: a plan file; .mscclpp.json: MSCCL++; .xml: MSCCL; .goal: GOAL; .et: Chakra traces, "
        "a file for each rank"
    )
    add("-o", "--output", type=parse_output, required=True, metavar="FILE", help=about)


def run(given: argparse.Namespace) -> int:
    """Write the file; return 0."""
    suffix = given.output.suffix
    if suffix not in (".json", ".xml", *_SCHEDULES):
        raise InvalidArgumentError(f"--output: expected .json, .xml, .goal or .et, got {suffix!r}")
    if (given.algorithm is None) == (given.trace is None):
        raise InvalidArgumentError("expected an algorithm or --trace, one of them")
    if suffix in _SCHEDULES:
        if (given.size is None) == (given.trace is None):
            raise InvalidArgumentError(
                f"{suffix}: expected --size with an algorithm, and only then"
            )
        made = _of_job(given) if given.trace else _of_plan(given)
        _SCHEDULES[suffix](made, given.output)
        return 0
    if given.trace is not None:
        raise InvalidArgumentError("--trace: expected an --output of .goal or .et")
    algorithm, world = chosen(given)
    roots = range(len(sum(world.nodes, ()))) if COLLECTIVES[algorithm.collective].rooted else [None]
    is_plan_file = suffix == ".json" and not given.output.name.endswith(_MSCCLPP)
    if is_plan_file:
        plans = {root: algorithm.verify(world.nodes, root) for root in roots}
        equal = algorithm.entry.equal_blocks
        write_plans(given.output, plans, f"{algorithm}, {algorithm.cost}", equal_blocks=equal)
    else:
        written = msccl.written if suffix == ".xml" else mscclpp_file.written
        text = written(algorithm.verify(world.nodes, world.root))
        given.output.write_text(text, encoding="utf-8")
    print(f"{given.output}: {algorithm}, {world}")
    return 0


def _write_goal(schedules: Sequence[Schedule], path: Path) -> None:
    path.write_text(goal(schedules), encoding="utf-8")
    print(f"{path}: {len(schedules)} ranks")


def _write_chakra(schedules: Sequence[Schedule], path: Path) -> None:
    for one in schedules:
        path.with_suffix(f".{one.rank}.et").write_bytes(chakra(one))
    print(f"{path.with_suffix('.0.et')} and on: {len(schedules)} ranks")


_SCHEDULES: dict[str, Callable[[Sequence[Schedule], Path], None]] = {
    ".goal": _write_goal,
    ".et": _write_chakra,
}


def _costs(given: argparse.Namespace) -> Costs | None:
    source = given.preset or given.costs
    return costs_of(source) if source else None


def _of_plan(given: argparse.Namespace) -> list[Schedule]:
    algorithm, world = chosen(given)
    plans, costs = algorithm.verify(world.nodes, world.root), _costs(given)
    schedules = [Schedule(plan.rank) for plan in plans]
    for plan, schedule in zip(plans, schedules, strict=True):
        schedule.run(plan, given.size, costs.reduce_us_per_mib if costs else 0.0)
    return schedules


def _of_job(given: argparse.Namespace) -> list[Schedule]:
    """Return a job's calls and the time between them; for GOAL each as its fastest plan."""
    ranks, schedules = calls_by_rank(given.trace), list[Schedule]()
    nodes = parsed_nodes(given.nodes or str(len(ranks)))
    costs = _costs(given) or costs_of("cloud25")
    known: dict[tuple[str, int], tuple[Plan, ...]] = {}
    for rank, calls in ranks.items():
        schedule, until_ns = Schedule(rank), calls[0].began_ns
        for call in calls:
            schedule.wait((call.began_ns - until_ns) / 1e3)
            until_ns = call.ended_ns
            if given.output.suffix == ".et":
                schedule.call(call.collective, call.num_bytes)
                continue
            key = call.collective, call.num_bytes
            if key not in known:
                root = 0 if COLLECTIVES[call.collective].rooted else None
                size = max(4, call.num_bytes)
                name = min(
                    names_for(call.collective),
                    key=lambda one: simulate(f"{key[0]}={one}", Topology(nodes), costs, size).us,
                )
                known[key] = plans_for(call.collective, name, nodes, root)
            schedule.run(known[key][rank], call.num_bytes, costs.reduce_us_per_mib)
        schedules.append(schedule)
    return schedules
