"""What breaks at which step, each fault once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

from hccl_py.lab import _lab
from hccl_py.lab.emulation.cluster import Cut, Kill


class Faults:
    """The faults that are still to come.

    Attributes:
        waiting: these.
    """

    def __init__(
        self,
        faults: Iterable[Cut | Kill],
        network: _lab.EmulatedNetwork,
        before_kill: Callable[[int, int], None],
    ) -> None:
        """Have `network` cut; `before_kill` gets the rank that will be killed, and its step."""
        self.waiting = list(faults)
        self._network = network
        self._before_kill = before_kill

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.waiting)

    def strike(self, step: int, rank: int, pid: int) -> None:
        """Do what is due when a rank, of a process of this machine, has finished a step."""
        for fault in tuple(self.waiting):
            if fault.step > step or (isinstance(fault, Kill) and fault.rank != rank):
                continue
            self.waiting.remove(fault)
            if isinstance(fault, Kill):
                say(f"step {step}: rank {rank} is killed")
                self._before_kill(rank, step)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            else:
                one, other = fault.nodes
                self._network.cut(one, other, fault.seconds)
                say(f"step {step}: the link {one}-{other} is cut for {fault.seconds:g} s")


def say(text: str) -> None:
    """Print a line while the job runs."""
    print(f"hccl-launch: emulated network: {text}", file=sys.stderr, flush=True)
