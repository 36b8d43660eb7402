"""The owners of signals. Uses the standard library only."""

import os
import signal
from typing import NoReturn

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGPWR, signal.SIGALRM)
"""Signals that schedulers and users send to running programs: for the ranks."""

SUSPEND, RESUME = signal.SIGRTMIN, signal.SIGRTMIN + 1
"""The supervisor sends them to its agent at Ctrl-Z and afterwards. The kernel drops pending stop
signals when it continues a process, and each signal of the supervisor continues the agent."""


def end(number: int, _frame: object = None) -> NoReturn:
    """Handle a signal by ending this process, in one line.

    An exception could be lost, or be mistaken for another one, within an import.
    """
    os.write(2, f"hccl-launch: stopped by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)
