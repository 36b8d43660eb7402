"""Run a function as the ranks of a job: real processes, one deadline, every traceback.

    from ranks import run_ranks

    def check_sum(rank, world_size):              # module level, in a test file
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def test_sum_three_ranks():
        assert run_ranks(check_sum, 3, backend="hccl") == [[3.0] * 3] * 3

Starting Python with torch takes seconds, so a server process imports it once, and hccl-py, and
forks every rank from itself: a rank starts in milliseconds, with nothing of the test's process in
it. When a rank fails the others get a moment to say what they saw, then all are killed;
`RanksFailed` quotes every rank in the order in which they failed. A rank that hangs prints its
stacks and dies at the deadline.
"""

import faulthandler
import gc
import importlib.util
import inspect
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from namespaces import Hosts, call_inside, enter
from quiet_clock import HANG_S
from torch.distributed import TCPStore

GRACE_S = 10.0
"""How long the other ranks may go on after the first failure."""
EXIT_S = 30.0
"""How long a rank may take to end after its function has returned."""
START_S = 60.0
"""How long processes may take to start, on a machine that does other things too."""

_context = multiprocessing.get_context("forkserver")
PRELOAD = [
    "torch",
    "numpy",
    "pytest",
    "hccl_py.communicator",
    "hccl_py.torch_backend.groups.process_group",
]
# DDP needs dynamo at its first use: more than a second in every rank.
PRELOAD += ["torch._dynamo", "torch.distributed.optim", "hccl_py.bench.collective.over_torch"]


def start_server() -> None:
    """Start the process that ranks are forked from, unless there is one; it imports meanwhile.

    There is one a process: whoever starts it, the benchmark too, decides what is in it.
    """
    _context.set_forkserver_preload(PRELOAD)
    multiprocessing.forkserver.ensure_running()


class RanksFailed(AssertionError):  # noqa: N818  # it is what a test fails with
    """At least one rank raised, died or hung; the message quotes them all."""


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = HANG_S,
    backend: str | None = None,
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    hosts: Hosts | None = None,
    victims: Collection[int] = (),
) -> list[Any]:
    """Run `function(rank, world_size, *args)` in `world_size` new processes.

    Args:
        function: at module level of any file; what it returns must pickle.
        world_size: number of processes.
        args: passed on; must pickle.
        timeout_s: after this long every rank that is left prints its stacks and is killed.
        backend: `torch.distributed` is initialised with it before and destroyed after.
        env: more environment, for all ranks or by rank, e.g. `HCCL_NODE_ID`. RANK, WORLD_SIZE,
            LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set anyway, and a store
            listens there.
        hosts: where to run the ranks, the first half on the first host; None: all on this one.
        victims: ranks that may end in any way, at any time.

    Returns:
        What each rank returned, by rank; None for a victim that ended without a word.

    Raises:
        RanksFailed: a rank raised, ended without a word, or was still running at the deadline.
    """
    __tracebackhide__ = True  # the ranks' own traces are what matters
    start_server()
    # Hosted here, as an agent would: a port that a rank binds later may be taken by then.
    address, store = _store(hosts)
    source = (inspect.getsourcefile(function) or "", function.__qualname__)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        processes, pipes = [], []
        for rank in range(world_size):
            here, there = _context.Pipe()
            settings = {
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(world_size),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                **((env(rank) if callable(env) else env) or {}),
            }
            output = os.path.join(folder, str(rank))
            place = hosts.names[hosts.host_of(rank, world_size)] if hosts else None
            run = (source, args, timeout_s, backend)
            process = _context.Process(
                target=_rank_main, args=(there, output, settings, place, run)
            )
            with _nothing_as_main():
                process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        try:
            deadline = time.monotonic() + timeout_s + START_S
            results, failures = _collect(pipes, deadline, victims)
            for pipe in pipes:
                pipe.close()
            if not failures:
                failures = _exits(processes, victims)
        finally:
            for process in processes:
                process.kill()
                process.join()
        if failures:
            raise RanksFailed(_story(failures, results, world_size, folder))
    return [results[rank] for rank in range(world_size)]


def _store(hosts: Hosts | None) -> tuple[str, TCPStore]:
    """Start a store where all ranks can reach it; return its address too."""
    address = hosts.address(0) if hosts else "127.0.0.1"

    def start() -> TCPStore:
        return TCPStore(address, 0, is_master=True, wait_for_workers=False)

    return address, call_inside(hosts.names[0], start) if hosts else start()


