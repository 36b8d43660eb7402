"""The launcher's exit codes, from sysexits.h, and the error of a command line.

A job has the exit code of its first failing rank.
"""

USAGE = 2
"""The command line is wrong."""
MISSING_NODE = 69
"""Some nodes did not arrive, or nodes contradict each other."""
AGENT_KILLED = 70
"""A process of the launcher was killed."""
LOST_NODE = 71
"""A node stopped answering while its ranks ran."""
TRY_AGAIN = 75
"""Internal: the coordinator ended before it accepted this node."""
CHECK_FAILED = 78
"""Preflight found errors."""
CANNOT_RUN = 126
"""The program cannot be executed; a shell's exit code."""
NOT_FOUND = 127
"""The program was not found; a shell's exit code."""


class UsageError(Exception):
    """A wrong command line; the message says why, in one line."""

    def __init__(self, why: str, exit_code: int = USAGE) -> None:
        """Take the reason and the launcher's exit code."""
        super().__init__(why)
        self.exit_code = exit_code
