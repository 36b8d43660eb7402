"""`hccl-plan draw`: a plan as a page, picture or timeline, with predicted and recorded times."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hccl_py.algorithms.table import ALGORITHMS
from hccl_py.command_line import parse_output, parse_picture, parse_size
from hccl_py.lab.plan_command import still
from hccl_py.lab.plan_command.arguments import (
    add_algorithm,
    add_costs,
    add_network,
    add_nodes,
    chosen,
    network_of,
)
from hccl_py.lab.plan_command.drawing import Drawing, page
from hccl_py.lab.plan_command.perfetto import timeline
from hccl_py.lab.simulation.recorded import measured
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology
from hccl_py.transport.errors import InvalidArgumentError

EPILOG = """\
examples:
  hccl-plan draw all_reduce=ring --nodes 2x4 -o ring.html
  hccl-plan draw all_reduce=ring --nodes 2x4 --preset cloud25 --size 1M -o ring.png
  hccl-plan draw mine.py:ring --preset office1 --size 64K -o ring.json    for ui.perfetto.dev"""


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


_WRITERS: dict[str, Callable[[Mapping[str, Any], Path], None]] = {
    ".html": lambda content, path: _write(page(content), path),
    ".htm": lambda content, path: _write(page(content), path),
    ".svg": lambda content, path: _write(still.svg(content), path),
    ".png": still.write_png,
    ".json": lambda content, path: _write(timeline(content), path),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add_algorithm(parser)
    add_nodes(parser)
    add_network(parser)
    add_costs(parser, required=False)
    add("--size", type=parse_size, metavar="SIZE", help="with costs: bytes of the call, such as 1M")
    add("--trace", type=Path, metavar="DIR", help="draw a call of these flight recorders over it")
    add("--call", type=int, metavar="N", help="with --trace: number of the call (the last one)")
    about = (
        "a page (plan.html); a still picture if the name ends in .svg or .png (which needs "
        "matplotlib); a timeline for ui.perfetto.dev if it ends in .json"
    )
    add(
        "-o", "--output", type=_parse_drawing, default=Path("plan.html"), metavar="FILE", help=about
    )


def _parse_drawing(text: str) -> Path:
    suffix = Path(text).suffix
    if suffix not in _WRITERS:
        valid = ", ".join(_WRITERS)
        raise argparse.ArgumentTypeError(f"expected a name that ends in {valid}; got {text!r}")
    return parse_picture(text) if suffix == ".png" else parse_output(text)


def run(given: argparse.Namespace) -> int:
    """Write the file; return 0."""
    source = given.preset or given.costs
    if given.call is not None and given.trace is None:
        raise InvalidArgumentError("--call: expected --trace with it")
    if given.size and not source:
        raise InvalidArgumentError("--size: expected --preset or --costs with it")
    if given.network and not source:
        raise InvalidArgumentError("--network: expected --preset or --costs with it")
    if source and not (given.size or given.trace):
        raise InvalidArgumentError("--preset, --costs: expected --size or --trace with it")
    algorithm, world = chosen(given)
    plans = algorithm.verify(world.nodes, world.root)
    about, call, num_bytes = f"{world}. {algorithm.cost}.", None, given.size
    if given.trace is not None:
        call = measured(given.trace, algorithm.collective, len(plans), given.call)
        num_bytes = num_bytes or call.num_bytes
        about += f" Bars: call {call.number} of {call.num_bytes} bytes as the ranks recorded it."
    simulated = None
    if source:
        is_known = (algorithm.collective, algorithm.name) in ALGORITHMS
        what = str(algorithm) if is_known else plans
        topology = network_of(given) or Topology(world.nodes)
        simulated = simulate(what, topology, source, num_bytes, root=world.root, events=True)
        links = f" over {given.network}" if given.network else ""
        about += (
            f" Times of a call of {num_bytes} bytes with {source}{links}, as hccl-plan predict has."
        )
        if call is not None:
            about += f" It took {call.end / simulated.us:.3g} times as long as predicted."
    drawing = Drawing(plans, algorithm.contract, world.nodes, simulated)
    _WRITERS[given.output.suffix](drawing.content(str(algorithm), about, call), given.output)
    print(f"{given.output}: {algorithm}, {world}")
    return 0
