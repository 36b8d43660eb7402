"""What the command line says of other hosts, and of ssh."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hccl_py.launcher.hosts.host_list import Host


@dataclass(frozen=True)
class SshOptions:
    """Options of every ssh of the job; what they leave out is up to the user's ssh configuration.

    Attributes:
        port: of every sshd.
        user: of every host that names none itself.
        options: values of ssh's `-o`, such as "IdentityFile=~/.ssh/cluster".
        connect_timeout_s: for ssh to reach a host.
    """

    port: int | None = None
    user: str | None = None
    options: tuple[str, ...] = ()
    connect_timeout_s: float = 60.0

    def words(self, host: Host) -> list[str]:
        """Return the words of the command line that stand between `ssh` and the host."""
        user = host.user or self.user
        words = [] if self.port is None else ["-p", str(self.port)]
        words += [] if user is None else ["-l", user]
        return words + [word for option in self.options for word in ("-o", option)]


@dataclass(frozen=True)
class HostOptions:
    """`--hosts`, and what belongs to it.

    Attributes:
        hosts: in their order, with the ranks that each runs.
        ssh: port, user and options.
        environment: of the ranks, on top of what each host itself sets.
        python: a path, which may start in the directory, or a name in the host's PATH.
        directory: an absolute path, in which ranks work.
    """

    hosts: tuple[Host, ...]
    ssh: SshOptions
    environment: Mapping[str, str] = field(repr=False)
    python: str
    directory: str
