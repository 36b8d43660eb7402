"""Whether HCCL_TRANSPORT=auto may use RDMA between nodes, as far as a rank sees from outside.

Where all may, each opens its device, and they agree once more (`bootstrap/rdma_agreement.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hccl_py.transport.network.rejections import logger
from hccl_py.transport.providers.verbs.choice import candidates
from hccl_py.transport.providers.verbs.devices import list_ports
from hccl_py.transport.providers.verbs.library import opening_problem
from hccl_py.transport.providers.verbs.settings import RdmaSettings


def usable_family(interfaces: Collection[str]) -> str:
    """Return `IPv4` or `IPv6`, of the GID of an active port on one of `interfaces`; else empty.

    Raises:
        HcclError: HCCL_IB_* make no sense.
    """
    if not (ports := list_ports()):
        return ""
    for one in candidates(ports, RdmaSettings.from_environment(), interfaces):
        if one.gid is None or one.gid.interface not in interfaces:
            continue
        # It is not opened: it may turn out that no rank needs it.
        if problem := opening_problem(one.port.device):
            logger.info("HCCL_TRANSPORT=auto: not RDMA over %s: %s", one.port, problem)
            return ""
        return f"IPv{one.gid.ip.version}"
    return ""


def agreed(families: Sequence[str]) -> bool:
    """Return whether all ranks can use RDMA with one another; the log says which cannot."""
    lacking = [rank for rank, family in enumerate(families) if not family]
    if lacking and len(lacking) < len(families):
        logger.info("HCCL_TRANSPORT=auto: not RDMA: ranks %s have no port to use", lacking[:8])
    if not lacking and len(set(families)) > 1:
        logger.info("HCCL_TRANSPORT=auto: not RDMA: IPv4 GIDs on some ranks, IPv6 on others")
    return not lacking and len(set(families)) == 1
