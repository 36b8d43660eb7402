"""What the user says about ssh: `--ssh-port`, `--ssh-user` and `--ssh-option`."""

from dataclasses import dataclass

from hccl_py.launcher.hosts.host_list import Host


@dataclass(frozen=True)
class SshOptions:
    """Options of every ssh of the job; what they leave out is up to the user's ssh configuration.

    Attributes:
        port: of every sshd.
        user: of every host that names none itself.
        options: values of ssh's `-o`, such as "IdentityFile=~/.ssh/cluster".
    """

    port: int | None = None
    user: str | None = None
    options: tuple[str, ...] = ()

    def words(self, host: Host) -> list[str]:
        """Return the words of the command line that stand between `ssh` and the host."""
        user = host.user or self.user
        words = [] if self.port is None else ["-p", str(self.port)]
        words += [] if user is None else ["-l", user]
        return words + [word for option in self.options for word in ("-o", option)]
