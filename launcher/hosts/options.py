"""The command line's options for other hosts, and for ssh."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hccl_py.launcher.hosts.host_list import Host


@dataclass(frozen=True)
class SshOptions:
    """Options of every ssh of the job; the user's ssh configuration has the rest.

    Attributes:
        port: of every sshd.
        user: for every host without a user of its own.
        options: values of ssh's `-o`, such as "IdentityFile=~/.ssh/cluster".
        connect_timeout_s: for ssh to reach a host.
    """

    port: int | None = None
    user: str | None = None
    options: tuple[str, ...] = ()
    connect_timeout_s: float = 60.0

    def words(self, host: Host) -> list[str]:
        """Return the words of the command line between `ssh` and the host."""
        user = host.user or self.user
        words = [] if self.port is None else ["-p", str(self.port)]
        words += [] if user is None else ["-l", user]
        return words + [word for option in self.options for word in ("-o", option)]


@dataclass(frozen=True)
class HostOptions:
    """`--hosts` and its options.

    Attributes:
        hosts: in order, with the number of ranks on each.
        ssh: port, user and options.
        environment: of the ranks, in addition to each host's own.
        python: a path, relative to the directory or absolute, or a name in the host's PATH.
        directory: an absolute path, in which ranks work.
    """

    hosts: tuple[Host, ...]
    ssh: SshOptions
    environment: Mapping[str, str] = field(repr=False)
    python: str
    directory: str
