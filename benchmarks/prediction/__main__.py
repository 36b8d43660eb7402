"""The command: measures cases and simulates them."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

from benchmarks.harness import Document, Page, Recorded, parser_of_command
from benchmarks.prediction.compare import compare, report
from benchmarks.prediction.measure import Layout, TimedCase, measure, merged
from hccl_py.command_line import (
    list_of,
    parse_input,
    parse_numbers,
    parse_positive,
    parse_rate,
    parse_sizes,
)
from hccl_py.lab.simulation.costs import PRESETS, Costs, costs_from
from hccl_py.transport.errors import InvalidArgumentError

_DESCRIPTION = """\
Measure every all_reduce algorithm on one node and between two (network namespaces joined by a veth
link; needs root), simulate the same cases, and compare. --starts measures each several times."""
_EPILOG = """\
examples:
  python -m benchmarks.prediction --json cases.json --ranks 2,4 --rates none,unlimited,1gbit
  python -m benchmarks.prediction --show cases.json --costs costs.json"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = parser_of_command("benchmarks.prediction", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("--ranks", type=parse_numbers, default=(2, 4, 8), metavar="LIST", help="ranks (2,4,8)")
    add(
        "--rates",
        type=list_of(_rate),
        default=list_of(_rate)("100mbit,1gbit,unlimited"),
        metavar="LIST",
        help="rates of the links, or none: one node (100mbit,1gbit,unlimited)",
    )
    add("--sizes", type=parse_sizes, default=parse_sizes("64K,1M,16M,64M"), metavar="LIST")
    # Long, because a short queue would drop packets, which is not simulated.
    add("--queue-ms", type=float, default=1000.0, help="queue of a slow link (%(default)g)")
    add(
        "--costs",
        type=_costs,
        default=PRESETS["cloud25"],
        metavar="FILE",
        help="file of hccl-bench --tune or hccl-plan calibrate (costs of the preset cloud25)",
    )
    add(
        "--cores",
        type=parse_positive,
        default=2,
        metavar="N",
        help="cores of the measured machine (2)",
    )

    def compared(document: Document, page: Page) -> None:
        cases = merged(TimedCase(**each) for each in document["results"])
        report(list(compare(cases, given.costs, given.cores)), page)

    recorded = Recorded(parser, lambda document, page: page.introduction(document), compared)
    given = recorded.read(argv, starts=1)
    return recorded.carry_out(given, partial(_measure, given))


def _measure(given: argparse.Namespace, document: Document) -> Iterator[str]:
    for start, ranks, layout in product(range(given.starts), given.ranks, given.rates):
        place = layout(ranks)
        yield f"start {start + 1} of {given.starts}, {place.nnodes} x {place.nproc} ranks"
        for case in measure(place, given.sizes, given.queue_ms):
            document["results"].append(case._asdict())


def _costs(text: str) -> Costs:
    try:
        return costs_from(parse_input(text))
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _rate(text: str) -> Callable[[int], Layout]:
    """Read a rate, `unlimited` or `none`; return a function from ranks to a layout."""
    if text == "none":
        return lambda ranks: Layout(1, ranks, None)
    rate_mbit = None if text == "unlimited" else parse_rate(text)
    return lambda ranks: Layout(2, ranks // 2, rate_mbit)


if __name__ == "__main__":
    sys.exit(main())
