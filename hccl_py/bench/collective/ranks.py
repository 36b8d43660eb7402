"""All rank processes, seen from the command: start them, ask them, notice a failure, end them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from hccl_py.bench.collective.contender import Endpoint, Open
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.rank import Assignment, Failed, serve
from hccl_py.bench.namespaces import Hosts
from hccl_py.schedulers.ports import free_port

_MAX_COLLECTIVE_S = 60.0
_GRACE_S = 2.0
_DIED = object()
PRELOAD = [
    *(f"hccl_py.bench.collective.over_{what}" for what in ("torch", "communicator")),
    "hccl_py.torch_backend.process_group",
]
"""What the server that ranks are forked from imports."""


class RankFailure(Exception):
    """A rank raised, died or did not answer in time; the message says which and how."""


def open_hosts(options: Options, opened: ExitStack) -> Hosts | None:
    """Make the hosts of --veth, which last as long as the stack; None without it.

    Raises:
        NamespaceError: the machine or the user may not have them.
    """
    if not options.veth_links:
        return None
    links = options.veth_links
    hosts = Hosts(num_hosts=options.nnodes, num_links=links, rates_mbit=[options.rate_mbit] * links)
    return opened.enter_context(hosts)


class Ranks:
    """The rank processes of one run; a context manager that leaves none behind.

    Attributes:
        on_ask: called with what goes on, before every request.
    """

    def __init__(
        self, options: Options, contenders: Sequence[Open], hosts: Hosts | None = None
    ) -> None:
        """Start every rank and wait until it has opened its contenders.

        Args:
            options: what to measure.
            contenders: what to measure it with.
            hosts: one for each node; None: the nodes are emulated where the command runs.

        Raises:
            RankFailure: a rank could not.
        """
        if hosts:
            # In a namespace torch's store warns in each rank that a peer's address has no name.
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        self.on_ask: Callable[[str], None] = lambda what: None
        self._timeout_s = options.timeout_s
        self._deadline = time.monotonic() + options.timeout_s
        self._processes: list[BaseProcess] = []
        self._pipes: list[connection.Connection] = []
        try:
            self._start(options, contenders, hosts)
            self._collect("while joining")
        except BaseException:
            self._kill()
            raise

    def __enter__(self) -> Ranks:
        """Return self."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End every rank, in peace or by force."""
        try:
            if error is None:
                self._send(None)
                self._collect("while closing")
        finally:
            self._kill()

    def ask(self, function: Callable[..., Any], *arguments: object, what: str) -> list[Any]:
        """Ask every rank the same and wait for all answers.

        Args:
            function: of a module; each rank calls it with its `Rank` and the arguments.
            arguments: the same for all ranks.
            what: what is going on, for the message of a failure.

        Returns:
            The answers in rank order.

        Raises:
            RankFailure: a rank raised, died, or the run's time is over.
        """
        self.on_ask(what)
        self._send((function, arguments))
        return self._collect(what)

    def _send(self, request: object) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(request)
            except OSError:
                return  # that rank is dead; collecting finds out how it died

    @property
    def pids(self) -> list[int]:
        """Process ids in rank order."""
        return [process.pid for process in self._processes if process.pid is not None]

    def _start(self, options: Options, contenders: Sequence[Open], hosts: Hosts | None) -> None:
        # One server imports torch once; the ranks are forked from it while it has no threads of
        # its own. Spawning would import torch once per rank: 10 s for 8 ranks on two cores.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        address = hosts.address(0) if hosts else "127.0.0.1"
        # The ranks of a collective give up before the run does: their message says more than ours.
        timeout_s = min(_MAX_COLLECTIVE_S, options.timeout_s)
        ports: set[int] = set()
        while len(ports) < len(contenders):
            ports.add(free_port())
        for rank in range(options.world_size):
            here, there = context.Pipe()
            endpoints = [
                Endpoint(rank, options.world_size, address, port, timeout_s) for port in ports
            ]
            assignment = Assignment(
                rank,
                hosts.names[hosts.host_of(rank, options.world_size)] if hosts else None,
                _environment(options, rank, hosts),
                tuple(zip(contenders, endpoints, strict=True)),
            )
            process = context.Process(target=serve, args=(there, assignment), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)

    def _collect(self, what: str) -> list[Any]:
        """Wait for one answer of every rank."""
        answers: dict[int, Any] = {}
        while len(answers) < len(self._pipes):
            arrived = self._receive(set(answers), self._deadline)
            if not arrived:
                late = ", ".join(str(r) for r in range(len(self._pipes)) if r not in answers)
                raise RankFailure(
                    f"no answer from rank {late} {what}: "
                    f"the {self._timeout_s:g} s of the run (--timeout) are over"
                )
            for rank, answer in arrived.items():
                if answer is _DIED or isinstance(answer, Failed):
                    raise RankFailure(self._first_cause(set(answers), arrived, what))
                answers[rank] = answer
        return [answers[rank] for rank in range(len(self._pipes))]

    def _receive(self, answered: set[int], deadline: float) -> dict[int, Any]:
        """Wait for answers of the other ranks; return those that came, none after the deadline."""
        pending = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answered}
        arrived: dict[int, Any] = {}
        for pipe in connection.wait(list(pending), max(0.0, deadline - time.monotonic())):
            assert isinstance(pipe, connection.Connection)
            try:
                arrived[pending[pipe]] = pipe.recv()
            except (EOFError, ConnectionError):
                arrived[pending[pipe]] = _DIED
        return arrived

    def _first_cause(self, answered: set[int], arrived: dict[int, Any], what: str) -> str:
        """Name the first cause: a rank that died, before those that noticed and complained."""
        reports = dict(arrived)
        deadline = time.monotonic() + _GRACE_S
        while _DIED not in reports.values() and len(answered | set(reports)) < len(self._pipes):
            more = self._receive(answered | set(reports), deadline)
            if not more:
                break
            reports.update(more)
        for rank, report in reports.items():
            if report is _DIED:
                return f"rank {rank} died {what}: {self._ending(rank)}"
        first, failed = next((r, f) for r, f in reports.items() if isinstance(f, Failed))
        return f"rank {first} failed {what}: {failed.error}\n{failed.traceback}".rstrip()

    def _ending(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(_GRACE_S)
        code = process.exitcode
        if code is not None and code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"

    def _kill(self) -> None:
        """End what still runs, and wait until it has ended."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(_GRACE_S)
        for pipe in self._pipes:
            pipe.close()


def _environment(options: Options, rank: int, hosts: Hosts | None) -> dict[str, str]:
    """What a launcher would set for one rank, and on which interfaces its node is reached."""
    address = hosts.address(options.node(rank)) if hosts else "127.0.0.1"
    environment = {
        "HCCL_BENCH_ADDRESS": address,  # of this rank's node
        "RANK": str(rank),
        "WORLD_SIZE": str(options.world_size),
        "LOCAL_RANK": str(rank % options.nproc),
        "LOCAL_WORLD_SIZE": str(options.nproc),
        "MASTER_ADDR": hosts.address(0) if hosts else "127.0.0.1",
    }
    if hosts:
        interfaces = ",".join(hosts.interfaces)
        environment |= {"HCCL_SOCKET_IFNAME": interfaces, "GLOO_SOCKET_IFNAME": interfaces}
    elif options.nnodes > 1:
        environment["HCCL_NODE_ID"] = str(options.node(rank))
    return environment
