"""The command `hccl-soak`: random collectives, groups and faults for as long as told.

Start reading here; `soak_plan.py` says what is done, `soak_rank.py` does it, `soak_report.py`
judges it.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from hccl_py.bench.namespaces import Hosts, NamespaceError, enter
from hccl_py.bench.soak_plan import DEADLY, MENDED, SPOKEN, Generation, Limits, draw
from hccl_py.bench.soak_pool import Pool, SoakError
from hccl_py.bench.soak_rank import Place
from hccl_py.bench.soak_report import Totals, judge

_ALL_FAULTS = (*DEADLY, *SPOKEN, *MENDED)
_GENERATION_S = 90.0
_PROGRESS_S = 10.0

_DESCRIPTION = """\
Run random collectives, groups and faults over rank processes on this machine, compare every byte
of every result with numpy's, and see that each failure is told by all ranks alike and in time.
Processes that a fault killed are replaced, and the job starts anew with other ranks, nodes and
settings. Exit code 1 where anything was wrong; what was, and how to run it again, is printed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Raises:
        SystemExit: help, or wrong arguments (code 2).
    """
    args = _parser().parse_args(argv)
    # Like Ctrl-C: nothing may be left behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return soak(args)
    except NamespaceError as failure:
        print(f"hccl-soak: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hccl-soak: interrupted", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def soak(args: argparse.Namespace) -> int:
    """Run generation after generation until the time is over or one went wrong."""
    limits = Limits(args.ranks, args.max_bytes, args.events, tuple(args.faults))
    _print(f"hccl-soak: seed {args.seed}, {args.seconds:g} s, {args.ranks} processes, {_facts()}")
    totals, index = Totals(), args.first
    with ExitStack() as opened:
        pool = opened.enter_context(Pool(_places(args, limits, opened)))
        # Whatever ends it: what it did stands at the end.
        opened.callback(lambda: _print(totals.table()))
        began_s = shown_s = time.monotonic()
        while time.monotonic() - began_s < args.seconds and index != args.last + 1:
            generation = draw(args.seed, index, limits)
            complaint = _run(pool, generation, totals, args.raise_within)
            if complaint is not None:
                _print(_how_to_repeat(args, generation, complaint))
                return 1
            if time.monotonic() - shown_s > _PROGRESS_S:
                shown_s = time.monotonic()
                calls, faults = sum(totals.calls.values()), sum(totals.faults.values())
                _print(
                    f"{shown_s - began_s:7.0f} s  generation {index}: {calls:,} calls, "
                    f"{faults} faults, all well"
                )
            index += 1
        _print(f"{time.monotonic() - began_s:.0f} s, no byte wrong, nobody hung")
    return 0


def _run(pool: Pool, generation: Generation, totals: Totals, limit_s: float) -> str | None:
    """Run one generation; return what was wrong with it."""
    fault = generation.fault
    victim = fault.victim if fault is not None and fault.kind in DEADLY else None
    try:
        outcomes, at_s = pool.run(generation.index, generation.order, _GENERATION_S, victim)
    except SoakError as failure:
        return str(failure)
    totals.add(generation, outcomes, at_s)
    complaint = judge(generation, outcomes, at_s, limit_s)
    for rank, outcome in outcomes.items():
        pid = pool.pid(generation.order[rank])
        complaint = complaint or totals.leak(pid, outcome.resources)
    if complaint is None and victim is not None:
        pool.replace(generation.order[victim])
        totals.replaced += 1
    return complaint


def _places(args: argparse.Namespace, limits: Limits, opened: ExitStack) -> list[Place]:
    """Make the store, and hosts if they are wanted; say of each process where it runs."""
    hosts = opened.enter_context(Hosts(num_links=args.veth)) if args.veth else None
    address = hosts.address(0) if hosts else "127.0.0.1"
    store = _store(address, hosts)
    opened.callback(lambda: store)  # lives as long as the processes
    folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="hccl-soak-"))
    return [
        Place(
            hosts.names[hosts.host_of(process, args.ranks)] if hosts else None,
            address,
            store.port,
            ",".join(hosts.interfaces) if hosts else None,
            args.seed,
            limits,
            os.path.join(folder, f"stacks-{process}"),
        )
        for process in range(args.ranks)
    ]


def _store(address: str, hosts: Hosts | None) -> Any:
    from threading import Thread

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    made: list[Any] = []

    def make() -> None:
        if hosts is not None:
            enter(hosts.names[0])
        made.append(TCPStore(address, 0, is_master=True, wait_for_workers=False))

    thread = Thread(target=make)  # which alone moves to the first host
    thread.start()
    thread.join()
    return made[0]


def _how_to_repeat(args: argparse.Namespace, generation: Generation, complaint: str) -> str:
    veth = f" --veth {args.veth}" if args.veth else ""
    return (
        f"hccl-soak: WRONG in generation {generation.index}: {complaint}\n"
        f"nodes {generation.nodes}, settings {generation.settings}, fault {generation.fault}\n"
        f"again: hccl-soak --seed {args.seed} --first {generation.index} --last "
        f"{generation.index} --ranks {args.ranks} --events {args.events} "
        f"--max-bytes {args.max_bytes} --faults {','.join(args.faults)}{veth}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hccl-soak", description=_DESCRIPTION)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--ranks", type=int, default=5, help="processes (default 5)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--events", type=int, default=120, help="of a generation (default 120)")
    parser.add_argument("--max-bytes", type=int, default=2 << 20, help="of a call (default 2 MiB)")
    parser.add_argument(
        "--faults",
        type=_faults,
        default=list(_ALL_FAULTS),
        help=f"which, or none (default {','.join(_ALL_FAULTS)})",
    )
    parser.add_argument(
        "--raise-within", type=float, default=2.0, metavar="S", help="of a fault (default 2)"
    )
    parser.add_argument("--first", type=int, default=0, help="generation to begin with")
    parser.add_argument("--last", type=int, default=-2, help="generation to end with")
    parser.add_argument(
        "--veth", type=int, default=0, metavar="N", help="two network namespaces, N links (root)"
    )
    return parser


def _faults(text: str) -> list[str]:
    names = [] if text == "none" else text.split(",")
    if unknown := set(names) - set(_ALL_FAULTS):
        raise argparse.ArgumentTypeError(f"expected some of {_ALL_FAULTS}, got {sorted(unknown)}")
    return names


def _facts() -> str:
    from importlib.metadata import version

    return (
        f"hccl-py {version('hccl-py')}, torch {version('torch')}, python "
        f"{platform.python_version()}, {len(os.sched_getaffinity(0))} cores"
    )


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
