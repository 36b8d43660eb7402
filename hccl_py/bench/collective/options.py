"""The command line of `hccl-bench`: arguments in, one frozen `Options` out for each collective."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.contenders import APIS, BASELINES
from hccl_py.bench.collective.oracle import BITWISE_OPS, FLOAT_TYPES, ITEM_SIZES, REDUCE_OPS

_DESCRIPTION = """\
Measure collectives over ranks that this command starts on this machine.

Prints the columns of nccl-tests: size (bytes of a rank's larger buffer), count (elements of
one rank's block), type, op, time, algbw = size / time, busbw = algbw x factor (all_reduce
2(n-1)/n; reduce_scatter, all_gather, all_to_all, gather, scatter (n-1)/n; broadcast, reduce,
send_recv 1), GB = 10^9 bytes, and wrong: elements that differ from a numpy oracle in a run
of its own, which is not timed."""

_EPILOG = """\
how time is taken:
  A round is a barrier, some untimed calls, then calls back to back with no barrier between
  them. Its time is the mean over its calls and over the ranks (as in nccl-tests); the table
  shows the median over the rounds with the 10th and 90th percentile. Single calls are not
  timed: a rank may run ahead (the root of a broadcast), so single times mislead. With
  --compare or --registered the contenders' rounds alternate in the same processes. ratio is the
  contender's median over that of the first row, hccl or hccl on registered memory (above 1: the
  first is faster), its spread that of neighbouring rounds.
  Buffers hold zeros while time is taken; all_reduce, broadcast and reduce work in place.

examples:
  hccl-bench --op all_reduce --nproc 8
  hccl-bench --nproc 8 --compare gloo --sizes 4,64K,1M,64M --json all_reduce.json
  hccl-bench --nproc 4 --nnodes 2 --compare gloo     8 ranks on two emulated nodes, over TCP
  hccl-bench --nproc 4 --nnodes 2 --veth 1 --compare gloo   the nodes joined by Ethernet (root)
  hccl-bench --nproc 2 --api communicator --sizes 4  without torch.distributed
  hccl-bench --nproc 2 --registered --sizes 64M      what registered memory is worth
  hccl-bench --op all --nproc 4 --csv > all.csv      every collective, for a spreadsheet
  hccl-bench --op send_recv --nproc 2 --begin 1K --end 64M --factor 4

exit codes: 0 good, 1 wrong results or a rank failed, 2 wrong arguments"""

_SUFFIX = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_DEFAULT_RANGE = ("4", "64M", 16)


@dataclass(frozen=True)
class Options:
    """One collective to measure, how, and what to do with the result."""

    op: str
    nproc: int
    nnodes: int
    veth_links: int | None
    sizes: tuple[int, ...]
    dtype: str
    reduce_op: str
    root: int
    iters: int | None
    warmup: int | None
    timeout_s: float
    api: str
    compare: str | None
    registered: bool
    json_path: Path | None
    markdown: bool
    csv: bool
    verbose: bool

    @property
    def world_size(self) -> int:
        """Number of ranks in all."""
        return self.nproc * self.nnodes

    @property
    def contenders(self) -> tuple[str, ...]:
        """Names of what is measured; the others are compared with the first."""
        names = ("registered" if self.registered else None, "hccl", self.compare)
        return tuple(name for name in names if name)

    def node(self, rank: int) -> int:
        """The emulated node that a rank is on."""
        return rank // self.nproc


class _Parser(argparse.ArgumentParser):
    """One line for one mistake, in place of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and leave with exit code 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def parse_size(text: str) -> int:
    """Read a size in bytes: digits and an optional K, M or G, 1024-based.

    Raises:
        argparse.ArgumentTypeError: the text is no such size.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a size such as 4, 64K or 1M, got {text!r}")
    return int(match[1]) * _SUFFIX[match[2].upper()]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read a comma-separated list of sizes."""
    return tuple(parse_size(part) for part in text.split(","))


def parse_names(known: Sequence[str], text: str) -> tuple[str, ...]:
    """Read `all` or a comma-separated list of known names."""
    names = tuple(known) if text == "all" else tuple(text.split(","))
    for name in names:
        if name not in known:
            expected = ", ".join(("all", *known))
            raise argparse.ArgumentTypeError(f"expected one or more of {expected}, got {name!r}")
    return names


def parse(argv: Sequence[str] | None) -> tuple[Options, ...]:
    """Read the command line; return the options of each collective.

    Raises:
        SystemExit: help was asked for (code 0) or an argument is wrong (code 2, one line).
    """
    parser = _parser()
    given = parser.parse_args(argv)
    problem = _problem(given)
    if problem:
        parser.error(problem)
    return tuple(_options(given, op) for op in given.op)


def _options(given: argparse.Namespace, op: str) -> Options:
    return Options(
        op=op,
        nproc=given.nproc,
        nnodes=given.nnodes,
        veth_links=given.veth,
        sizes=(0,) if op == "barrier" else _sizes(given),
        dtype="uint8" if op == "barrier" else given.dtype,
        reduce_op=(given.reduce_op or "sum") if CASES[op].reduces else "none",
        root=given.root,
        iters=given.iters,
        warmup=given.warmup,
        timeout_s=given.timeout,
        api=given.api,
        compare=given.compare,
        registered=given.registered,
        json_path=given.json,
        markdown=given.markdown,
        csv=given.csv,
        verbose=given.verbose,
    )


