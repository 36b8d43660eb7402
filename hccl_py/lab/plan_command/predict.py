"""`hccl-plan predict`: what algorithms would take on nodes that nobody has to own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence, Set
from pathlib import Path

from hccl_py.algorithms.loading import loaded
from hccl_py.algorithms.table import names_for
from hccl_py.command_line import parse_picture, parse_positive, parse_size, parse_sizes
from hccl_py.lab.plan_command.prediction_report import (
    Predicted,
    draw,
    replay_lines,
    row,
    table_head,
)
from hccl_py.lab.plan_command.text_chart import chart_lines
from hccl_py.lab.simulation.costs import Costs, costs_from
from hccl_py.lab.simulation.presets import PRESETS, RANKS_PER_NODE
from hccl_py.lab.simulation.recorded import recorded_in
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology
from hccl_py.lab.simulation.what_if import changed
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import PlanError
from hccl_py.transport.errors import InvalidArgumentError

ABOUT = "Predict the time of collectives by running their plans in virtual time."
_FACTOR = 4
_COLLECTIVE, _SIZES = "all_reduce", "1M:64M"
_MANY_RANKS, _HOPELESS = 1024, 200.0
_OF_A_TABLE = ("collective", "size", "plot")
EPILOG = """\
examples:
  hccl-plan predict --nodes 512 --preset gaudi2 --size 1M:1G --plot gaudi2.png
  hccl-plan predict --nodes 16 --preset cloud25 --what-if straggler=17:2ms,link=3-4:10Gbit
  hccl-plan predict --costs tuning.json --nodes 4 --ranks-per-node 2 --what-if network=1Gbit
  hccl-plan predict --trace traces --nodes 32 --preset cloud25    a recorded job elsewhere
  hccl-plan predict --trace traces --preset cloud25 --algorithm ring    with another algorithm"""


def run(given: argparse.Namespace) -> int:
    """Print predictions; return 0."""
    return _replay(given) if given.trace else _predict(given)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--nodes", type=parse_positive, metavar="N", help="number of nodes (1)")
    add(
        "--ranks-per-node",
        type=parse_positive,
        metavar="N",
        help="ranks on each (as the preset has them, or 1)",
    )
    costs = parser.add_mutually_exclusive_group(required=True)
    costs.add_argument("--preset", choices=PRESETS, help="costs of a well-known machine")
    costs.add_argument(
        "--costs",
        type=Path,
        metavar="FILE",
        help="what hccl-plan calibrate or hccl-bench --tune wrote",
    )
    add("--collective", choices=COLLECTIVES, help=f"({_COLLECTIVE})")
    about = "only these, with commas between them; with --trace collectives that have none take all"
    add("--algorithm", metavar="LIST", help=about)
    add("--size", type=_sizes, metavar="SIZES", help=f"1M:1G or 64K,1M ({_SIZES})")
    add(
        "--what-if",
        default="",
        metavar="CHANGES",
        help="straggler=17:2ms,link=3-4:10Gbit,network=1Gbit",
    )
    add(
        "--plot",
        type=parse_picture,
        metavar="FILE",
        help="draw time and busbw as a picture too (PNG or SVG; needs matplotlib)",
    )
    add(
        "--trace",
        type=Path,
        metavar="DIR",
        help="predict the calls of a job's flight recorders instead",
    )


def _sizes(text: str) -> tuple[int, ...]:
    """Read `1M:1G`, in steps of a factor of four, or sizes with commas between them."""
    if ":" not in text:
        return parse_sizes(text)
    first, last = (parse_size(part) for part in text.split(":", 1))
    if first > last:
        raise argparse.ArgumentTypeError(f"expected the smaller size first, got {text}")
    sizes = []
    while first < last:
        sizes.append(first)
        first *= _FACTOR
    return (*sizes, last)


def _world(given: argparse.Namespace, world_size: int | None) -> tuple[Topology, Costs]:
    """Return the world that is asked for, by default on one node, or of a job's size."""
    per_node = given.ranks_per_node or RANKS_PER_NODE.get(given.preset, 1)
    if given.nodes is None and world_size is not None:
        per_node = min(per_node, world_size)
        given.nodes = -(-world_size // per_node)
    nodes = 1 if given.nodes is None else given.nodes
    if nodes * per_node < 2:
        raise InvalidArgumentError("expected two ranks or more: give --nodes or --ranks-per-node")
    costs = PRESETS[given.preset] if given.preset else costs_from(given.costs)
    return changed(given.what_if, Topology.even(nodes, per_node), costs)


def _names(given: argparse.Namespace, collective: str) -> list[str]:
    known = names_for(collective)
    chosen = given.algorithm.split(",") if given.algorithm else known
    # A name with a colon is of a user's file, which `simulate` reads.
    if wrong := {name for name in chosen if ":" not in name} - set(known):
        raise InvalidArgumentError(
            f"--algorithm {', '.join(sorted(wrong))}: {collective} has {', '.join(known)}"
        )
    return list(chosen)


def _names_by_collective(given: argparse.Namespace, collectives: Set[str]) -> dict[str, list[str]]:
    """Return the algorithms of each recorded collective: those asked for, or all it has."""
    known = {one: list(names_for(one)) for one in collectives}
    chosen: dict[str, list[str]] = {}
    for name in given.algorithm.split(",") if given.algorithm else ():
        owners = {loaded(name).collective} if ":" in name else set(COLLECTIVES)
        having = [one for one in sorted(owners & collectives) if ":" in name or name in known[one]]
        if not having:
            names = "; ".join(f"{one}: {', '.join(known[one])}" for one in sorted(collectives))
            raise InvalidArgumentError(f"--algorithm {name}: the recorded calls have {names}")
        for one in having:
            chosen.setdefault(one, []).append(name)
    return known | chosen


def _predict(given: argparse.Namespace) -> int:
    topology, costs = _world(given, None)
    collective = given.collective or _COLLECTIVE
    names, found = _names(given, collective), []
    print(_world_line(given, topology))
    if topology.world_size > _MANY_RANKS and not topology.is_uniform:
        print(f"# each of {topology.world_size} ranks is simulated, for not all are alike: minutes")
        print("# for a large size; --algorithm and --size choose less")
    print(table_head(names), flush=True)
    for size in given.size or _sizes(_SIZES):
        predicted = _each(collective, names, topology, costs, size)
        if not predicted.times_us:
            raise InvalidArgumentError("; ".join(sorted(set(predicted.missing.values()))))
        print(row(predicted, names), flush=True)
        found.append(predicted)
    for line in chart_lines(found, names):
        print(line)
    for name, why in found[-1].missing.items():
        print(f"# {name}: {why}")
    for name in names:
        if share := max(one.errors.get(name, 0.0) for one in found):
            print(f"# {name}: off by about {share:.2%} at most, as not all tiles were run")
    if given.plot:
        title = _world_line(given, topology).lstrip("# ")
        draw(found, names, title, given.plot)
        print(f"# wrote {given.plot}")
    return 0


def _each(
    collective: str, names: Sequence[str], topology: Topology, costs: Costs, size: int
) -> Predicted:
    times, errors = {}, {}
    missing = _hopeless(collective, names, topology, costs, size)
    for name in names:
        if name in missing:
            continue
        try:
            done = simulate(f"{collective}={name}", topology, costs, size)
        except (InvalidArgumentError, PlanError) as error:
            missing[name] = str(error)
            continue
        times[name] = done.us
        if done.error_us:
            errors[name] = done.error_us / done.us
    return Predicted(collective, topology.world_size, size, times, missing, errors)


def _hopeless(
    collective: str, names: Sequence[str], topology: Topology, costs: Costs, size: int
) -> dict[str, str]:
    """Find algorithms far behind in a large world, which ranks that differ would run for minutes.

    Where all nodes are alike each takes a second.
    """
    alike = Topology(topology.nodes)
    if topology.is_uniform or not alike.is_uniform or topology.world_size <= _MANY_RANKS:
        return {}
    times = _each(collective, names, alike, costs, size).times_us
    best = min(times, key=lambda name: times[name], default="")
    return {
        name: f"left out, for without --what-if {best} is {us / times[best]:.0f} times as fast"
        for name, us in times.items()
        if us > _HOPELESS * times[best]
    }


def _replay(given: argparse.Namespace) -> int:
    for option in _OF_A_TABLE:
        if getattr(given, option) is not None:
            raise InvalidArgumentError(
                f"--trace predicts the calls of a job, of all sizes: leave --{option} out"
            )
    world_size, recorded = recorded_in(given.trace)
    topology, costs = _world(given, world_size)
    print(f"# {given.trace}: a job of {world_size} ranks")
    print(_world_line(given, topology))
    names = _names_by_collective(given, {one.collective for one in recorded})
    predicted = []
    for one in recorded:
        size = one.bytes
        if COLLECTIVES[one.collective].blocks:  # blocks of the size that they had
            size = size // world_size * topology.world_size
        predicted.append(_each(one.collective, names[one.collective], topology, costs, size))
    for line in replay_lines(recorded, predicted):
        print(line)
    return 0


def _world_line(given: argparse.Namespace, topology: Topology) -> str:
    source = given.preset or given.costs
    per_node = len(topology.nodes[0])
    line = f"# {topology.world_size} ranks: {len(topology.nodes)} nodes of {per_node}, {source}"
    return line + (f", {given.what_if}" if given.what_if else "")
