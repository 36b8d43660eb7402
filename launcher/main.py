"""The command hccl-launch. It first imports only `signals`, so that Ctrl-C prints one line.

`launch.py` has its steps.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from hccl_py.launcher.signals import WARNINGS, end


def main(argv: Sequence[str] | None = None) -> int:
    """Run hccl-launch and return its exit code."""
    from hccl_py.launcher.launch import launch

    return launch(sys.argv[1:] if argv is None else argv)


def command() -> NoReturn:
    """Run hccl-launch as this process's only purpose."""
    for number in (signal.SIGINT, signal.SIGTERM):  # until `launch` handles them itself
        signal.signal(number, end)
    pass_over_warnings()
    code = main()
    # Finalising the interpreter costs a tenth of an agent's CPU time, without effect.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def pass_over_warnings() -> None:
    """Ignore signals for ranks while no rank runs."""
    for number in WARNINGS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda *_: None)  # with SIG_IGN the ranks would also ignore it


if __name__ == "__main__":
    command()
