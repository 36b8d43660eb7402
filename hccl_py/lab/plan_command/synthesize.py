"""`hccl-plan synthesize`: plans for a network with uneven links, compared with its bound."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from hccl_py.algorithms.custom import PLANS
from hccl_py.algorithms.plan_file import write_plans
from hccl_py.command_line import parse_natural, wrapped
from hccl_py.lab.synthesis.network_file import read_network
from hccl_py.lab.synthesis.synthesize import MOST_CHUNKS, SYNTHESIZED, Synthesis, synthesize
from hccl_py.transport.errors import InvalidArgumentError

_MOST_SHOWN = 3
EPILOG = """\
examples:
  hccl-launch --hosts a,b,c --no-python hccl-bench --validate --json links.json
  hccl-plan synthesize links.json
  hccl-plan synthesize network.json --collective all_reduce --out plan.json
  HCCL_ALGORITHM=all_reduce=plan:plan.json hccl-launch ...

a topology file:
  {"links": [{"between": [0, 1], "mbit": 50}, {"from": 2, "to": "switch", "mbit": 200}, ...]}"""


def run(given: argparse.Namespace) -> int:
    """Make plans and write them; return 0."""
    if given.out is not None and len(given.collective) > 1:
        raise InvalidArgumentError("--out: expected one --collective with it")
    network = read_network(given.file, separate_links=given.separate_links)
    if idle := set(network.kbit_per_s) - set(network.taken.kbit_per_s):
        links = ", ".join(map(network.described, sorted(idle)))
        print(f"links that no message takes, as none leads over them or others are faster: {links}")
    for collective in given.collective:
        found = synthesize(collective, network, given.chunks)
        path = given.out or Path(f"{collective}.json")
        write_plans(path, found.plans, f"{found.name}, {found.certificate}")
        print("\n".join(map(wrapped, _lines(found, path))), flush=True)
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    about = "a topology, or the links that hccl-bench --validate --json measured"
    add("file", type=Path, metavar="FILE", help=about)
    about = f"collectives, with commas between them ({','.join(SYNTHESIZED)})"
    add("--collective", type=_collectives, default=SYNTHESIZED, metavar="LIST", help=about)
    add("-o", "--out", type=Path, metavar="FILE", help="write this file (COLLECTIVE.json)")
    about = "measured links share no network card (a topology file has its own switches)"
    add("--separate-links", action="store_true", help=about)
    about = f"cut the data, or each block, into at most this many chunks ({MOST_CHUNKS})"
    add("--chunks", type=parse_natural, default=MOST_CHUNKS, metavar="N", help=about)


def _collectives(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if wrong := [name for name in names if name not in SYNTHESIZED]:
        expected = f"expected some of {', '.join(SYNTHESIZED)}"
        raise argparse.ArgumentTypeError(f"{expected}; got {', '.join(wrong)}")
    return names


def _lines(found: Synthesis, path: Path) -> Iterator[str]:
    root = "" if found.root is None else f" from root {found.root}, the worst,"
    trees = (
        f"{found.num_chunks} trees" if found.name == "packed_trees" else f"the table's {found.name}"
    )
    share = f"{found.certificate.share:.1%} of the bound"
    yield f"{path}: {found.collective} by {trees}{root} reaches {share}"
    yield f"  {found.certificate.rates}"
    yield f"  bottleneck: {found.certificate.bound.bottleneck}"
    rivals = ", ".join(f"{name} {one.share:.1%}" for name, one in found.table[:_MOST_SHOWN])
    yield f"  algorithms of the table: {rivals or 'none fits these links'}"
    yield f"  run it with HCCL_ALGORITHM={found.collective}={PLANS}{path}"
