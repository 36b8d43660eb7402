"""`hccl-plan predict`: the time of algorithms on hypothetical nodes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence, Set
from pathlib import Path

from hccl_py.algorithms.loading import loaded
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.algorithms.table import names_for
from hccl_py.command_line import (
    parse_picture,
    parse_size,
    parse_sizes,
    wrapped,
)
from hccl_py.lab.plan_command.arguments import (
    NODES,
    add_costs,
    add_network,
    network_of,
    parsed_nodes,
)
from hccl_py.lab.plan_command.prediction_report import (
    Predicted,
    chart_lines,
    draw,
    replay_lines,
    row,
    table_head,
)
from hccl_py.lab.simulation.costs import RANKS_PER_NODE, Costs, costs_of
from hccl_py.lab.simulation.recorded import recorded_in
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology, changed
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import PlanError
from hccl_py.transport.errors import InvalidArgumentError

_FACTOR = 4
_COLLECTIVE, _SIZES = "all_reduce", "1M:64M"
_MANY_RANKS, _TOO_SLOW = 1024, 200.0
_CALLS_OF_BURSTS = 4
_MOST_PROVED = 128  # ranks: a second or so
_OF_A_TABLE = ("collective", "size", "plot")
EPILOG = """\
examples:
  hccl-plan predict --nodes 512x8 --preset gaudi2 --size 1M:1G --plot gaudi2.png
  hccl-plan predict --nodes 16x4 --preset cloud25 --what-if straggler=17:2ms,link=3-4:10Gbit
  hccl-plan predict --costs tuning.json --nodes 4x2 --what-if network=1Gbit,burst=125KB
  hccl-plan predict --network torus.json --preset cloud25    over links that differ
  hccl-plan predict --trace traces --nodes 32x4 --preset cloud25    a recorded job elsewhere
  hccl-plan predict --trace traces --preset cloud25 --algorithm ring    with another algorithm"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    about = f"{NODES} (one node of the preset's ranks, or those of the recorded job or plan file)"
    add("--nodes", metavar="LIST", help=about)
    add_network(parser)
    add_costs(parser, required=True)
    add("--collective", choices=COLLECTIVES, help=f"collective ({_COLLECTIVE})")
    about = "only these, with commas between them; with --trace a collective without any takes all"
    add("--algorithm", metavar="LIST", help=about)
    add("--size", type=_sizes, metavar="SIZES", help=f"sizes, such as 1M:1G or 64K,1M ({_SIZES})")
    about = "straggler=17:2ms,link=3-4:10Gbit,network=1Gbit,burst=125KB"
    add("--what-if", default="", metavar="CHANGES", help=about)
    about = "draw time and busbw as a picture too (PNG or SVG; needs matplotlib)"
    add("--plot", type=parse_picture, metavar="FILE", help=about)
    about = "predict the calls of a job's flight recorders instead"
    add("--trace", type=Path, metavar="DIR", help=about)


def run(given: argparse.Namespace) -> int:
    """Print predictions; return 0."""
    return _replay(given) if given.trace else _predict(given)


def _sizes(text: str) -> tuple[int, ...]:
    """Read `1M:1G`, each size four times the one before, or sizes with commas between them."""
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
    """Return the requested ranks; by default as many as a job or plan file has, or a node."""
    per_node = RANKS_PER_NODE.get(given.preset, 1)
    ranks = world_size or per_node
    per_node = min(per_node, ranks)
    topology = network_of(given) or Topology.even(-(-ranks // per_node), per_node)
    if given.nodes:
        topology = Topology(parsed_nodes(given.nodes))
    if topology.world_size < 2:
        raise InvalidArgumentError("--nodes: expected two ranks or more, such as 4 or 2x4")
    return changed(given.what_if, topology, costs_of(given.preset or given.costs))


def _names(given: argparse.Namespace, collectives: Set[str]) -> dict[str, list[str]]:
    """Return the requested algorithms of each collective; all of one for which none is given."""
    known = {one: list(names_for(one)) for one in collectives}
    chosen: dict[str, list[str]] = {}
    for name in given.algorithm.split(",") if given.algorithm else ():
        # A name with a colon is of a user's file, which `simulate` reads.
        owners = {loaded(name).collective} if ":" in name else set(COLLECTIVES)
        having = [one for one in sorted(owners & collectives) if ":" in name or name in known[one]]
        if not having:
            names = "; ".join(f"{one}: {', '.join(known[one])}" for one in sorted(collectives))
            raise InvalidArgumentError(f"--algorithm {name}: expected one of {names}")
        for one in having:
            chosen.setdefault(one, []).append(name)
    return known | chosen


def _predict(given: argparse.Namespace) -> int:
    own = [loaded(name) for name in (given.algorithm or "").split(",") if ":" in name]
    collective = given.collective or next((one.collective for one in own), _COLLECTIVE)
    topology, costs = _world(given, next((one.world_size for one in own), None))
    names, found = _names(given, {collective})[collective], []
    title = _world_line(given, topology)
    print(wrapped(f"# {title}"))
    _prove(collective, names, topology)
    if topology.world_size > _MANY_RANKS and not topology.is_uniform:
        print(f"# each of {topology.world_size} ranks is simulated, because not all are alike;")
        print("# this takes minutes for large sizes; --algorithm and --size reduce the work")
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
        print(wrapped(f"# {name}: {why}"))
    for name in names:
        if share := max(one.errors.get(name, 0.0) for one in found):
            about = f"off by about {share:.2%} at most, because not all tiles were run"
            print(wrapped(f"# {name}: {about}"))
    if given.plot:
        draw(found, names, title, given.plot)
        print(f"# wrote {given.plot}")
    return 0


def _prove(collective: str, names: Sequence[str], topology: Topology) -> None:
    """Prove a user's algorithms; WrongAlgorithmError: one is wrong, and so is its time."""
    nodes = topology.nodes
    while len(nodes) > 2 and count_ranks(nodes) > _MOST_PROVED:
        nodes = nodes[: len(nodes) // 2]
    for own in (loaded(name, collective) for name in names if ":" in name):
        if own.world_size is None and nodes != topology.nodes:
            print(wrapped(f"# {own} was proved for the first {count_ranks(nodes)} ranks only"))
        own.verify(topology.nodes if own.world_size else nodes, _root(own.collective))


def _root(collective: str) -> int | None:
    return 0 if COLLECTIVES[collective].rooted else None


def _each(
    collective: str, names: Sequence[str], topology: Topology, costs: Costs, size: int
) -> Predicted:
    missing = _too_slow(collective, names, topology, costs, size)
    predicted = Predicted(collective, topology.world_size, size, {}, missing, {})
    for name in names:
        if name in missing:
            continue
        try:
            what = f"{collective}={name}"
            done = simulate(what, topology, costs, size, num_calls=_num_calls(costs))
        except (InvalidArgumentError, PlanError) as error:
            missing[name] = str(error)
            continue
        predicted.times_us[name] = done.us
        if done.error_us:
            predicted.errors[name] = done.error_us / done.us
    return predicted


def _num_calls(costs: Costs) -> int:
    """Return the calls of a simulation: several use up the burst that an idle wire takes."""
    return _CALLS_OF_BURSTS if costs.scale_out.burst_bytes else 1


def _too_slow(
    collective: str, names: Sequence[str], topology: Topology, costs: Costs, size: int
) -> dict[str, str]:
    """Find algorithms that are far too slow to be simulated among many ranks that differ.

    Such a simulation takes minutes. The same among ranks that are alike, which takes a second,
    decides here.
    """
    alike = Topology(topology.nodes)
    if topology.is_uniform or not alike.is_uniform or topology.world_size <= _MANY_RANKS:
        return {}
    times = _each(collective, names, alike, costs, size).times_us
    best = min(times, key=lambda name: times[name], default="")
    return {
        name: f"left out: without --what-if {best} is {us / times[best]:.0f} times as fast"
        for name, us in times.items()
        if us > _TOO_SLOW * times[best]
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
    print(wrapped(f"# {_world_line(given, topology)}"))
    names = _names(given, {one.collective for one in recorded})
    for each, own in names.items():
        _prove(each, own, topology)
    predicted = []
    for one in recorded:
        size = one.bytes
        if COLLECTIVES[one.collective].blocks:  # blocks keep their size
            size = size // world_size * topology.world_size
        predicted.append(_each(one.collective, names[one.collective], topology, costs, size))
    for line in replay_lines(recorded, predicted):
        print(wrapped(line))
    return 0


def _world_line(given: argparse.Namespace, topology: Topology) -> str:
    source = given.preset or given.costs
    if given.network:
        return f"{topology.world_size} ranks: the network {given.network}, {source}" + (
            f", {given.what_if}" if given.what_if else ""
        )
    sizes = " and ".join(map(str, sorted({len(node) for node in topology.nodes})))
    line = f"{topology.world_size} ranks: {len(topology.nodes)} nodes of {sizes}, {source}"
    return line + (f", {given.what_if}" if given.what_if else "")
