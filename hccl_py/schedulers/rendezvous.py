"""The address at which ranks meet if MASTER_ADDR and MASTER_PORT are not set.

An MPI launcher has a key-value store, in which rank 0 publishes a free port and a secret. Slurm has
none: the ranks meet on the first node of the step, at a port derived from the step's id. Pods have
their own network, so any port works.
"""

import secrets
import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from hccl_py.schedulers import pmi, pmix
from hccl_py.schedulers.ports import free_port
from hccl_py.schedulers.scheduled import Scheduled
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.threads import call_interruptibly

_LOOPBACK = "127.0.0.1"
_PORT_OF_PODS = 29500
# Below the default ephemeral range.
_PORTS_OF_JOBS = range(10_000, 30_011)  # a prime number of them


@dataclass(frozen=True)
class Rendezvous:
    """The address at which the ranks meet."""

    address: str
    port: int
    origin: str  # how it was chosen, in words
    secret: str | None = None  # of the job, if it could be distributed privately


def find_rendezvous(found: Scheduled, environ: Mapping[str, str], timeout_s: float) -> Rendezvous:
    """Find the address; every rank of the job calls this, and all get the same.

    Raises:
        InvalidArgumentError: it is not known; the message names the variables to set.
        BootstrapError: the launcher's store failed, or the port of the job is in use.
    """
    if found.master_addr and found.master_port:
        return Rendezvous(found.master_addr, found.master_port, "given")
    if found.world_size == 1:
        return Rendezvous(_LOOPBACK, found.master_port or free_port(), "the only rank")
    # Only for mpirun: srun's PMI depends on how Slurm was built.
    if found.is_innermost and (shared := _share(found, environ, timeout_s)):
        return shared
    return _of_job(found)


def _share(found: Scheduled, environ: Mapping[str, str], timeout_s: float) -> Rendezvous | None:
    value = None
    if found.rank == 0:
        host = found.master_addr or (_LOOPBACK if _is_one_node(found) else _address())
        value = f"{host},{found.master_port or free_port()},{secrets.token_hex(32)}"
    if environ.get("PMI_FD"):
        told, origin = pmi.share(int(environ["PMI_FD"]), value, timeout_s), "PMI"
    elif environ.get("PMIX_NAMESPACE"):
        try:
            told, origin = pmix.share(value, timeout_s), "PMIx"
        except FileNotFoundError:
            return None
    else:
        return None
    address, port, secret = told.split(",")
    return Rendezvous(address, int(port), f"published by rank 0 through {origin}", secret)


def _of_job(found: Scheduled) -> Rendezvous:
    address = found.master_addr or (_LOOPBACK if _is_one_node(found) else None)
    if found.is_node_0:
        address = _address()
    if not address and found.nodes:
        address = _first_node(found)
    if not address:
        raise InvalidArgumentError(
            f"{found.source} runs ranks on several hosts, and no variable says where they meet: "
            "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port on all ranks"
            + " (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)"
            * (found.source == "Open MPI")
        )
    if found.master_port:
        return Rendezvous(address, found.master_port, "given")
    if found.job_id is None:
        return Rendezvous(address, _PORT_OF_PODS, "the default port")
    port = port_of_job(found.job_id)
    if found.rank == 0:
        _check_free(port, found)
    return Rendezvous(address, port, f"port made of the id {found.job_id}")


def _first_node(found: Scheduled) -> str:
    node = found.nodes[0]
    if found.rank == 0 and found.node_rank:
        problem = f"rank 0 runs on {found.nodes[found.node_rank]}"
    else:
        try:
            call_interruptibly(lambda: socket.getaddrinfo(node, None))
            return node
        except OSError as error:
            problem = f"{socket.gethostname()} cannot resolve that name ({error})"
    raise BootstrapError(
        f"the ranks of {found.source} meet on its first node, {node}, but {problem}: set "
        "MASTER_ADDR to the host of rank 0"
    )


def port_of_job(job_id: str) -> int:
    """Return the port of a job; jobs and steps with neighbouring numbers have different ones."""
    digits = "".join(filter(str.isdigit, job_id))
    number = int(digits) if digits else zlib.crc32(job_id.encode())
    return _PORTS_OF_JOBS[number % len(_PORTS_OF_JOBS)]


def _check_free(port: int, found: Scheduled) -> None:
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            raise BootstrapError(
                f"{socket.gethostname()}: port {port}, which is made of the id {found.job_id} "
                f"({found.source}), is in use: set MASTER_PORT to another one on all ranks"
            ) from error


def _is_one_node(found: Scheduled) -> bool:
    return found.world_size is not None and found.world_size == found.local_world_size


def _address() -> str:
    """Return the address at which other hosts reach this one."""
    from hccl_py.transport.network.interfaces import choose_addresses, is_loopback, list_interfaces
    from hccl_py.transport.network.settings import NetworkSettings

    chosen = choose_addresses(NetworkSettings.from_environment())[0].host
    # Compute nodes may have no default route.
    every = [address for addresses in list_interfaces().values() for address in addresses]
    return next((each for each in (chosen, *every) if not is_loopback(each)), chosen)
