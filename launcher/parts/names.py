"""Waits for the name of node 0: that of a pod resolves only when the pod has an address."""

import socket
import sys
import time

from hccl_py.launcher.exit_codes import MISSING_NODE
from hccl_py.launcher.parts.settings import say

_FIRST_LINE_S, _NEXT_LINE_S = 5.0, 60.0
_AGAIN_S = 0.5


def wait_until_known(name: str, timeout_s: float) -> float:
    """Wait until a name resolves, and return what is left of the time; end the process after it."""
    began_s = time.monotonic()
    line_s = began_s + _FIRST_LINE_S
    while True:
        try:
            socket.getaddrinfo(name, None)
            return max(0.0, began_s + timeout_s - time.monotonic())
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            what = f"{socket.gethostname()}: {name} does not resolve to an address "
            what += f"({reason})"
        now_s = time.monotonic()
        if now_s >= began_s + timeout_s:
            say(
                f"error: {what}, after {timeout_s:.0f} s: is there a headless Service with "
                "publishNotReadyAddresses, and has the pod of node 0 begun?"
            )
            sys.exit(MISSING_NODE)
        if now_s >= line_s:
            line_s = now_s + _NEXT_LINE_S
            left_s = began_s + timeout_s - now_s
            say(f"{what} yet; trying for {left_s:.0f} s more (--connect-timeout)")
        time.sleep(_AGAIN_S)
