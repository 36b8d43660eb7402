"""Our queue pair against `ibv_rc_pingpong` of rdma-core, which knows nothing of hccl-py.

    python guest_pingpong.py HOST TURNS BYTES

That program listens on a TCP port, and both send one line there: LID, queue pair, PSN, GID. It has
100 RECVs posted at first, and answers each message with one of the same size.
"""

import socket
import sys
import time
from ipaddress import IPv6Address

import numpy as np

from hccl_py.transport import _core
from hccl_py.transport.verbs import (
    CompletionQueue,
    Device,
    Opcode,
    ProtectionDomain,
    QueuePair,
    RecvRequest,
    SendRequest,
    State,
    Status,
)

PORT = 18515
LINE = "%04x:%06x:%06x:%s"
LINE_BYTES = len(LINE % (0, 0, 0, "0" * 32)) + 1
MTU = 1024  # what that program uses unless told otherwise
PATIENCE_S = 120.0


def dial(host: str) -> socket.socket:
    """Connect; the other machine may still boot."""
    until_s = time.monotonic() + 2 * PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, PORT), timeout=PATIENCE_S)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.5)


def meet(dialled: socket.socket, pair: QueuePair, device: Device) -> None:
    """Exchange lines and step to RTS, as that program's client does."""
    core = pair.core
    assert isinstance(core, _core.RdmaQueuePair) and device.rdma is not None
    gid = device.rdma.gid.address.packed.hex()
    dialled.sendall((LINE % (0, core.number(), core.psn(), gid)).encode() + b"\0")
    with dialled.makefile("rb") as stream:
        _, number, psn, gid = stream.read(LINE_BYTES).rstrip(b"\0").decode().split(":")
        their_gid = IPv6Address(bytes.fromhex(gid))
        pair.attach(_core.RdmaPeer(list(their_gid.packed), int(number, 16), int(psn, 16), MTU, 0))
        pair.modify(State.RTR)
        pair.modify(State.RTS)
        dialled.sendall(b"done\0")


def main(host: str, turns: int, num_bytes: int) -> None:
    """Send, wait for the answer, and so on; that program times out unless each of them comes."""
    with Device("verbs") as device:
        domain = ProtectionDomain(device)
        queue = CompletionQueue(device, capacity=256)
        sent = domain.register(np.full(num_bytes, 7, np.uint8))
        memory = np.zeros(num_bytes, np.uint8)
        received = domain.register(memory)
        pair = QueuePair(domain, queue)
        pair.modify(State.INIT)
        for _ in range(turns):
            pair.post_recv(RecvRequest((received.piece(),)))
        with dial(host) as dialled:
            meet(dialled, pair, device)
            for _ in range(turns):
                pair.post_send(SendRequest(Opcode.SEND, (sent.piece(),)))
                ended = [queue.wait(timeout_s=PATIENCE_S, max_completions=1)[0] for _ in range(2)]
                assert {one.status for one in ended} == {Status.SUCCESS}, ended
                assert {one.opcode for one in ended} == {Opcode.SEND, Opcode.RECV}, ended
                [length] = [one.byte_len for one in ended if one.opcode is Opcode.RECV]
                assert length == num_bytes
    print(f"{turns} turns with ibv_rc_pingpong")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
