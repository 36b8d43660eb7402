"""The options of `hccl-bench` for argparse; `combinations` checks how they go together.

`read` makes one `Options` for each case of what this parser returns.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.command_line.help_text import DESCRIPTION, EPILOG
from hccl_py.bench.collective.command_line.vocabulary import (
    ALL_REDUCTIONS,
    COLLECTIVES,
    DATA_TYPES,
    IN_CHECKOUT,
    MEANINGLESS,
    NO_COLLECTIVES,
    NO_REDUCTIONS,
    REDUCTIONS,
)
from hccl_py.bench.collective.contenders import APIS, BASELINES, COMPRESSIONS
from hccl_py.bench.collective.oracle import ITEM_SIZES, REDUCE_OPS
from hccl_py.command_line import (
    Parser,
    names_of,
    parse_natural,
    parse_output,
    parse_picture,
    parse_positive,
    parse_rate,
    parse_seconds,
    parse_size,
    parse_sizes,
    whole,
)


class _Refuse(argparse.Action):
    """Explain what to give instead of an option that means nothing here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        parser.error(f"{self.option_strings[-1]}: {self.const}")


class _ListTests(argparse.Action):
    """Print the names that --test takes."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print("\n".join(CASES))
        parser.exit()


def _root(text: str) -> tuple[int, ...] | None:
    """Read ranks; None stands for all of them."""
    return None if text == "all" else tuple(parse_natural(part) for part in text.split(","))


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Read an even number of ranks: from, to, from, to."""
    ranks = [parse_natural(part) for part in text.split(",")]
    pairs = tuple(zip(ranks[::2], ranks[1::2], strict=False))
    if len(ranks) % 2 or any(one == other for one, other in pairs):
        raise argparse.ArgumentTypeError(
            f"expected pairs of different ranks such as 0,1,2,3, got {text!r}"
        )
    return pairs


