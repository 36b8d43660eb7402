"""The key-value store of Hydra, which is mpiexec of MPICH and of Intel MPI: PMI-1 on a descriptor.

Lines such as `cmd=get kvsname=kvs_1 key=a`, one answer each. If the program uses MPI, MPI shares
the descriptor, so nothing here changes its state.
"""

import ctypes
import os
import re
import select
from contextlib import suppress

from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.process_lifecycle import LifecycleStage, register
from hccl_py.transport.threads import is_of_signal_handler

_KEY = "hccl-rendezvous"
_FINALIZE_S = 5.0

_begun: set[int] = set()


def share(descriptor: int, value: str | None, timeout_s: float) -> str:
    """Return the value of the one rank that has it; all ranks of the job call this.

    Args:
        descriptor: PMI_FD.
        value: printable ASCII without spaces; None on the other ranks.
        timeout_s: of the whole call, mostly the wait for the last rank.

    Raises:
        BootstrapError: the store did not answer in time, or answered with an error.
    """
    deadline = Deadline(timeout_s)
    _begun.add(descriptor)
    _ask(descriptor, "cmd=init pmi_version=1 pmi_subversion=1", deadline)
    name = _ask(descriptor, "cmd=get_my_kvsname", deadline)["kvsname"]
    if value is not None:
        _ask(descriptor, f"cmd=put kvsname={name} key={_KEY} value={value}", deadline)
    # The barrier sends values to the other hosts.
    _ask(descriptor, "cmd=barrier_in", deadline)
    return _ask(descriptor, f"cmd=get kvsname={name} key={_KEY}", deadline)["value"]


def _ask(descriptor: int, command: str, deadline: Deadline) -> dict[str, str]:
    try:
        os.write(descriptor, command.encode() + b"\n")
        answer = _read_line(descriptor, deadline)
    except OSError as error:
        if is_of_signal_handler(error):
            raise
        raise BootstrapError(f"PMI_FD={descriptor}: {command.split()[0]}: {error}") from error
    fields = dict(word.partition("=")[::2] for word in answer.split())
    if fields.get("rc", "0") != "0":
        raise BootstrapError(f"PMI_FD={descriptor}: {command.split()[0]}: answer {answer!r}")
    return fields


def _read_line(descriptor: int, deadline: Deadline) -> str:
    line, poll = b"", select.poll()
    poll.register(descriptor, select.POLLIN)
    while not line.endswith(b"\n"):
        # The descriptor must stay blocking: MPI reads it as well.
        if not poll.poll(1000 * deadline.remaining_s):
            raise TimeoutError(
                f"no answer {deadline}; have all ranks come this far, and is MASTER_ADDR set on "
                "all or none?"
            )
        read = os.read(descriptor, 1)  # no byte of a later line
        if not read:
            raise ConnectionError("mpiexec closed it")
        line += read
    return line.decode(errors="replace")


def _end() -> None:
    # mpiexec kills the job if a process that began PMI ends without this. MPI does it too.
    if _begun and not _mpi_is_running():
        for descriptor in _begun:
            with suppress(BootstrapError):
                _ask(descriptor, "cmd=finalize", Deadline(_FINALIZE_S))


def _mpi_is_running() -> bool:
    path = loaded_library(r"libmpi\w*")
    begun = ctypes.c_int(0)
    if path is not None:
        ctypes.CDLL(path).MPI_Initialized(ctypes.byref(begun))
    return bool(begun)


register(LifecycleStage.LAUNCHER_STORES, at_exit=_end, in_forked_child=_begun.clear)


def loaded_library(name: str, process: str = "self") -> str | None:
    """Return the path of a library that a process has loaded.

    Args:
        name: a regular expression for the name before `.so`.
        process: its pid; "self" is this process.
    """
    found = None
    with suppress(OSError), open(f"/proc/{process}/maps") as maps:
        found = re.search(rf"/.*/{name}\.so[.\d]*$", maps.read(), re.MULTILINE)
    return found[0] if found else None
