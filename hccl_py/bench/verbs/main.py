"""The command `hccl-perftest`: prints what ib_write_bw and ib_send_lat print, over any provider.

`hccl-perftest` is the server, `hccl-perftest HOST` the client, which has the options;
`hccl-perftest --local` starts both. `end.py` is one end, `report.py` the table.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from hccl_py.bench.verbs.devices import device_lines
from hccl_py.bench.verbs.end import End, Exchange, Setup
from hccl_py.bench.verbs.link import Link, accept, dial
from hccl_py.bench.verbs.report import bandwidth_row, header, latency_row
from hccl_py.command_line import Parser, printable, until_reader_ends, whole
from hccl_py.transport.errors import BootstrapError, HcclError
from hccl_py.transport.network.identity import Identity
from hccl_py.transport.network.secret import read_secret
from hccl_py.transport.network.system_calls import require_system_calls, usable_cores

_DESCRIPTION = """
Measure the bandwidth or the latency of one queue pair, as ib_write_bw and ib_send_lat do.
Run hccl-perftest on one host and hccl-perftest HOST on the other, or hccl-perftest --local for both
ends on this host. The two ends need the same HCCL_SECRET. Every byte that arrives is checked.
"""
_PORT = 18515
_LARGEST_BYTES = 1 << 31
_DEEPEST = 16384
"""Bounds of a queue pair: bytes of a message, and `max_send_wr`."""
_TARGET_BYTES = 1 << 30
"""Bytes of a round, unless -n gives the number of messages."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0; 1 if the ends could not connect or a byte was wrong; 130 after Ctrl-C.

    Raises:
        SystemExit: help, or wrong arguments (code 2).
    """
    parser = _parser()
    options = parser.read(argv)
    if options.latency and options.op == "write" and options.size == 0:
        parser.error("--op write --latency: expected -s 1 or more, its last byte shows the arrival")
    try:
        return until_reader_ends(lambda: _run(options))
    except (HcclError, ArithmeticError, MemoryError) as error:
        _show_status("")
        print(f"hccl-perftest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    require_system_calls()
    if options.devices:
        print("\n".join(device_lines()))
    elif options.local:
        _show_status("starting the other end")
        with _local_server() as link:
            _run_client(options, link)
    elif options.host is None:
        with accept(options.port, _secret()) as link:
            _serve(link)
    else:
        with dial(options.host, options.port, _secret()) as link:
            _run_client(options, link)
    return 0


def _parser() -> Parser:
    parser = Parser(prog="hccl-perftest", description=_DESCRIPTION)
    add = parser.add_argument
    add(
        "host",
        nargs="?",
        type=printable,
        help="host of the other end; without it, wait for that end",
    )
    add("--local", action="store_true", help="run both ends on this host")
    add("-p", "--port", type=whole(1, 65535), default=_PORT, help="(default: %(default)s)")
    device = "shm, tcp or zmq; verbs: an RDMA device, verbs:NAME: this one (default: tcp)"
    add("-d", "--device", type=printable, default="tcp", help=device)
    devices = "list RDMA devices, and which one would be used"
    add("--devices", action="store_true", help=devices)
    op = ("write", "send", "read")
    add("--op", choices=op, default="write", help="(default: write)")
    add("--latency", action="store_true", help="one message at a time")
    size = whole(0, _LARGEST_BYTES)
    add("-s", "--size", type=size, help="bytes (default: 65536; latency: 8)")
    add("-a", "--all", action="store_true", help="all sizes from 2 B to 8 MiB")
    add("-n", "--iterations", type=whole(1), help="messages per round")
    depth = "requests in flight (default: %(default)s)"
    add("-t", "--tx-depth", type=whole(1, _DEEPEST), default=128, help=depth)
    add("--rounds", type=whole(1), default=5, help="rounds of which medians are shown (default: 5)")
    plain = "use plain memory, which a peer over shm cannot read directly"
    add("--unregistered", action="store_true", help=plain)
    compare = "measure a plain socket in C++ in turns; with shm: memcpy of one thread"
    add("--compare", action="store_true", help=compare)
    return parser


def _secret() -> bytes:
    secret = read_secret()
    if secret is None:
        raise BootstrapError(
            "set HCCL_SECRET to the same value on both hosts first: the two ends authenticate"
        )
    return secret


def _serve(link: Link) -> None:
    with End(Setup(**link.receive()), link, starts=False) as end, _on_a_core(link, max):
        end.serve()


@contextmanager
def _on_a_core(link: Link, choose: Callable[[set[int]], int]) -> Iterator[None]:
    """Pin the two ends to different cores if both run on one machine, in namespaces or not.

    Two busy ends on one core would wait for each other's time slices. The queue pairs must exist
    already: they spin as if all cores were usable.
    """
    machine = Identity.of_this_process().boot_id
    cores = usable_cores()
    if link.exchange(machine) != machine:
        yield
        return
    try:
        os.sched_setaffinity(0, {choose(cores)})
    except OSError:  # not permitted: the kernel places the ends
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def _local_server() -> Iterator[Link]:
    """Start the other end as a child."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(Link(theirs),), daemon=True)
    server.start()
    theirs.close()
    try:
        with Link(ours) as link:
            yield link
        server.join(timeout=10)
    finally:
        server.terminate()


