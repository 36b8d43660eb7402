"""The values of HCCL_TRANSPORT: what carries messages between the ranks of a communicator.

| value | inside a node | between nodes |
|---|---|---|
| `auto` (default) | shared memory | RDMA where every rank has a port, else TCP |
| `tcp` | TCP | TCP |
| `verbs` | shared memory | queue pairs of an RDMA device, see `providers/verbs/` |
| `verbs_over_tcp` | software queue pairs over TCP | software queue pairs over TCP |
| `zmq` | ZeroMQ with CURVE | ZeroMQ with CURVE |
| `module:Class` | that provider | that provider |
"""

from hccl_py.transport.errors import InvalidArgumentError

VARIABLE = "HCCL_TRANSPORT"
AUTO = "auto"
TCP = "tcp"
VERBS = "verbs"
VERBS_OVER_TCP = "verbs_over_tcp"
IN_CPP = AUTO, TCP, VERBS, VERBS_OVER_TCP
IN_PYTHON = {"zmq": "hccl_py.transport.providers.zmq.provider:ZmqProvider"}


def check_transport(name: str) -> str:
    """Return a value of HCCL_TRANSPORT; InvalidArgumentError: there is no such provider."""
    known = *IN_CPP, *IN_PYTHON
    if name not in known and ":" not in name:
        raise InvalidArgumentError(
            f"{VARIABLE}={name}: expected one of {', '.join(known)}, or module:Class of a provider "
            "of your own"
        )
    return name
