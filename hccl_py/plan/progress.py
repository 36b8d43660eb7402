"""Logs a line every few seconds while plans are written and proved."""

import logging
import signal
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("hccl_py")

PERIOD_S = 5.0


class ProofProgress:
    """Logs the current activity and its progress while the context is open.

    Attributes:
        now: returns the activity; called by another thread.
    """

    def __init__(self, who: str, first_s: float = PERIOD_S) -> None:
        """Start each line with `who`; the first is logged after `first_s` seconds."""
        self.now: Callable[[], str] = lambda: "begins"
        self._who, self._first_s = who, first_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, name="hccl progress", daemon=True)

    def __enter__(self) -> "ProofProgress":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def _report(self) -> None:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, signal.valid_signals()
        )  # signals are for the caller's threads
        began, wait_s = time.monotonic(), self._first_s
        while not self._ended.wait(wait_s):
            elapsed_s = time.monotonic() - began
            logger.warning("%s %s, for %.0f s so far", self._who, self.now(), elapsed_s)
            wait_s = PERIOD_S
