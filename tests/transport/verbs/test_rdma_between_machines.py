"""The conformance suite with one end here and the other one on another machine.

`.ci/roce` runs this in one of two virtual machines, and `tests/roce/guest_conformance.py` serves in
the other.
"""

import os
from collections.abc import Iterator
from types import TracebackType

import pytest
import test_rdma_conformance as one_machine
from queue_pairs import ALL, Connected, End, connect
from remote_end import Link

from hccl_py.transport.verbs import Access, QueuePairAttributes

# The other machine may be busy: a peer that only answers late must not be given up.
one_machine.SOON["timeout_s"] = 0.3
PEER = os.environ.get("HCCL_TEST_REMOTE_END", "")

pytestmark = [
    *one_machine.pytestmark,
    pytest.mark.skipif(not PEER, reason="no other machine: .ci/roce has one"),
]

__all__ = ["two_gigabytes"]
two_gigabytes = one_machine.two_gigabytes


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    host, _, port = PEER.partition(":")
    with Link(host, int(port)) as link:
        yield link


class ConnectedMachines(Connected):
    """The same, whose second end is there."""

    def __init__(
        self,
        link: Link,
        *,
        num_bytes: int = 1 << 16,
        access: Access = ALL,
        capacity: int = 4096,
        **attributes: float,
    ) -> None:
        given = QueuePairAttributes(**attributes)  # type: ignore[arg-type]
        sizes = {"num_bytes": num_bytes, "access": access, "capacity": capacity}
        self._link = link
        self.a = End("verbs", given, **sizes)  # type: ignore[arg-type]
        self.b = link.make("verbs", given, **sizes)
        connect(self.a.pair, self.b.pair)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, at)
        self._link.forget(self.b)


class TestBetweenMachines(one_machine.TestRdma):
    # Of one process, where guest_conformance.py runs it.
    test_program_ends_though_a_thread_waits = None

    @pytest.fixture(autouse=True)
    def _use(self, link: Link) -> None:
        self._link = link

    def connected(self, **options: float | Access) -> ConnectedMachines:  # type: ignore[override]
        return ConnectedMachines(self._link, **options)  # type: ignore[arg-type]
