"""The processes of a soak, seen from the command: start, send to work, hear, dump, replace, end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from hccl_py.bench.soak_rank import Outcome, Place, serve

_START_S = 60.0
_STACKS_S = 3.0


class SoakError(Exception):
    """The soak found something wrong; the message says all there is to say."""


class Pool:
    """Processes by index, some of them replaced. A context manager that leaves none behind."""

    def __init__(self, places: Sequence[Place]) -> None:
        """Start one process for each place.

        Raises:
            SoakError: one did not start.
        """
        self._places = places
        # One server imports torch once; the processes are forked from it.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["hccl_py.bench.soak_rank", "torch.distributed"])
        self._processes: list[BaseProcess] = []
        self._pipes: list[connection.Connection] = []
        try:
            for index in range(len(places)):
                process, pipe = self._start(index)
                self._processes.append(process)
                self._pipes.append(pipe)
            for index in range(len(places)):
                self._expect_ready(index)
        except BaseException:
            self.close()
            raise

    def run(
        self, index: int, order: Sequence[int], timeout_s: float, victim: int | None
    ) -> tuple[dict[int, Outcome], float | None]:
        """Have processes be the ranks of one generation.

        Args:
            index: of the generation.
            order: which process is which rank.
            timeout_s: for all of it.
            victim: the rank that may die or stop; None: nobody may.

        Returns:
            The outcome of each rank that lived to tell, and when the fault struck.

        Raises:
            SoakError: a rank hung, or died unasked.
        """
        for rank, process in enumerate(order):
            self._pipes[process].send((index, rank))
        deadline_s = time.monotonic() + timeout_s
        outcomes: dict[int, Outcome] = {}
        fault_at_s: float | None = None
        waiting = {self._pipes[process]: rank for rank, process in enumerate(order)}
        while waiting and set(waiting.values()) != {victim if fault_at_s is not None else None}:
            ready = connection.wait(list(waiting), max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise SoakError(self._stacks(sorted(waiting.values()), order, timeout_s))
            for pipe in ready:
                assert isinstance(pipe, connection.Connection)
                rank = waiting[pipe]
                try:
                    what, value = pipe.recv()
                except (EOFError, ConnectionError):
                    if rank != victim:
                        raise SoakError(self._death(order[rank], rank)) from None
                    del waiting[pipe]
                    continue
                if what == "fault":
                    fault_at_s = value
                else:
                    outcomes[rank] = value
                    del waiting[pipe]
        return outcomes, fault_at_s

    def replace(self, process: int) -> None:
        """End a process, whatever it does, and start another in its place."""
        self._processes[process].kill()
        self._processes[process].join()
        self._pipes[process].close()
        self._processes[process], self._pipes[process] = self._start(process)
        self._expect_ready(process)

    def pid(self, process: int) -> int:
        """Return its process id."""
        return self._processes[process].pid or 0

    def close(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def __enter__(self) -> Pool:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _start(self, index: int) -> tuple[BaseProcess, connection.Connection]:
        here, there = self._context.Pipe()
        process = self._context.Process(
            target=serve, args=(there, self._places[index]), name=f"soak {index}", daemon=True
        )
        process.start()
        there.close()
        return process, here

    def _expect_ready(self, index: int) -> None:
        if not self._pipes[index].poll(_START_S):
            raise SoakError(f"process {index} did not start in {_START_S:g} s")
        self._pipes[index].recv()

    def _death(self, process: int, rank: int) -> str:
        self._processes[process].join(_STACKS_S)
        code = self._processes[process].exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        stacks = Path(self._places[process].stacks).read_text(encoding="utf-8")
        return f"rank {rank} (process {process}) died, which was not planned: {how}\n{stacks}"

    def _stacks(self, ranks: Sequence[int], order: Sequence[int], timeout_s: float) -> str:
        """Have those that hang write down where they are."""
        lines = [f"rank(s) {', '.join(map(str, ranks))} did not end within {timeout_s:g} s"]
        for rank in ranks:
            process = order[rank]
            os.kill(self.pid(process), signal.SIGCONT)
            os.kill(self.pid(process), signal.SIGUSR1)
        time.sleep(_STACKS_S)
        for rank in ranks:
            text = Path(self._places[order[rank]].stacks).read_text(encoding="utf-8")
            lines.append(f"--- rank {rank} (process {order[rank]}):\n{text}")
        return "\n".join(lines)
