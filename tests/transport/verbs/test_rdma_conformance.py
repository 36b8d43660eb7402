"""An RDMA device under the conformance suite of all providers.

It needs a device: `.ci/roce` runs this in a virtual machine with soft-RoCE. Where a device does
otherwise than the software's queue pairs, the test stands here again with what the device does.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance_errors import Closing, Errors
from conformance_transfers import EVERY, RDMA, Pressure, Transfers, transfer, two_gigabytes
from queue_pairs import ALL, PATIENCE_S, Connected
from thread_ranks import wait_until

from hccl_py.transport.providers.verbs.devices import ACTIVE, list_ports
from hccl_py.transport.verbs import (
    Access,
    Opcode,
    QueuePair,
    RecvRequest,
    ScatterGather,
    SendRequest,
    State,
    Status,
)

__all__ = ["two_gigabytes"]

pytestmark = pytest.mark.skipif(
    not any(port.state == ACTIVE for port in list_ports()),
    reason="no active RDMA port here: .ci/roce makes one in a virtual machine",
)


class TestRdma(Transfers, Pressure, Errors, Closing):
    provider = "verbs"