def _collect(
    pipes: list[Connection], deadline: float, victims: Collection[int]
) -> tuple[dict[int, Any], list[tuple[int, str]]]:
    """Wait for every rank's word, or until `GRACE_S` after the first failure."""
    results: dict[int, Any] = {}
    failures: list[tuple[int, str]] = []
    open_pipes = {pipe: rank for rank, pipe in enumerate(pipes)}
    while open_pipes:
        ready = wait(list(open_pipes), max(deadline - time.monotonic(), 0.0))
        if not ready:
            failures += [(rank, "still running, killed") for rank in open_pipes.values()]
            break
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = open_pipes.pop(pipe)
            try:
                succeeded, value = pipe.recv()
            except EOFError:
                succeeded = rank in victims
                value = None if succeeded else "ended without a word (killed, or a crash)"
            if succeeded:
                results[rank] = value
                continue
            if not failures:
                deadline = min(deadline, time.monotonic() + GRACE_S)
            failures.append((rank, value))
    return results, failures


def _exits(processes: list[ForkServerProcess], victims: Collection[int]) -> list[tuple[int, str]]:
    """Wait for processes whose functions have returned; their exit can still go wrong."""
    failures = []
    deadline = time.monotonic() + EXIT_S
    for rank, process in enumerate(processes):
        process.join(max(deadline - time.monotonic(), 0.0))
        if process.exitcode != 0 and (rank not in victims or process.exitcode is None):
            ended = "hung" if process.exitcode is None else f"had exit code {process.exitcode}"
            failures.append((rank, f"{ended} after its function had returned"))
    return failures


def _story(
    failures: list[tuple[int, str]], results: dict[int, Any], world_size: int, folder: str
) -> str:
    lines = [f"{len(failures)} of {world_size} ranks failed, in this order:"]
    for rank, what in failures:
        output = Path(folder, str(rank))
        printed = output.read_text(errors="replace") if output.exists() else ""
        lines += [f"--- rank {rank}: {what.rstrip()}", printed[-8000:].rstrip()]
    if results:
        lines.append(f"--- rank(s) {', '.join(map(str, sorted(results)))} returned")
    return "\n".join(line for line in lines if line)


def _rank_main(
    pipe: Connection,
    output: str,
    settings: dict[str, str],
    place: str | None,
    run: tuple[tuple[str, str], tuple[Any, ...], float, str | None],
) -> None:
    """Be one rank."""
    source, args, timeout_s, backend = run
    # To go through the objects of torch again takes 0.1 s, at every collection.
    gc.freeze()
    stream = open(output, "w", buffering=1)  # noqa: SIM115  # open to the end of the process
    os.dup2(stream.fileno(), 1)
    os.dup2(stream.fileno(), 2)
    sys.stdout = sys.stderr = stream
    faulthandler.enable(stream)
    os.environ.update(settings)
    torch.set_num_threads(1)  # more ranks than cores: threads that wait for each other would spin
    if place is not None:
        enter(place)
    rank, world_size = int(settings["RANK"]), int(settings["WORLD_SIZE"])
    try:
        function = load_function(*source)
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=stream)
        result = _with_group(backend, timeout_s, lambda: function(rank, world_size, *args))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        # Not through the interpreter's exit: what is broken might hang there.
        os._exit(1)
    faulthandler.cancel_dump_traceback_later()
    pipe.send((True, result))
    # The end of this process would be news to ranks that are not so far.
    with suppress(EOFError, ConnectionError):
        pipe.recv()


def _with_group(backend: str | None, timeout_s: float, body: Callable[[], Any]) -> Any:
    if backend is None:
        return body()
    import torch.distributed as dist

    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    result = body()
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def load_function(path: str, qualname: str) -> Callable[..., Any]:
    """Find a function of a test file, which need not be importable by any name."""
    name = f"_ranks_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path[:0] = [str(Path(__file__).parent), str(Path(path).parent)]
    spec.loader.exec_module(module)
    value: Any = module
    for part in qualname.split("."):
        value = getattr(value, part)
    return value  # type: ignore[no-any-return]


class _nothing_as_main:  # noqa: N801  # used like a function
    """Keep multiprocessing from importing pytest's main module again in every rank."""

    def __enter__(self) -> None:
        self._main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")

    def __exit__(self, *_: object) -> None:
        sys.modules["__main__"] = self._main