def _sizes(given: argparse.Namespace) -> tuple[int, ...]:
    """The sizes asked for, smallest first where a range was given."""
    if given.sizes:
        return tuple(given.sizes)
    sizes, size = [], given.begin or parse_size(_DEFAULT_RANGE[0])
    while size <= (given.end or parse_size(_DEFAULT_RANGE[1])):
        sizes.append(size)
        size *= given.factor or _DEFAULT_RANGE[2]
    return tuple(sizes)


def _problem(given: argparse.Namespace) -> str | None:
    """What is wrong with arguments that argparse found well-formed, or None."""
    world_size = given.nproc * given.nnodes
    ranged = given.begin or given.end or given.factor
    named = ", ".join(given.op)
    reduces = any(CASES[op].reduces for op in given.op)
    folder = given.json.parent if given.json else Path()
    rules = (
        (given.sizes and ranged, "give --sizes or --begin/--end/--factor, not both"),
        (given.op == ("barrier",) and (given.sizes or ranged), "barrier has no sizes"),
        (not _sizes(given), "--begin must not be larger than --end"),
        (given.reduce_op and not reduces, f"--reduce-op means nothing to {named}"),
        (
            given.reduce_op in BITWISE_OPS and given.dtype in FLOAT_TYPES,
            f"--reduce-op {given.reduce_op} needs an integer --dtype, got {given.dtype}",
        ),
        (
            given.compare == "gloo" and given.reduce_op == "avg" and given.dtype not in FLOAT_TYPES,
            f"--compare gloo: gloo averages floating-point numbers only, got --dtype {given.dtype}",
        ),
        (
            not 0 <= given.root < world_size,
            f"--root must be in 0..{world_size - 1}, got {given.root}",
        ),
        (
            "send_recv" in given.op and world_size < 2,
            "send_recv needs at least 2 ranks: give --nproc 2",
        ),
        (given.veth and given.nnodes != 2, "--veth joins two nodes: give --nnodes 2"),
        (given.csv and given.markdown, "give --csv or --markdown, not both"),
        (not folder.is_dir(), f"--json: there is no folder {folder}"),
    )
    return next((message for broken, message in rules if broken), None)


def parse_positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _natural(text: str) -> int:
    """Read a whole number of at least 0."""
    return 0 if text == "0" else parse_positive(text)


def _factor(text: str) -> int:
    """Read a whole number of at least 2: with 1 a range would have no end."""
    if text == "1":
        raise argparse.ArgumentTypeError("expected a whole number of at least 2, got '1'")
    return parse_positive(text)


def parse_seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}")
    return seconds


def _parser() -> argparse.ArgumentParser:
    """The parser with its three groups of options."""
    parser = _Parser(
        prog="hccl-bench",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_what(parser.add_argument_group("what is measured"))
    _add_how(parser.add_argument_group("how it is measured"))
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_what(group: argparse._ArgumentGroup) -> None:
    """The collective, its ranks and its data."""
    add = group.add_argument
    names = ", ".join(CASES)
    add(
        "--op",
        type=partial(parse_names, tuple(CASES)),
        default=("all_reduce",),
        metavar="LIST",
        help=f"all, or any of {names}, with commas between them (all_reduce)",
    )
    add(
        "--nproc",
        "--nproc-per-node",
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
        help="emulated nodes (1): nproc x nnodes ranks; nodes share no memory and talk TCP",
    )
    add(
        "--veth",
        type=parse_positive,
        metavar="LINKS",
        help="put the two nodes into network namespaces joined by virtual Ethernet links, as two "
        "hosts: TCP then takes the way through both network stacks, not loopback; needs root",
    )
    add("--sizes", type=parse_sizes, metavar="LIST", help="bytes, such as 4,64K,1M (1024-based)")
    add("--begin", type=parse_size, metavar="SIZE", help="first size (4)")
    add("--end", type=parse_size, metavar="SIZE", help="last size (64M)")
    add("--factor", type=_factor, metavar="N", help="from one size to the next (16)")
    add("--dtype", choices=tuple(ITEM_SIZES), default="float32", help="element type (float32)")
    add("--reduce-op", choices=REDUCE_OPS, help="reduction (sum)")
    add("--root", type=_natural, default=0, metavar="RANK", help="root, where there is one (0)")


def _add_how(group: argparse._ArgumentGroup) -> None:
    """Contenders and amounts of work."""
    add = group.add_argument
    add(
        "--api",
        choices=tuple(APIS),
        default="torch",
        help="call hccl through torch.distributed (default) or through hccl_py.Communicator",
    )
    add(
        "--compare",
        choices=tuple(BASELINES),
        help="measure this one beside hccl; for MPICH, Open MPI and UCC: "
        "python -m hccl_py.bench.peers",
    )
    add(
        "--registered",
        action="store_true",
        help="measure hccl on registered memory (hccl_py.empty) beside hccl on any other",
    )
    add(
        "--iters", type=parse_positive, metavar="N", help="timed calls per size (about 1 s of them)"
    )
    add(
        "--warmup",
        type=_natural,
        metavar="N",
        help="untimed calls that open each round (a tenth of the timed ones, at least one)",
    )
    add(
        "--timeout",
        type=parse_seconds,
        default=600.0,
        metavar="S",
        help="seconds after which the whole run is ended as failed (600)",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    """What is printed and written."""
    add = group.add_argument
    add("--json", type=Path, metavar="PATH", help="write machine, versions, command and results")
    add("--markdown", action="store_true", help="print the tables as Markdown")
    add("--csv", action="store_true", help="print comma-separated values with one header line")
    add("-v", "--verbose", action="store_true", help="print rank 0's statistics at the end")
