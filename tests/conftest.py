"""Test files import the harnesses that lie in these folders by their bare names."""

import gc
import signal
import sys
from pathlib import Path

_HERE = Path(__file__).parent

for folder in (_HERE, _HERE / "transport", _HERE / "transport" / "control", _HERE / "distributed"):
    sys.path.insert(0, str(folder))


# Whoever starts the tests in the background of a script hands them a SIGINT that is ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Spare later collections what stays, 0.3 s each; start what ranks are forked from."""
    gc.collect()
    gc.freeze()
    if "ranks" in sys.modules:
        sys.modules["ranks"].start_server()
