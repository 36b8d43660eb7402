"""The one error of a command line."""

from hccl_py.launcher.exit_codes import USAGE


class UsageError(Exception):
    """The command line cannot be carried out; the message says why, in one line."""

    def __init__(self, why: str, exit_code: int = USAGE) -> None:
        """Take the exit code of the launcher as well."""
        super().__init__(why)
        self.exit_code = exit_code
