"""The launcher's own lines outside of a job's output; they report every wait."""

import sys
import time
from collections.abc import Callable

_FIRST_LINE_S, _NEXT_LINE_S = 5.0, 60.0
_PAUSE_S = 0.2


def say(text: str) -> None:
    """Print a line of the launcher's own."""
    print(f"hccl-launch: {text}", file=sys.stderr, flush=True)


class WaitingLines:
    """Lines of one wait: after 5 s, then once a minute. All times are by the caller's clock.

    Attributes:
        next_s: when the next line is due.
    """

    def __init__(self, now_s: float) -> None:
        """Start to wait."""
        self.next_s = now_s + _FIRST_LINE_S

    def is_due(self, now_s: float) -> bool:
        """Return whether a line is due now; the next one is then due in a minute."""
        if now_s < self.next_s:
            return False
        self.next_s = now_s + _NEXT_LINE_S
        return True


def keep_trying(attempt: Callable[[], object], what: str, timeout_s: float) -> None:
    """Call `attempt` until it raises neither OSError nor UnicodeError; `what` says what failed.

    Raises:
        TimeoutError: it still raises after `timeout_s`; the message says what and why.
    """
    began_s = time.monotonic()
    lines = WaitingLines(began_s)
    while True:
        try:
            attempt()
            return
        except (OSError, UnicodeError) as error:
            why = f"{what} ({getattr(error, 'strerror', None) or error})"
        now_s = time.monotonic()
        left_s = began_s + timeout_s - now_s
        if left_s <= 0:
            raise TimeoutError(f"{why}, after {timeout_s:.0f} s (--connect-timeout)")
        if lines.is_due(now_s):
            say(f"{why}; trying for {left_s:.0f} s more (--connect-timeout)")
        time.sleep(_PAUSE_S)
