"""The key-value store of Open MPI's mpirun: PMIx, in a separate process.

A program that uses MPI begins PMIx itself, and libpmix does not support a second user in one
process: MPI_Init fails, or the program crashes at its end. `pmix_client.py` is the other process,
which mpirun sees as a second client of the same rank.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hccl_py.schedulers.pmi import loaded_library
from hccl_py.transport.errors import BootstrapError

_CLIENT = Path(__file__).with_name("pmix_client.py")
_START_S = 30.0


def share(value: str | None, timeout_s: float) -> str:
    """Return rank 0's value; the other ranks pass None.

    Raises:
        FileNotFoundError: there is no libpmix.
        BootstrapError: PMIx reports an error, or rank 0 did not call this in time.
    """
    # The value may be secret, so pipes carry it, not a command line.
    command = [sys.executable, "-I", "-S", str(_CLIENT), _library(), str(max(1, int(timeout_s)))]
    try:
        done = subprocess.run(
            command, input=value or "", capture_output=True, text=True, timeout=timeout_s + _START_S
        )
    except subprocess.TimeoutExpired:
        raise BootstrapError(f"PMIx did not answer in {timeout_s + _START_S:g} s") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BootstrapError(
            f"{reason}; have all ranks come this far, and is MASTER_ADDR set on all or none?"
        )
    return value or done.stdout


def _library() -> str:
    """Return the path of libpmix in this process, or of mpirun's own.

    Open MPI's copy is on no search path. mpirun, or its daemon on this host, is an ancestor of this
    process.
    """
    for process in ("self", *_ancestors()):
        if found := loaded_library("libpmix", process):
            return found
    raise FileNotFoundError("neither this process nor one above it has loaded libpmix")


def _ancestors() -> Iterator[str]:
    process = os.getpid()
    while process > 1:
        with open(f"/proc/{process}/stat") as stat:
            process = int(stat.read().rpartition(")")[2].split()[1])
        yield str(process)
