"""The options of `hccl-bench` for argparse; `combinations` checks how they go together.

Names and help come from `option_text`; `_READS` has the type of each option, and its name in
`Options` where the two differ.
"""

import argparse
import re
from pathlib import Path
from typing import Any, NoReturn

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.command_line.option_text import DESCRIPTION, EPILOG, OPTIONS
from hccl_py.bench.collective.contenders import APIS, BASELINES, COMPRESSIONS
from hccl_py.bench.collective.oracle import ITEM_SIZES, REDUCE_OPS
from hccl_py.command_line import (
    Parser,
    list_of,
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

_TESTS = {"all2all": "all_to_all", "sendrecv": "send_recv"}
_TYPES = {"half": "float16", "float": "float32", "double": "float64"}
"""Names of nccl-tests and hccl_demo -> ours."""

_OTHER_TESTS = {"scale_validation": "give --validate to measure every pair of ranks"}
_NO_OPS = {
    name: f"--op is the reduction, as in nccl-tests: give --test {name} for the collective"
    for name in (*CASES, *_TESTS)
}
_IN_CHECKOUT = dict.fromkeys(
    ("mpich", "openmpi", "ucc"),
    "MPI and UCC run in environments of their own: python -m benchmarks.peers in a checkout",
)


class _ListTests(argparse.Action):
    """Print the names that --test takes."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print("\n".join(CASES))
        parser.exit()


def _roots(text: str) -> tuple[int, ...] | None:
    """Read ranks; None stands for all of them."""
    return None if text == "all" else list_of(parse_natural)(text)


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Read an even number of ranks: from, to, from, to."""
    ranks = list_of(parse_natural)(text)
    pairs = tuple(zip(ranks[::2], ranks[1::2], strict=False))
    if len(ranks) % 2 or any(one == other for one, other in pairs):
        raise argparse.ArgumentTypeError(
            f"expected pairs of different ranks such as 0,1,2,3, got {text!r}"
        )
    return pairs


_OPS = names_of(
    REDUCE_OPS,
    aliases={"prod": "product"},
    every=("sum", "product", "min", "max", "avg"),  # those of every element type
    elsewhere=_NO_OPS,
)
_READS: dict[str, dict[str, Any]] = {
    "--test": {
        "type": names_of(CASES, aliases=_TESTS, elsewhere=_OTHER_TESTS),
        "default": ("all_reduce",),
    },
    "--tune": {
        "dest": "tune_path",
        "type": parse_output,
        "nargs": "?",
        "const": Path("hccl-tuning.json"),
    },
    "--list_tests": {"action": _ListTests, "nargs": 0},
    "-g": {"dest": "nproc", "type": parse_positive, "default": 2},
    "--nnodes": {"type": parse_positive, "default": 1},
    "--veth": {"dest": "veth_links", "type": parse_positive},
    "--rate": {"dest": "rate_mbit", "type": parse_rate},
    "-d": {
        "dest": "dtypes",
        "type": names_of(ITEM_SIZES, aliases=_TYPES),
        "default": ("float32",),
    },
    "-o": {"type": _OPS},
    "-r": {"dest": "roots", "type": _roots, "default": (0,)},
    "--place": {"choices": ("in", "out", "both")},
    "--ranks_list": {"type": _pairs},
    "-b": {"type": parse_size},
    "-e": {"type": parse_size},
    "-f": {"type": whole(2)},
    "-i": {"type": parse_size},
    "--size_range": {"type": parse_size, "nargs": 2},
    "--size_range_inc": {"type": parse_positive},
    "--sizes": {"type": parse_sizes},
    "--api": {"choices": APIS},
    "--compare": {"type": names_of(BASELINES, elsewhere=_IN_CHECKOUT), "default": ()},
    "--compression": {"dest": "compressions", "type": names_of(COMPRESSIONS), "default": ()},
    "--algorithm": {"dest": "algorithms", "type": list_of(str), "default": ()},
    "--measure": {"choices": ("bw", "latency"), "default": "bw"},
    "-n": {"type": parse_positive},
    "-w": {"dest": "warmup", "type": parse_natural},
    "-c": {"dest": "checks", "type": parse_natural, "default": 1},
    "--no_correctness": {"dest": "checks", "action": "store_const", "const": 0},
    "-a": {"type": int, "choices": range(4), "default": 1},
    "-T": {"dest": "timeout_s", "type": parse_seconds, "default": 600.0},
    "--json": {"dest": "json_path", "type": parse_output},
    "-F": {"dest": "csv_path", "type": parse_output},
    "--plot": {"dest": "plot_path", "type": parse_picture},
}


def make_parser() -> Parser:
    """Make the parser with its groups of options."""
    parser = Parser(
        prog="hccl-bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    text = OPTIONS.format(tests=", ".join(CASES), types=", ".join((*ITEM_SIZES, *_TYPES)))
    for section in text.split("\n\n"):
        title, _, options = section.partition("\n")
        group = parser.add_argument_group(title)
        for names, about in re.findall(r"^  (\S.*)\n((?:    .*\n?)+)", options, re.MULTILINE):
            _add(group, names, " ".join(about.split()))
    return parser


def _add(group: argparse._ArgumentGroup, names: str, about: str) -> None:
    """Add an option; one without a metavar is a flag, unless it is in `_READS`."""
    words = names.split()
    reads = _READS.get(words[0], {"action": "store_true"})
    if not words[-1].startswith("-"):
        reads = reads | {"metavar": words.pop()}
    group.add_argument(*words, help=about.replace("%", "%%"), **reads)
