"""Which signals belong to whom. Needs the standard library only."""

import signal

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGPWR, signal.SIGALRM)
"""Signals that schedulers and users send to running programs: they are the ranks'."""
