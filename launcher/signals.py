"""Which signals belong to whom. Needs the standard library only."""

import signal
from typing import NoReturn

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGPWR, signal.SIGALRM)
"""Signals that schedulers and users send to running programs: they are the ranks'."""


def stop(number: int, _frame: object) -> NoReturn:
    """Handle a signal that ends a wait: KeyboardInterrupt has its number.

    A pod's first process has no other way to learn that it has to end.
    """
    raise KeyboardInterrupt(number)
