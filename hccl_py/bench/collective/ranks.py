"""All rank processes, from the command's side: start, requests, failures, end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from hccl_py.bench.collective.contender import Endpoint, Open
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.rank import Failed, serve
from hccl_py.bench.namespaces import Hosts
from hccl_py.schedulers.ports import free_port

_MAX_COLLECTIVE_S = 60.0
_GRACE_S = 2.0
_DIED = object()
PRELOAD = [
    *(f"hccl_py.bench.collective.over_{what}" for what in ("torch", "communicator")),
    "hccl_py.torch_backend.groups.process_group",
]
"""Modules that the fork server imports once for all ranks."""


class RankFailure(Exception):
    """A rank raised, died or did not answer in time."""


def open_hosts(options: Options, opened: ExitStack) -> Hosts | None:
    """Make the hosts of --veth, which the stack removes; None without --veth.

    Raises:
        NamespaceError: the user or the kernel may not make namespaces.
    """
    if not options.veth_links:
        return None
    links = options.veth_links
    hosts = Hosts(num_hosts=options.nnodes, num_links=links, rates_mbit=[options.rate_mbit] * links)
    return opened.enter_context(hosts)


class Ranks:
    """The rank processes of one run; a context manager that leaves none behind.

    Attributes:
        on_ask: called before every request with its description.
    """

    def __init__(
        self,
        options: Options,
        contenders: Sequence[Open],
        hosts: Hosts | None = None,
        method: str = "forkserver",
    ) -> None:
        """Start every rank and wait until it has opened its contenders.

        Args:
            options: number of ranks, nodes and limits of time.
            contenders: what each rank opens.
            hosts: one for each node; None: the nodes are emulated where the command runs.
            method: how processes are started, as multiprocessing names it.

        Raises:
            RankFailure: a rank could not open them.
        """
        if hosts:
            # In namespaces torch's store warns in each rank that a peer's address has no host name.
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        self.on_ask: Callable[[str], None] = lambda what: None
        self._timeout_s = options.timeout_s
        self._deadline = time.monotonic() + options.timeout_s
        self._processes: list[BaseProcess] = []
        self._pipes: list[connection.Connection] = []
        try:
            self._start(options, contenders, hosts, method)
            self._collect("while joining")
        except BaseException:
            self._kill()
            raise

    def __enter__(self) -> Ranks:
        """Return self."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Ask every rank to end unless there was an error, then kill those that remain."""
        try:
            if error is None:
                self._send(None)
                self._collect("while closing")
        finally:
            self._kill()

    def ask(self, function: Callable[..., Any], *arguments: object, what: str) -> list[Any]:
        """Run a function on every rank and wait for all results.

        Args:
            function: top-level function; each rank calls it with its `Rank` and the arguments.
            arguments: the same for all ranks.
            what: description of the request, for the message of a failure.

        Returns:
            The results in rank order.

        Raises:
            RankFailure: a rank raised or died, or the timeout of the run passed.
        """
        self.on_ask(what)
        self._send((function, arguments))
        return self._collect(what)

    def _send(self, request: object) -> None:
        with suppress(OSError):  # that rank is dead; _collect reports how it died
            for pipe in self._pipes:
                pipe.send(request)

    @property
    def pids(self) -> list[int]:
        """Process ids in rank order."""
        return [process.pid for process in self._processes if process.pid is not None]

    def _start(
        self, options: Options, contenders: Sequence[Open], hosts: Hosts | None, method: str
    ) -> None:
        # One server imports torch once; the ranks are forked from it while it has no threads of
        # its own. Spawning would import torch once per rank: 10 s for 8 ranks on two cores.
        context: Any = multiprocessing.get_context(method)
        context.set_forkserver_preload(PRELOAD)
        address = hosts.address(0) if hosts else "127.0.0.1"
        # A collective times out before the run does: its error says more.
        timeout_s = min(_MAX_COLLECTIVE_S, options.timeout_s)
        ports: set[int] = set()
        while len(ports) < len(contenders):
            ports.add(free_port())
        for rank in range(options.world_size):
            here, there = context.Pipe()
            ends = [Endpoint(rank, options.world_size, address, port, timeout_s) for port in ports]
            namespace = hosts.names[options.node(rank)] if hosts else None
            opens = list(zip(contenders, ends, strict=True))
            arguments = (there, rank, namespace, _environment(options, rank, hosts), opens)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)

    def _collect(self, what: str) -> list[Any]:
        """Wait for one answer from every rank."""
        n, deadline = len(self._pipes), self._deadline
        answers: dict[int, Any] = {}
        while len(answers) < n and not any(answer is _DIED for answer in answers.values()):
            pending = {self._pipes[rank]: rank for rank in range(n) if rank not in answers}
            arrived: Any = connection.wait(list(pending), max(0.0, deadline - time.monotonic()))
            if not arrived:
                break
            for pipe in arrived:
                try:
                    answers[pending[pipe]] = pipe.recv()
                except (EOFError, ConnectionError):
                    answers[pending[pipe]] = _DIED
            if any(isinstance(answer, Failed) for answer in answers.values()):
                deadline = min(deadline, time.monotonic() + _GRACE_S)
        self._raise_first_cause(answers, what)
        return [answers[rank] for rank in range(n)]

    def _raise_first_cause(self, answers: dict[int, Any], what: str) -> None:
        """Raise for a rank that died, else for one that failed, else for one that did not answer.

        Raises:
            RankFailure: there is such a rank.
        """
        for rank, answer in answers.items():
            if answer is _DIED:
                raise RankFailure(f"rank {rank} died {what}: {self._ending(rank)}")
        for rank, answer in answers.items():
            if isinstance(answer, Failed):
                failure = f"rank {rank} failed {what}: {answer.error}\n{answer.traceback}"
                raise RankFailure(failure.rstrip())
        late = ", ".join(str(rank) for rank in range(len(self._pipes)) if rank not in answers)
        if late:
            limit = f"the run took longer than its timeout of {self._timeout_s:g} s (--timeout)"
            raise RankFailure(f"no answer from rank {late} {what}: {limit}")

    def _ending(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(_GRACE_S)
        code = process.exitcode
        return f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"

    def _kill(self) -> None:
        """Kill the processes that still run, and wait for their end."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(_GRACE_S)
        for pipe in self._pipes:
            pipe.close()


def _environment(options: Options, rank: int, hosts: Hosts | None) -> dict[str, str]:
    """Return the variables of one rank: those of a launcher, and the interfaces of its node."""
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
