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

`docs/internals/transport.md` maps every call onto libibverbs, `examples/03_ping_pong.py` is a whole
program.
"""

from hccl_py.transport.errors import CompletionQueueOverflowError as CompletionQueueOverflowError
from hccl_py.transport.errors import CompletionTimeoutError as CompletionTimeoutError
from hccl_py.transport.errors import QueueFullError as QueueFullError
from hccl_py.transport.errors import VerbsError as VerbsError
from hccl_py.transport.providers.verbs.types import INFINITE_RNR_RETRY as INFINITE_RNR_RETRY
from hccl_py.transport.providers.verbs.types import Access as Access
from hccl_py.transport.providers.verbs.types import Completion as Completion
from hccl_py.transport.providers.verbs.types import Opcode as Opcode
from hccl_py.transport.providers.verbs.types import QueuePairAttributes as QueuePairAttributes
from hccl_py.transport.providers.verbs.types import RecvRequest as RecvRequest
from hccl_py.transport.providers.verbs.types import ScatterGather as ScatterGather
from hccl_py.transport.providers.verbs.types import SendFlags as SendFlags
from hccl_py.transport.providers.verbs.types import SendRequest as SendRequest
from hccl_py.transport.providers.verbs.types import State as State
from hccl_py.transport.providers.verbs.types import Status as Status
from hccl_py.transport.verbs.completion_queue import CompletionQueue as CompletionQueue
from hccl_py.transport.verbs.device import Device as Device
from hccl_py.transport.verbs.memory import MemoryRegion as MemoryRegion
from hccl_py.transport.verbs.memory import ProtectionDomain as ProtectionDomain
from hccl_py.transport.verbs.queue_pair import QueuePair as QueuePair
