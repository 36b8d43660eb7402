"""The start of ranks of an MPI: the beginning of the command line, and its variables."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from benchmarks.peers.machine import siblings_of
from benchmarks.peers.processes import ROOT_MAY, output_of
from hccl_py.bench.namespaces import Hosts

# UCX tells hosts apart by their kernel, so it would share memory between namespaces. Inside a host
# MPICH shares memory without UCX.
_VARIABLES_OF_HOSTS = {"UCX_TLS": "tcp,self"}


def words(mpiexec: Path, ranks: int, hosts: Hosts | None, folder: Path) -> list[str]:
    """Return the start of a command line: each MPI's defaults, for the given number of ranks.

    Only Open MPI needs an option for more ranks than cores. With OVERSUBSCRIBE it yields while it
    waits and binds no rank, so the option is left out if it is not needed. Open MPI does not see
    that namespaces share cores: it would bind the first rank of each to the same core, and yield
    only if one namespace alone had too many ranks.

    Args:
        mpiexec: of the MPI.
        ranks: on all hosts together, equally many on each.
        hosts: namespaces; None: this machine.
        folder: for a file that the command needs.
    """
    command = [str(mpiexec), "-n", str(ranks)]
    is_open_mpi = _is_open_mpi(mpiexec)
    threads = os.sched_getaffinity(0)
    cores = set(map(siblings_of, threads))
    if ranks > len(cores) and is_open_mpi:
        command += ["--map-by", ":OVERSUBSCRIBE" if ranks > len(threads) else ":HWTCPUS"]
    if hosts is None:
        return command
    shell = folder / "shell"
    shell.write_text(hosts.remote_shell())
    shell.chmod(0o700)
    addresses = [hosts.address(host) for host in range(len(hosts.names))]
    on_each = ranks // len(addresses)
    if is_open_mpi:
        command += ["--prtemca", "plm_ssh_agent", str(shell), "--bind-to", "none"]
        if ranks > len(threads):
            command += ["--mca", "mpi_yield_when_idle", "1"]
        command += ["--host", ",".join(f"{address}:{on_each}" for address in addresses)]
    else:
        command += ["-launcher", "ssh", "-launcher-exec", str(shell)]
        command += ["-hosts", ",".join(addresses), "-ppn", str(on_each)]
    return hosts.command(0, *command)


def variables(hosts: Hosts | None) -> dict[str, str]:
    """Return the environment variables of an MPI."""
    return ROOT_MAY if hosts is None else ROOT_MAY | _VARIABLES_OF_HOSTS


@functools.cache
def _is_open_mpi(mpiexec: Path) -> bool:
    return "open" in output_of(str(mpiexec), "--version").lower()
