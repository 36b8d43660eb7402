"""`hccl-plan draw`: a plan as a page, with predicted and with recorded times."""

import argparse
from pathlib import Path

from hccl_py.algorithms.choice.cost import share_of
from hccl_py.command_line import parse_size
from hccl_py.lab.plan_command.arguments import add_algorithm, add_costs, add_nodes, chosen
from hccl_py.lab.plan_command.drawing import Drawing, page
from hccl_py.lab.plan_command.svg import svg
from hccl_py.lab.simulation.costs import Costs, costs_of
from hccl_py.lab.simulation.recorded import measured
from hccl_py.plan.history import Duration, in_steps
from hccl_py.plan.language import Nodes, Op, OpKind, Plan
from hccl_py.transport.errors import InvalidArgumentError

EPILOG = ""
_MIB = 1 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add_algorithm(parser)
    add_nodes(parser)
    add_costs(parser, required=False)
    add("--size", type=parse_size, metavar="SIZE", help="with costs: bytes of the call, such as 1M")
    add("--trace", type=Path, metavar="DIR", help="draw a call of these flight recorders over it")
    add("--call", type=int, metavar="N", help="with --trace: number of the call (the last one)")
    about = "the page (plan.html); a name that ends in .svg gets a still picture"
    add("-o", "--output", type=Path, default=Path("plan.html"), metavar="FILE", help=about)


def run(given: argparse.Namespace) -> int:
    """Write the page; return 0."""
    algorithm, world = chosen(given)
    source = given.preset or given.costs
    if given.call is not None and given.trace is None:
        raise InvalidArgumentError("--call: expected --trace with it")
    is_svg = given.output.suffix == ".svg"
    if not is_svg and given.output.suffix not in (".html", ".htm"):
        raise InvalidArgumentError(f"--output: expected .html or .svg, got {given.output.name!r}")
    if is_svg and given.trace is not None:
        raise InvalidArgumentError("--output: recorded bars need a page, FILE.html")
    if given.size and not source:
        raise InvalidArgumentError("--size: expected --preset or --costs with it")
    if source and not (given.size or given.trace):
        raise InvalidArgumentError("--preset, --costs: expected --size or --trace with it")
    costs = costs_of(source) if source else None
    plans = algorithm.verify(world.nodes, world.root)
    about, call, num_bytes = f"{world}. {algorithm.cost}.", None, given.size
    if given.trace is not None:
        call = measured(given.trace, algorithm.collective, len(plans), given.call)
        num_bytes = num_bytes or call.num_bytes
        about += f" Bars: call {call.number} of {call.num_bytes} bytes as the ranks recorded it."
    duration: Duration = in_steps
    if costs is not None:
        duration = _durations(costs, num_bytes, world.nodes)
        about += f" Times of single messages of a call of {num_bytes} bytes by {source}."
    drawing = Drawing(plans, algorithm.contract, world.nodes, duration)
    content = drawing.content(str(algorithm), about, call)
    given.output.write_text(svg(content) if is_svg else page(content), encoding="utf-8")
    print(f"{given.output}: {algorithm}, {world}")
    return 0


def _durations(costs: Costs, num_bytes: int, nodes: Nodes) -> Duration:
    """Return a function: microseconds of each message and reduction of a call, each alone."""
    node_of = {rank: index for index, node in enumerate(nodes) for rank in node}

    def duration(plan: Plan, op: Op, peer: int | None) -> float:
        mib = share_of(plan, op.src or op.dst) * num_bytes / _MIB
        if peer is None:
            if op.kind is not OpKind.RECV_REDUCE:
                return costs.reduce_us_per_mib * mib * (op.kind is OpKind.COPY)
            return (costs.reduce_us_per_mib * len(op.peers) + costs.result_us_per_mib) * mib
        is_near = node_of[peer] == node_of[plan.rank]
        link = costs.scale_up if is_near else costs.scale_out
        ends_us = 2 * (link.message_us + link.us_per_mib * mib)  # the sender's and the receiver's
        return link.latency_us + ends_us + link.wire_us_per_mib * mib

    return duration