def _run_client(options: argparse.Namespace, link: Link) -> None:
    sizes = _sizes(options)
    setup = Setup(
        options.device, max(sizes), options.tx_depth, not options.unregistered, options.compare
    )
    link.send(asdict(setup))
    _show_status(f"connecting both ends over {options.device}")
    with End(setup, link, starts=True) as end, _on_a_core(link, min):
        shown = options.device, options.op, options.latency, options.rounds
        _show_status("")
        print("\n".join(header(*shown, _peer_of(options))), flush=True)
        for num_bytes in sizes:
            line = _measure(end, options, num_bytes)
            _show_status("")
            print(line, flush=True)
        end.finish()


def _show_status(text: str) -> None:
    """Replace the status line on a terminal; empty: none."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _sizes(options: argparse.Namespace) -> list[int]:
    if options.all:
        return [1 << power for power in range(1, 24)]
    if options.size is not None:
        return [options.size]
    return [8] if options.latency else [65536]


def _peer_of(options: argparse.Namespace) -> str | None:
    """Return what to compare with; None: nothing, as for the latency of shm."""
    if not options.compare:
        return None
    if options.device == "shm":
        return None if options.latency else "memcpy"
    return "socket"


def _iterations(options: argparse.Namespace, num_bytes: int) -> int:
    if options.iterations is not None:
        return int(options.iterations)
    if options.latency:
        return 1000 if num_bytes > 65536 else 10000
    return max(16, min(20000, _TARGET_BYTES // max(num_bytes, 1)))


def _measure(end: End, options: argparse.Namespace, num_bytes: int) -> str:
    """Run the rounds, in turns with the peer, so that a disturbance affects both."""
    iterations, peer = _iterations(options, num_bytes), _peer_of(options)

    def run(op: str, iterations: int) -> list[float]:
        return end.run(Exchange(op, options.latency, num_bytes, iterations))

    ours, theirs = [], []
    _show_status(f"{num_bytes} bytes: warming up")
    run(options.op, max(16, iterations // 10))
    for number in range(1, options.rounds + 1):
        _show_status(f"{num_bytes} bytes: round {number} of {options.rounds}")
        ours.append(run(options.op, iterations))
        if peer is not None:
            theirs.append(run(peer, iterations))
    if options.latency:
        return latency_row(num_bytes, ours, theirs)
    return bandwidth_row(num_bytes, iterations, ours, theirs)


if __name__ == "__main__":
    sys.exit(main())
