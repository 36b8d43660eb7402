"""How two ends of a queue pair meet while the network resets their connection."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from network_resets import reset
from quiet_clock import HANG_S

from hccl_py.transport.bootstrap.connection import PendingConnection
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.verbs.endpoints import TcpSocketEndpoint
from hccl_py.transport.wire.handshake import Steps


@pytest.mark.parametrize("loser", [0, 1])
def test_end_whose_last_acknowledgement_is_lost_hears_that_the_other_has_left(
    loser: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end has both acknowledgements, and stops to listen."""
    ends = sorted((TcpSocketEndpoint() for _ in range(2)), key=lambda end: end.address)
    stays, leaves = ends[loser], ends[1 - loser]
    has_left = threading.Event()
    conclude = PendingConnection._conclude

    def lose(pending: PendingConnection) -> Steps:
        if pending.world.rank == loser and not has_left.is_set():
            yield from pending.send(b"A")
            has_left.wait(HANG_S)
            reset(pending.socket.fileno())
        yield from conclude(pending)

    def connect_and_leave() -> None:
        leaves.connect_socket(stays.address, HANG_S)[1].close()
        leaves.close()
        has_left.set()

    monkeypatch.setattr(PendingConnection, "_conclude", lose)
    with ThreadPoolExecutor(1) as threads:
        left = threads.submit(connect_and_leave)
        began_s = time.monotonic()
        with pytest.raises(BootstrapError, match=f"rank {1 - loser} .* ended"):
            stays.connect_socket(leaves.address, HANG_S)
        left.result()
    assert time.monotonic() - began_s < HANG_S / 2
    stays.close()
