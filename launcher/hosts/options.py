"""What the command line says of other hosts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hccl_py.launcher.hosts.host_list import Host
from hccl_py.launcher.hosts.ssh_options import SshOptions


@dataclass(frozen=True)
class HostOptions:
    """`--hosts`, and what belongs to it.

    Attributes:
        hosts: in their order, with the ranks that each runs.
        ssh: port, user and options.
        environment: variables to pass on.
        python, directory: on each host.
    """

    hosts: tuple[Host, ...]
    ssh: SshOptions
    environment: Mapping[str, str] = field(repr=False)
    python: str
    directory: str