def make_parser() -> Parser:
    """Make the parser with its groups of options."""
    parser = Parser(
        prog="hccl-bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(parser.add_argument_group("what is measured"))
    _add_sizes(parser.add_argument_group("sizes"))
    _add_how(parser.add_argument_group("how it is measured"))
    _add_output(parser.add_argument_group("output"))
    for names, instead in MEANINGLESS.items():
        parser.add_argument(
            *names, action=_Refuse, const=instead, nargs="?", help=argparse.SUPPRESS
        )
    return parser


def _add_what(group: argparse._ArgumentGroup) -> None:
    """The collective, its ranks and its data."""
    add = group.add_argument
    add(
        "--test",
        type=names_of(CASES, aliases=COLLECTIVES, elsewhere=NO_COLLECTIVES),
        default=("all_reduce",),
        metavar="LIST",
        help=f"all, or any of {', '.join(CASES)}, with commas between them (all_reduce)",
    )
    add(
        "--validate",
        action="store_true",
        help="measure every pair of ranks instead, show the matrix, and exit with 1 and the names "
        "of links below 95 %% of the median of their class (inside a node, between nodes)",
    )
    add(
        "--tune",
        dest="tune_path",
        type=parse_output,
        nargs="?",
        const=Path("hccl-tuning.json"),
        metavar="FILE",
        help="measure every algorithm instead, in less than 60 s, and write FILE "
        "(hccl-tuning.json), which HCCL_TUNING=FILE makes communicators choose by; also as a "
        "program under hccl-launch",
    )
    add(
        "--tune_check",
        action="store_true",
        help="with it: measure again at twice the sizes, and compare chosen with best",
    )
    add("--list_tests", action=_ListTests, nargs=0, help="print these names and leave")
    add(
        *("-g", "--ngpus", "--nproc", "--nproc-per-node", "--ranks_per_node"),
        dest="nproc",
        type=parse_positive,
        default=2,
        metavar="N",
        help="ranks on each node (2)",
    )
    add(
        "--nnodes",
        type=parse_positive,
        default=1,
        metavar="N",
        help="emulated nodes (1): -g x nnodes ranks; nodes share no memory and talk TCP",
    )
    add(
        "--veth",
        dest="veth_links",
        type=parse_positive,
        metavar="LINKS",
        help="put the two nodes into network namespaces joined by virtual Ethernet links, as two "
        "hosts: TCP then takes the way through both network stacks, not loopback; needs root",
    )
    add(
        "--rate",
        dest="rate_mbit",
        type=parse_rate,
        metavar="RATE",
        help="limit each link of --veth in both directions, e.g. 1gbit or 100mbit (tc's tbf)",
    )
    add(
        *("-d", "--datatype", "--data_type"),
        dest="dtypes",
        type=names_of(ITEM_SIZES, aliases=DATA_TYPES),
        default=("float32",),
        metavar="LIST",
        help=f"element type, all or any of {', '.join((*ITEM_SIZES, *DATA_TYPES))} (float)",
    )
    add(
        *("-o", "--op", "--reduction_op"),
        type=names_of(
            REDUCE_OPS, aliases=REDUCTIONS, every=ALL_REDUCTIONS, elsewhere=NO_REDUCTIONS
        ),
        metavar="LIST",
        help="reduction, all or any of sum, prod, min, max, avg, band, bor, bxor (sum)",
    )
    add(
        *("-r", "--root", "--test_root"),
        dest="roots",
        type=_root,
        default=(0,),
        metavar="LIST",
        help="root, where there is one: ranks, or all (0)",
    )
    add(
        "--place",
        choices=("in", "out", "both"),
        help="one buffer for input and output, one for each, or first the one and then the other "
        "(in for all_reduce, broadcast and reduce, out for the rest, as torch calls them)",
    )
    add(
        "--ranks_list",
        type=_pairs,
        metavar="A,B,...",
        help="send_recv and ping_pong: from rank A to B, and so on in pairs (send_recv: from each "
        "rank to the next; ping_pong: 0,1,2,3 and so on)",
    )


def _add_sizes(group: argparse._ArgumentGroup) -> None:
    """A range of sizes or a list; all sizes are 1024-based."""
    add = group.add_argument
    add("-b", "--minbytes", type=parse_size, metavar="SIZE", help="first size, such as 64K (4)")
    add("-e", "--maxbytes", type=parse_size, metavar="SIZE", help="last size (64M)")
    add("-f", "--stepfactor", type=whole(2), metavar="N", help="from one size to the next (16)")
    add("-i", "--stepbytes", type=parse_size, metavar="SIZE", help="add this to the size instead")
    add("--size_range", nargs=2, type=parse_size, metavar=("MIN", "MAX"), help="-b MIN -e MAX -f 2")
    add(
        "--size_range_inc",
        type=parse_positive,
        metavar="M",
        help="with it: multiply by 2^M instead (1)",
    )
    add("--sizes", "--size", type=parse_sizes, metavar="LIST", help="these, such as 4,64K,1M")


def _add_how(group: argparse._ArgumentGroup) -> None:
    """Contenders and amounts of work."""
    add = group.add_argument
    add(
        "--api",
        choices=APIS,
        help="call hccl through torch.distributed (default) or through hccl_py.Communicator",
    )
    add(
        "--compare",
        type=names_of(BASELINES, elsewhere=IN_CHECKOUT),
        default=(),
        metavar="LIST",
        help="measure gloo beside hccl, in turns in the same processes (MPICH, Open MPI and UCC: "
        "python -m benchmarks.peers in a checkout)",
    )
    add(
        "--compression",
        dest="compressions",
        type=names_of(COMPRESSIONS),
        default=(),
        metavar="LIST",
        help="measure hccl with this compression between nodes beside hccl: bf16, int8 or both",
    )
    add(
        "--reproducible",
        action="store_true",
        help="measure hccl with HCCL_REPRODUCIBLE=1 beside hccl; implies --api communicator "
        "(docs/api/reproducible.md)",
    )
    add(
        "--algorithm",
        dest="algorithms",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="FILE:FUNCTION",
        help="measure hccl with this algorithm of your own beside hccl "
        "(docs/internals/algorithms.md); several with commas between them",
    )
    add(
        "--registered",
        action="store_true",
        help="measure hccl on registered memory (hccl_py.empty) beside hccl on any other",
    )
    add(
        "--measure",
        choices=("bw", "latency"),
        default="bw",
        help="bw: calls back to back (default); latency: a barrier before each call, the time of "
        "a call is that of its slowest rank",
    )
    add(
        "--profile",
        action="store_true",
        help="below each size, where the time of a call goes: late ranks, copy, reduce, wire, data "
        "in transit, Python; implies --api communicator and slows small calls down a little",
    )
    add(
        *("-n", "--iters", "--loop"),
        type=parse_positive,
        metavar="N",
        help="timed calls per size (about 1 s of them)",
    )
    add(
        *("-w", "--warmup_iters"),
        dest="warmup",
        type=parse_natural,
        metavar="N",
        help="untimed calls that open each round (a tenth of the timed ones, at least one)",
    )
    add(
        *("-c", "--check"),
        dest="checks",
        type=parse_natural,
        default=1,
        metavar="N",
        help="checked calls per size, 0 for none (1)",
    )
    add("--no_correctness", dest="checks", action="store_const", const=0, help="as -c 0")
    add(
        *("-a", "--average"),
        type=int,
        choices=range(4),
        default=1,
        help="time of a round: 0 of rank 0, 1 mean over the ranks (default), 2 least, 3 most",
    )
    add(
        *("-T", "--timeout"),
        dest="timeout_s",
        type=parse_seconds,
        default=600.0,
        metavar="S",
        help="seconds after which the whole run is ended as failed (600)",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    """What is printed and written."""
    add = group.add_argument
    add(
        "--json",
        dest="json_path",
        type=parse_output,
        metavar="PATH",
        help="write machine, versions, command and results",
    )
    add("--markdown", action="store_true", help="print the tables as Markdown")
    add("--csv", action="store_true", help="print comma-separated values with one header line")
    add(
        *("-F", "--output_file", "--result_csv"),
        dest="csv_path",
        type=parse_output,
        metavar="PATH",
        help="write these to a file as well",
    )
    add(
        "--plot",
        dest="plot_path",
        type=parse_picture,
        metavar="PNG",
        help="draw time and busbw against size",
    )
    add("-v", "--verbose", action="store_true", help="print rank 0's statistics at the end")
