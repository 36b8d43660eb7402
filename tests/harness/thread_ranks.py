"""Ranks as threads of this process: quick to make, easy to debug, and the real engine underneath.

    with ThreadRanks("aab") as ranks:                # three ranks on two emulated nodes
        results = ranks.run(lambda comm: comm.rank)

Every rank is a `Communicator` with a thread of its own. Ranks with the same letter share memory,
the others talk TCP. For deaths and signals use `ranks.py`, whose ranks are processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import pytest
from quiet_clock import HANG_S
from stores import MemoryStore

from hccl_py import Communicator
from hccl_py.transport.network.identity import Identity

DEADLINE_S = HANG_S

T = TypeVar("T")


class ThreadRanks:
    """Connected communicators, one per letter of `nodes`."""

    def __init__(self, nodes: str, *, timeout_s: float = DEADLINE_S) -> None:
        self.world_size = len(nodes)
        self._threads = [ThreadPoolExecutor(1, f"rank-{rank}") for rank in range(len(nodes))]
        store = MemoryStore(DEADLINE_S)

        def make(rank: int) -> Communicator:
            identity = Identity.of_this_process(f"node-{nodes[rank]}")
            return Communicator(
                store, rank, len(nodes), timeout_s=timeout_s, name=nodes, identity=identity
            )

        self.communicators = self._gather([t.submit(make, r) for r, t in enumerate(self._threads)])

    def start(self, function: Callable[[Communicator], T]) -> list[Future[T]]:
        """Call `function` with each rank's communicator on its thread."""
        return [
            thread.submit(function, communicator)
            for thread, communicator in zip(self._threads, self.communicators, strict=True)
        ]

    def run(self, function: Callable[[Communicator], T]) -> list[T]:
        """Return what each rank returned; raise what the first to fail raised."""
        __tracebackhide__ = True
        return self._gather(self.start(function))

    def failures(self, function: Callable[[Communicator], Any]) -> list[BaseException | None]:
        """Return what each rank raised."""
        futures = self.start(function)
        wait(futures, DEADLINE_S)
        return [future.exception(0) for future in futures]

    def close(self) -> None:
        """Close all communicators and end the threads."""
        for communicator in self.communicators:
            communicator.close()
        for thread in self._threads:
            thread.shutdown()

    def __enter__(self) -> ThreadRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _gather(futures: list[Future[T]]) -> list[T]:
        __tracebackhide__ = True
        first_failure = "FIRST_EXCEPTION"
        done, running = wait(futures, DEADLINE_S, first_failure)
        for future in done:
            future.result()
        assert not running, f"ranks {[futures.index(f) for f in running]} hang"
        return [future.result() for future in futures]


def ranks_on(*layouts: Any, **environment: str) -> Any:
    """Return a module's fixture: ranks that its tests share, on each layout, or `pytest.param`."""

    @pytest.fixture(scope="module", params=layouts)
    def ranks(request: pytest.FixtureRequest) -> Iterator[ThreadRanks]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            with ThreadRanks(request.param) as ranks:
                yield ranks

    return ranks


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Poll until `condition` holds; fail if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
        time.sleep(0.001)


def counters(comm: Communicator) -> dict[str, Any]:
    """Return the statistics without those of the kernel's, which change by themselves."""
    return {name: value for name, value in comm.statistics().items() if name != "paths"}
