"""HCCL_METRICS_PORT and HCCL_METRICS_FILE: read and checked before a rank connects."""

import hmac
import ipaddress
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hccl_py.installation import pip_install
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network.interfaces import is_loopback
from hccl_py.transport.network.secret import SECRET, read_secret, weakness

PORT = "HCCL_METRICS_PORT"
FILE = "HCCL_METRICS_FILE"
_TOKEN_OF = b"hccl metrics"


class MetricsSettings(NamedTuple):
    """Where to export.

    Attributes:
        host: numeric address to listen at.
        port: 0: no HTTP.
        token: what a client has to show; empty: nothing.
        file: None: no file.
    """

    host: str
    port: int
    token: str
    file: Path | None

    @property
    def is_on(self) -> bool:
        """Whether to export at all."""
        return self.port != 0 or self.file is not None


def read_settings(environ: Mapping[str, str] = os.environ) -> MetricsSettings:
    """Return the settings of the environment.

    Raises:
        InvalidArgumentError: one is invalid, needs HCCL_SECRET, or prometheus_client is missing.
    """
    host, port = _address(environ.get(PORT, ""))
    file = environ.get(FILE, "")
    if file and not (file.endswith(".prom") and Path(file).absolute().parent.is_dir()):
        raise InvalidArgumentError(
            f"{FILE}: expected FOLDER/NAME.prom in an existing folder, got {file!r}; the textfile "
            "collector of node_exporter reads no other names"
        )
    made = MetricsSettings(host, port, "", Path(file).absolute() if file else None)
    if made.is_on and find_spec("prometheus_client") is None:
        raise InvalidArgumentError(
            f"{PORT if port else FILE} needs the package prometheus_client: "
            f"{pip_install('metrics')}"
        )
    if port == 0 or is_loopback(host):
        return made
    secret = read_secret(environ)
    if secret is None or weakness(secret):
        raise InvalidArgumentError(
            f"{PORT}: at {host} other machines can connect, which needs {SECRET}, got "
            f"{weakness(secret) or 'none'}; set it, or give the port alone to listen on 127.0.0.1"
        )
    return made._replace(token=hmac.digest(secret, _TOKEN_OF, "sha256").hex())


def _address(given: str) -> tuple[str, int]:
    """Read PORT, ADDRESS:PORT or [ADDRESS]:PORT; port 0 is off."""
    host, _, port = given.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    try:
        ipaddress.ip_address(host)
        number = int(port or "0")
        if number not in range(1 << 16):
            raise ValueError
    except ValueError:
        raise InvalidArgumentError(
            f"{PORT}: expected a port, or ADDRESS:PORT with a numeric address, got {given!r}"
        ) from None
    return host, number
