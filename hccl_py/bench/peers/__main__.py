"""The command: fresh starts of all contenders in turn, then the tables."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hccl_py.bench.collective.output.document import facts
from hccl_py.bench.command_line.parser import Parser
from hccl_py.bench.command_line.values import (
    parse_input,
    parse_numbers,
    parse_output,
    parse_picture,
    parse_positive,
    parse_seconds,
    parse_sizes,
    parser_of,
)
from hccl_py.bench.namespaces import Hosts, NamespaceError
from hccl_py.bench.peers.contenders import (
    COMMUNICATOR,
    COPIES,
    OPS,
    TORCH,
    Contender,
    Start,
    at_home,
    find,
)
from hccl_py.bench.peers.copies import may_copy
from hccl_py.bench.peers.environments import PEERS, TITLES, Environments, add_environments
from hccl_py.bench.peers.machine import pin, probe, probe_cores
from hccl_py.bench.peers.picture import draw
from hccl_py.bench.peers.processes import StartError
from hccl_py.bench.peers.report import cells, introduction, tables

_PROGRAM = "python -m hccl_py.bench.peers"
_APIS = {"communicator": COMMUNICATOR, "torch": TORCH}
_DESCRIPTION = """\
Measure hccl_py.Communicator beside MPICH, Open MPI and UCC, and torch.distributed on hccl beside
gloo, on this machine. Every contender is started afresh many times, in turns; a start measures all
sizes of one collective. The MPIs run in environments of their own, with mpi4py. --hosts 2 measures
between two hosts: network namespaces of this machine, joined by a veth link (needs root)."""
_EPILOG = """\
examples:
  python -m hccl_py.bench.peers --install-into ~/peers --json peers.json
  python -m hccl_py.bench.peers --mpich ~/m/bin/python --ranks 2 --ops all_reduce --sizes 4,64K
  python -m hccl_py.bench.peers --install-into ~/peers --hosts 2 --ranks 2,8
  python -m hccl_py.bench.peers --cores far --ranks 2 --install-into ~/peers
  python -m hccl_py.bench.peers --show peers.json --markdown

columns:
  ratio      median of the best peer / median of ours; above 1 ours is faster
  copies     the same data moved by bare copies of 64 KB or more: nothing waits for anything
  sockets    what must cross between the hosts, over two plain connections
  at most    median of the best peer / median of copies or sockets: the ratio that they leave room
             for
  of memcpy  our busbw by the speed of one thread's memcpy, measured in every round
  of sockets median of sockets / median of ours
  steady     our starts within 1.5 times the best of them; then the same of those that found the
             same cores before and after. near, far: a cache line took less, or more, than 100 ns
             between them; slow: one took 1.3 times as long to compute as at best, as the other or
             another program used its arithmetic units too

