"""Where the control plane of a process is reached, and the key that proves it is the one."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contact:
    """What a rank's card says about the control plane of its process.

    Attributes:
        key: public key, in Z85; empty for a rank that is alone.
        unix_name: abstract Unix socket for processes of the same machine, without the zero byte.
        host: numeric address for those of other machines; "" if there is none.
        port: port there; 0 if there is none.
        problem: why there is none.
    """

    key: bytes = field(default=b"", repr=False)
    unix_name: str = ""
    host: str = ""
    port: int = 0
    problem: str = ""
