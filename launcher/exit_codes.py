"""Exit codes of the launcher's own, from sysexits.h, and the error of a command line.

A job has the exit code of its first failing rank.
"""

USAGE = 2
"""The command line cannot be carried out."""
MISSING_NODE = 69
"""Not all nodes came, or they contradict each other."""
AGENT_KILLED = 70
"""A process of the launcher was killed."""
LOST_NODE = 71
"""A node stopped to answer while its ranks ran."""
TRY_AGAIN = 75
"""Within the launcher only: the coordinator is gone before it took this node in."""
CHECK_FAILED = 78
"""Preflight found that the job would fail."""
CANNOT_RUN = 126
"""The program cannot be executed, as a shell says it."""
NOT_FOUND = 127
"""There is no such program, as a shell says it."""


class UsageError(Exception):
    """The command line cannot be carried out; the message says why, in one line."""

    def __init__(self, why: str, exit_code: int = USAGE) -> None:
        """Take the exit code of the launcher as well."""
        super().__init__(why)
        self.exit_code = exit_code