exit codes: 0 good, 1 a start failed or could not be made, 2 wrong arguments, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; after Ctrl-C or SIGTERM it prints what it has.

    Returns:
        The exit code.

    Raises:
        SystemExit: help, or wrong arguments (code 2).
    """
    argv = sys.argv[1:] if argv is None else argv
    given = _parse(argv)
    if given.show:
        try:
            document = json.loads(given.show.read_text())
            lines = [*introduction(document, given.markdown), *tables(document, given.markdown)]
        except (ValueError, KeyError, TypeError) as error:
            print(f"{_PROGRAM}: --show: {given.show} is no --json file: {error}", file=sys.stderr)
            return 2
        _print(lines)
        _draw(given.plot, document)
        return 0
    if given.cores:
        try:
            pin(given.cores)
        except OSError as error:
            print(f"{_PROGRAM}: --cores: {error}", file=sys.stderr)
            return 1
    try:
        with ExitStack() as opened:
            hosts = opened.enter_context(Hosts()) if given.hosts > 1 else None
            return _measure(given, argv, hosts)
    except NamespaceError as error:
        print(f"{_PROGRAM}: --hosts: {error}", file=sys.stderr)
        return 1


def _measure(given: argparse.Namespace, argv: Sequence[str], hosts: Hosts | None) -> int:
    """Make all starts and print the tables; return the exit code."""
    contenders, missing = _contenders(given)
    document = {
        "schema": 1,
        "command": shlex.join([*_PROGRAM.split(), *argv]),
        **facts(),
        "starts": given.starts,
        "seconds": given.seconds,
        "hosts": given.hosts,
        "contenders": [
            {"name": each.name, "group": each.group, "version": each.version} for each in contenders
        ],
        "missing": missing,
        "probes": [probe()],
        "results": [],
        "failures": [],
    }
    _print(introduction(document, given.markdown))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    interrupted = False
    try:
        for number in range(given.starts):
            if number:
                document["probes"].append(probe())
            _round(number, given, contenders, hosts, document)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        signal.signal(signal.SIGTERM, before)
    _print(tables(document, given.markdown))
    _draw(given.plot, document)
    return 130 if interrupted else 1 if document["failures"] else 0


def _round(
    number: int,
    given: argparse.Namespace,
    contenders: Sequence[Contender],
    hosts: Hosts | None,
    document: dict[str, Any],
) -> None:
    """Start every contender once for each collective; the order moves on from round to round."""
    first = number % len(contenders)
    for ranks in given.ranks:
        for op in given.ops:
            sizes = (0,) if op == "barrier" else given.sizes
            start = Start(op, ranks, sizes, given.seconds, hosts=hosts)
            for contender in (*contenders[first:], *contenders[:first]):
                what = f"{contender.name}, {op}, {ranks} ranks, start {number + 1}"
                print(f"{what} of {given.starts}", file=sys.stderr, flush=True)
                where: dict[str, Any] = {
                    "contender": contender.name,
                    "op": op,
                    "ranks": ranks,
                    "start": number,
                }
                before = probe_cores()
                try:
                    results = contender.measure(start)
                except StartError as error:
                    document["failures"].append(f"{what}: {error}")
                    print(f"{what}: {error}", file=sys.stderr, flush=True)
                else:
                    where["cores"] = [before, probe_cores()]
                    for result in results:
                        result.pop("every_us", None)  # of thousands of calls in each start
                        document["results"].append({**where, **result})
                if given.json:  # a run takes hours
                    given.json.write_text(json.dumps(document) + "\n")


def _contenders(given: argparse.Namespace) -> tuple[list[Contender], list[str]]:
    """Return who takes part, and a line for each that does not."""
    found: list[Contender] = []
    missing: list[str] = []
    environments = Environments.of(given)
    for api in given.api:
        found += at_home(_APIS[api], given.hosts)
        if _APIS[api] != COMMUNICATOR:
            continue
        if given.hosts == 1 and not may_copy():
            found = [each for each in found if each.name != COPIES]
            missing.append("without bare copies: no process may read another's memory here")
        for name in PEERS:
            try:
                found.append(find(name, environments))
            except StartError as error:
                missing.append(f"without {TITLES[name]}: {error}")
    return found, missing


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog=_PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    sizes = parse_sizes("4,1K,8K,64K,256K,1M,16M,64M")
    add("--ranks", type=parse_numbers, default=(2, 4, 8), metavar="LIST", help="ranks (2,4,8)")
    add(
        "--ops",
        type=parser_of({name: name for name in OPS}, OPS),
        default=OPS,
        metavar="LIST",
        help=", ".join(OPS),
    )
    add("--sizes", type=parse_sizes, default=sizes, metavar="LIST", help="bytes (4 to 64M)")
    add("--starts", type=parse_positive, default=20, metavar="N", help="fresh starts of each (20)")
    add("--seconds", type=parse_seconds, default=2.0, metavar="S", help="timed in each start (2)")
    add(
        "--api",
        type=parser_of({name: name for name in _APIS}, tuple(_APIS)),
        default=tuple(_APIS),
        metavar="LIST",
        help="both",
    )
    add("--hosts", type=int, choices=(1, 2), default=1, help="on how many the ranks are (1)")
    add(
        "--cores",
        choices=("near", "far"),
        help="run all on two cores, those that are nearest to each other or farthest (all usable)",
    )
    add_environments(parser)
    add("--json", type=parse_output, metavar="FILE", help="write every start's figures")
    add("--markdown", action="store_true", help="print Markdown")
    add(
        "--plot",
        type=parse_picture,
        metavar="PNG",
        help="draw the ratios (pip install hccl-py[bench])",
    )
    add("--show", type=parse_input, metavar="FILE", help="print the tables of an earlier --json")
    given = parser.read(argv)
    odd = [ranks for ranks in given.ranks if ranks % given.hosts]
    if odd:
        parser.error(f"--ranks: expected multiples of --hosts {given.hosts}, got {odd[0]}")
    return given


def _draw(path: Path | None, document: dict[str, Any]) -> None:
    if path is not None:
        title = f"best peer / hccl; {document['machine']['cpu']}, {document['date'][:10]}"
        draw(cells(document), title, path)


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
