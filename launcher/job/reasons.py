"""The likely meaning of an exit code, if the rank recorded no exception."""

import signal

from hccl_py.launcher.placement import cgroup
from hccl_py.launcher.placement.topology import Machine

_NO_COMMAND, _CANNOT_RUN = 127, 126
_BY_SIGNAL = {
    signal.SIGSEGV: "a crash in native code; the stack above is faulthandler's",
    signal.SIGABRT: "native code gave up; its last lines say why",
    signal.SIGBUS: "a mapped file was truncated, or the memory of /dev/shm is used up",
    signal.SIGILL: "native code for another kind of processor",
    signal.SIGTERM: "the scheduler or an operator stopped it",
}


class OutOfMemory:
    """The kernel's count of processes that it killed in this cgroup."""

    def __init__(self, machine: Machine) -> None:
        """Start to count."""
        self._limit_bytes = machine.memory_bytes
        self._before = cgroup.oom_kills()

    def likely_reason(self, exit_code: int) -> str:
        """Return the likely reason for an exit code, -N for signal N; empty: unknown."""
        if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return self._why_killed()
        if exit_code == _NO_COMMAND:
            return "a program that it started was not found (PATH?)"
        if exit_code == _CANNOT_RUN:
            return "a program that it started is not executable"
        try:
            return _BY_SIGNAL.get(signal.Signals(-exit_code), "")
        except ValueError:
            return ""

    def _why_killed(self) -> str:
        if cgroup.oom_kills() == self._before:
            return (
                "out of memory, or kill -9 by a user; the cgroup counts no kill for memory, "
                "dmesg shows those of the whole host"
            )
        limit = ""
        if self._limit_bytes is not None:
            limit = f" of {self._limit_bytes / 1e9:.1f} GB"
        return f"out of memory: the kernel killed it at the limit{limit} of its cgroup"
