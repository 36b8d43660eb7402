"""The actions of this process at exit and at fork: one list, in one written order.

Nothing else in this package uses `atexit` or `os.register_at_fork`. At exit the stages run from
first to last, so users of a resource end before it. A forked child runs them from last to first:
locks and sockets of the lowest layers are replaced before higher layers can use them.
"""

import atexit
import logging
import os
from bisect import insort
from collections.abc import Callable
from enum import IntEnum

logger = logging.getLogger("hccl_py.transport")

Step = Callable[[], object]


class LifecycleStage(IntEnum):
    """Owners of resources, in the order in which they end at exit."""

    EXCEPTION = 0
    """Reports the exception that ends this process, before a goodbye could hide it."""
    PROCESS_GROUPS = 1
    FUTURE_THREADS = 2
    COMMUNICATORS = 3
    QUEUE_PAIRS = 4
    PROGRESS_THREAD = 5
    """A native thread that outlives the interpreter would crash the process."""
    FLIGHT_RECORDERS = 6
    DUMP_SIGNAL = 7
    STORE_SERVERS = 8
    CONTROL_PLANE = 9
    REGISTERED_MEMORY = 10
    LAUNCHER_STORES = 11
    """Last: mpirun and torchrun may end the job when one of its ranks leaves."""


exit_steps: list[tuple[LifecycleStage, Step]] = []
"""The steps at exit, in their order."""
forked_child_steps: list[tuple[LifecycleStage, Step]] = []
"""The steps of a forked child, in their order."""


def register(
    stage: LifecycleStage, *, at_exit: Step | None = None, in_forked_child: Step | None = None
) -> None:
    """Register steps for the exit of this process, and for every child that it forks."""
    if at_exit is not None:
        insort(exit_steps, (stage, at_exit), key=lambda entry: entry[0])
    if in_forked_child is not None:
        insort(forked_child_steps, (stage, in_forked_child), key=lambda entry: -entry[0])


def run_exit_steps() -> None:
    """Run the steps at exit of a program in C, whose Python never ends."""
    _run(exit_steps)


def _run(steps: list[tuple[LifecycleStage, Step]]) -> None:
    for stage, step in steps:
        try:
            step()
        except Exception:  # the other owners' steps must still run
            logger.exception("the step %s failed in process %d", stage.name, os.getpid())


atexit.register(_run, exit_steps)
os.register_at_fork(after_in_child=lambda: _run(forked_child_steps))
