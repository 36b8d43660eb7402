"""Verbs: queue pairs with the semantics of a reliable connection, over any provider.

    with Device("tcp") as device:
        domain = ProtectionDomain(device)
        queue = CompletionQueue(device, capacity=256)
        region = domain.register(buffer, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        pair = QueuePair(domain, queue)
        pair.modify(State.INIT)
        pair.connect(exchange(pair.address), timeout_s=30)  # you carry the addresses
        pair.post_send(SendRequest(Opcode.SEND, (region.piece(),), wr_id=1))
        [completion] = queue.wait(timeout_s=5)

`docs/transport.md` maps every call onto libibverbs; `examples/03_ping_pong.py` is the whole story.
"""

from hccl_py.transport.errors import (
    CompletionQueueOverflowError,
    CompletionTimeoutError,
    QueueFullError,
    VerbsError,
)
from hccl_py.transport.verbs.completion_queue import CompletionQueue
from hccl_py.transport.verbs.device import Device
from hccl_py.transport.verbs.memory import MemoryRegion, ProtectionDomain
from hccl_py.transport.verbs.queue_pair import QueuePair, connect_loopback
from hccl_py.transport.verbs.types import (
    INFINITE_RNR_RETRY,
    Access,
    Completion,
    Opcode,
    QueuePairAttributes,
    RecvRequest,
    ScatterGather,
    SendFlags,
    SendRequest,
    State,
    Status,
)

__all__ = [
    "INFINITE_RNR_RETRY",
    "Access",
    "Completion",
    "CompletionQueue",
    "CompletionQueueOverflowError",
    "CompletionTimeoutError",
    "Device",
    "MemoryRegion",
    "Opcode",
    "ProtectionDomain",
    "QueueFullError",
    "QueuePair",
    "QueuePairAttributes",
    "RecvRequest",
    "ScatterGather",
    "SendFlags",
    "SendRequest",
    "State",
    "Status",
    "VerbsError",
    "connect_loopback",
]
