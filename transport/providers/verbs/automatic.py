"""Checks whether HCCL_TRANSPORT=auto may use RDMA between nodes, without opening a device.

If all ranks may, each opens its device, and they agree again (`bootstrap/rdma_agreement.py`).
"""

from collections.abc import Collection, Sequence

from hccl_py.transport.network.rejections import logger
from hccl_py.transport.providers.verbs.choice import candidates
from hccl_py.transport.providers.verbs.devices import list_ports
from hccl_py.transport.providers.verbs.library import opening_problem
from hccl_py.transport.providers.verbs.settings import RdmaSettings


def usable_family(interfaces: Collection[str]) -> str:
    """Return `IPv4` or `IPv6`: the GID's family of an active port on `interfaces`; else empty.

    Raises:
        HcclError: an HCCL_IB_* setting is invalid.
    """
    if not (ports := list_ports()):
        return ""
    for one in candidates(ports, RdmaSettings.from_environment(), interfaces):
        if one.gid is None or one.gid.interface not in interfaces:
            continue
        # The port is not opened: perhaps no rank needs it.
        if problem := opening_problem(one.port.device):
            logger.info("HCCL_TRANSPORT=auto: not RDMA over %s: %s", one.port, problem)
            return ""
        return f"IPv{one.gid.ip.version}"
    return ""


def agreed(families: Sequence[str]) -> bool:
    """Return whether all ranks can use RDMA with one another; log the ranks that cannot."""
    lacking = [rank for rank, family in enumerate(families) if not family]
    if lacking and len(lacking) < len(families):
        logger.info("HCCL_TRANSPORT=auto: not RDMA: ranks %s have no port to use", lacking[:8])
    if not lacking and len(set(families)) > 1:
        logger.info("HCCL_TRANSPORT=auto: not RDMA: IPv4 GIDs on some ranks, IPv6 on others")
    return not lacking and len(set(families)) == 1
