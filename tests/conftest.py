"""Test files import the harnesses that lie in these folders by their bare names."""

import gc
import sys
from pathlib import Path

_HERE = Path(__file__).parent

for folder in (_HERE, _HERE / "transport", _HERE / "transport" / "control"):
    sys.path.insert(0, str(folder))


def pytest_collection_finish() -> None:
    """Spare later collections what stays: to go through torch and all tests takes 0.3 s each."""
    gc.collect()
    gc.freeze()
