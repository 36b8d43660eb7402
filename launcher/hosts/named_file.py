"""A text file that the user named: a host file, or one of variables."""

from pathlib import Path

from hccl_py.launcher.usage_error import UsageError

_MOST_BYTES = 1 << 20  # ten thousand hosts need less


def read_lines(path: Path, option: str) -> list[str]:
    """Return the lines of a file; raise UsageError, with the option, if it cannot be one."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{option} {path}: expected {_MOST_BYTES >> 20} MiB at most, got more")
        return content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', error)}") from error
