"""The command: fresh starts of all contenders in turn, then the tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import product

from benchmarks.harness import Document, Recorded, failed, parser_of_command
from benchmarks.peers.cases import cases
from benchmarks.peers.contenders import (
    BUFFERS,
    COMMUNICATOR,
    OPS,
    PEERS,
    TORCH,
    Contender,
    Start,
    add_environments,
    at_home,
    find,
    places_of,
    program_of,
)
from benchmarks.peers.machine import pin, probe, probe_cores
from benchmarks.peers.picture import draw
from benchmarks.peers.processes import StartError
from benchmarks.peers.report import introduce, report
from hccl_py.bench.namespaces import Hosts
from hccl_py.command_line import (
    Parser,
    names_of,
    parse_numbers,
    parse_picture,
    parse_seconds,
    parse_sizes,
)

_APIS = {"communicator": COMMUNICATOR, "torch": TORCH}
_DESCRIPTION = """\
Measure hccl_py.Communicator beside MPICH, Open MPI, Intel MPI, oneCCL and UCC, and
torch.distributed on hccl beside gloo and DeepSpeed's shared memory, which only sums, on this
machine. Every contender is started afresh many times, in turns; a start measures all sizes of one
collective, in or out of place, with one kind of buffers. The MPIs and oneCCL run in environments of
their own, with mpi4py. --hosts 2 measures between two hosts: network namespaces of this machine,
joined by a veth link (needs root)."""
_EPILOG = """\
examples:
  python -m benchmarks.peers --install-into ~/peers --json peers.json
  python -m benchmarks.peers --mpich ~/m/bin/python --ranks 2 --ops all_reduce --sizes 4,64K
  python -m benchmarks.peers --install-into ~/peers --hosts 2 --ranks 2,8
  python -m benchmarks.peers --cores far --ranks 2 --install-into ~/peers
  python -m benchmarks.peers --show peers.json --markdown

columns:
  ratio      median of the best peer / median of ours; above 1 ours is faster
  copies     the same data moved by bare copies of 64 KB or more, without waiting
  sockets    the bytes that must cross between the hosts, over two plain connections
  at most    median of the best peer / median of copies or sockets: the largest ratio to expect
  of memcpy  our busbw by the speed of one thread's memcpy, measured in every round
  of sockets median of sockets / median of ours
  first      the same ratio of the first 100 calls of a size, the very first one included
  steady     our starts within 1.5 times the best of them; then the same for starts with cores of
             one kind before and after. near, far: a cache line took less, or more, than 100 ns
             between them; slow: one took 1.3 times its best time to compute, because the other or
             another program used its arithmetic units too

exit codes: 0 good, 1 a start failed or could not be made, 2 wrong arguments, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code. Ctrl-C and SIGTERM print the results so far."""
    recorded = Recorded(_parser(), introduce, report, _draw)
    given = recorded.read(argv, starts=20)
    odd = [ranks for ranks in given.ranks if ranks % given.hosts]
    if odd:
        message = f"--ranks: expected multiples of --hosts {given.hosts}, got {odd[0]}"
        recorded.parser.error(message)
    contenders, missing = ([], []) if given.show else _contenders(given)
    if given.cores and not given.show:
        try:
            pin(given.cores)
        except OSError as error:
            recorded.parser.error(f"--cores: {error}")
    hosts = Hosts() if given.hosts > 1 else None
    return recorded.carry_out(
        given,
        lambda document: _measure(given, contenders, hosts, document),
        on=hosts,
        hosts=given.hosts,
        seconds=given.seconds,
        contenders=[
            {"name": each.name, "group": each.group, "version": each.version} for each in contenders
        ],
        missing=missing,
        probes=[] if given.show else [probe()],
    )


def _measure(
    given: argparse.Namespace,
    contenders: Sequence[Contender],
    hosts: Hosts | None,
    document: Document,
) -> Iterator[str]:
    """Start every contender once for each collective, in an order that rotates each round."""
    for number in range(given.starts):
        if number:
            document["probes"].append(probe())
        first = number % len(contenders)
        kinds = given.ranks, given.ops, given.buffers, ("in", "out")
        for ranks, op, buffers, place in product(*kinds):
            if place not in places_of(op) or (op == "barrier" and buffers != BUFFERS[0]):
                continue
            sizes = (0,) if op == "barrier" else given.sizes
            start = Start(op, ranks, sizes, given.seconds, place, buffers, hosts)
            for contender in (*contenders[first:], *contenders[:first]):
                kind = "" if op == "barrier" else f" {place} place, {buffers} buffers,"
                what = f"{contender.name}, {op},{kind} {ranks} ranks, start {number + 1}"
                yield f"{what} of {given.starts}"
                where: Document = {"contender": contender.name, "op": op, "ranks": ranks}
                where |= {"place": place, "buffers": buffers}
                before = probe_cores()
                try:
                    results = contender.measure(start)
                except StartError as error:
                    failed(document, what, error)
                    continue
                where |= {"start": number, "cores": [before, probe_cores()]}
                document["results"] += [where | result for result in results]


def _contenders(given: argparse.Namespace) -> tuple[list[Contender], list[str]]:
    """Return the contenders, and a line for each that is missing."""
    found, missing = list[Contender](), list[str]()
    for group in (group for api, group in _APIS.items() if api in given.api):
        found += at_home(group, given.hosts)
        for name, title in PEERS[group].items():
            try:
                found.append(find(name, program_of(name, given)))
            except StartError as error:
                missing.append(f"without {title}: {error}")
    return found, missing


def _parser() -> Parser:
    parser = parser_of_command("benchmarks.peers", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    sizes = parse_sizes("4,16,64,256,1K,4K,16K,64K,256K,1M,4M,16M,64M")
    add("--ranks", type=parse_numbers, default=(2, 4, 8), metavar="LIST", help="ranks (2,4,8)")
    add(
        "--ops",
        type=names_of(OPS),
        default=OPS,
        metavar="LIST",
        help=", ".join(OPS),
    )
    add("--sizes", type=parse_sizes, default=sizes, metavar="LIST", help="bytes (4 to 64M)")
    add(
        "--buffers",
        type=names_of(BUFFERS),
        default=BUFFERS,
        metavar="LIST",
        help="what happens to the input before each call: kept, rewritten (both)",
    )
    add("--seconds", type=parse_seconds, default=2.0, metavar="S", help="timed in each start (2)")
    add(
        "--api",
        type=names_of(_APIS),
        default=tuple(_APIS),
        metavar="LIST",
        help="both",
    )
    add("--hosts", type=int, choices=(1, 2), default=1, help="hosts of the ranks (1)")
    add(
        "--cores",
        choices=("near", "far"),
        help="run all on two cores, those that are nearest to each other or farthest (all usable)",
    )
    add_environments(parser)
    add(
        "--plot",
        type=parse_picture,
        metavar="PNG",
        help="draw the ratios (needs matplotlib)",
    )
    return parser


def _draw(given: argparse.Namespace, document: Document) -> None:
    if given.plot is not None:
        title = f"best peer / hccl; {document['machine']['cpu']}, {document['date'][:10]}"
        draw(cases(document), title, given.plot)


if __name__ == "__main__":
    sys.exit(main())
