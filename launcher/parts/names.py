"""Waits for the name of node 0: that of a pod resolves only when the pod has an address."""

import socket
import sys
import time

from hccl_py.launcher.exit_codes import MISSING_NODE
from hccl_py.launcher.lookups import address_of
from hccl_py.launcher.own_lines import keep_trying, say


def wait_until_known(name: str, timeout_s: float) -> float:
    """Wait until a name resolves, and return what is left of the time; end the process after it."""
    until_s = time.monotonic() + timeout_s
    what = f"{socket.gethostname()}: {name} does not resolve to an address"
    try:
        keep_trying(lambda: address_of(name), what, timeout_s)
    except TimeoutError as error:
        say(
            f"error: {error}: is there a headless Service with publishNotReadyAddresses, and has "
            "the pod of node 0 begun?"
        )
        sys.exit(MISSING_NODE)
    return max(0.0, until_s - time.monotonic())
