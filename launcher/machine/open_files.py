"""The launcher's limit of open files, which limits its number of ranks and nodes.

Ranks inherit the limit, so it is raised only if it is too low.
"""

import resource

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.transport.network.system_calls import descriptor_limits

_LEAST_OWN_FILES, _OWN_FILES = 32, 128  # preflight checks the ranks' needs
_FILES_PER_RANK = 3
_FILES_PER_AGENT = 5  # a connection; over ssh also its process and three pipes


def allow_ranks(num_ranks: int) -> None:
    """Raise this process's limit for its ranks' files if necessary; UsageError: not permitted."""
    each = _FILES_PER_RANK * num_ranks
    ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    _allow(_LEAST_OWN_FILES + each, _OWN_FILES + each, f"{ranks} on a host: hccl-launch")


def allow_connections(num_agents: int) -> None:
    """Raise the limit for a coordinator of `num_agents` if necessary; UsageError: not permitted."""
    wanted = _OWN_FILES + _FILES_PER_AGENT * num_agents
    _allow(_LEAST_OWN_FILES + num_agents, wanted, f"{num_agents} nodes: node 0")


def _allow(lowest: int, wanted: int, who: str) -> None:
    soft, hard = descriptor_limits()
    if hard != resource.RLIM_INFINITY and hard < lowest:
        raise UsageError(
            f"{who} needs {lowest} open files, and this user may open {hard} (ulimit -n): "
            f"as root, echo '* - nofile {max(4096, lowest)}' >> /etc/security/limits.conf, "
            "and log in again"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
