"""A line every few seconds of what takes long: plans that are written, and their proof."""

import logging
import signal
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("hccl_py")

PERIOD_S = 5.0


class ProofProgress:
    """While it is open, says what is done and how far it has come.

    Attributes:
        now: returns that; it is called by another thread.
    """

    def __init__(self, who: str, first_s: float = PERIOD_S) -> None:
        """Begin each line with `who`; the first one comes after `first_s` seconds."""
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
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the caller's
        began, wait_s = time.monotonic(), self._first_s
        while not self._ended.wait(wait_s):
            elapsed_s = time.monotonic() - began
            logger.warning("%s %s, for %.0f s so far", self._who, self.now(), elapsed_s)
            wait_s = PERIOD_S
