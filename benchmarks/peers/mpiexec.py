"""How ranks of an MPI are started: the beginning of the command line, and its variables."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from benchmarks.peers.machine import siblings_of
from benchmarks.peers.processes import ROOT_MAY, output_of
from hccl_py.bench.namespaces import Hosts

# UCX knows hosts by their kernel: between namespaces it would share memory. Inside a host MPICH
# does that itself.
_VARIABLES_OF_HOSTS = {"UCX_TLS": "tcp,self"}


def words(mpiexec: Path, ranks: int, hosts: Hosts | None, folder: Path) -> list[str]:
    """Return the start of a command line: each MPI's defaults, for the right number of ranks.

    Only Open MPI has to be asked for more ranks than cores. Asked to oversubscribe, it yields while
    it waits and binds no rank; asked without need, it would lose its binding. It does not know
    that namespaces share cores: it would bind the first rank of each to the same core, and yield
    only if one alone had too many.

    Args:
        mpiexec: of the MPI.
        ranks: on all hosts together, as many on each.
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
    """Return what an MPI needs to find in its environment."""
    return ROOT_MAY if hosts is None else ROOT_MAY | _VARIABLES_OF_HOSTS


@functools.cache
def _is_open_mpi(mpiexec: Path) -> bool:
    return "open" in output_of(str(mpiexec), "--version").lower()
