"""The command hccl-launch. This file imports nothing of ours: Ctrl-C is one line from here on.

`launch.py` is what it does.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> int:
    """Run hccl-launch and return its exit code."""
    from hccl_py.launcher.launch import launch

    return launch(sys.argv[1:] if argv is None else argv)


def command() -> NoReturn:
    """Run hccl-launch as this process's only purpose."""
    for number in (signal.SIGINT, signal.SIGTERM):  # until `launch` handles them itself
        signal.signal(number, _end)
    code = main()
    # Taking the interpreter apart costs a tenth of an agent's CPU time, and ends nothing more.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end(number: int, _frame: object) -> NoReturn:
    # Not by an exception: in the midst of an import it may be taken for another one.
    os.write(2, f"hccl-launch: stopped by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


if __name__ == "__main__":
    command()
