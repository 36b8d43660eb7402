"""Puts the harnesses on the path: of the tests, and of programs beside them that run by themselves.

A program adds this folder to its path, then imports this module.
"""

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]

HARNESSES = (
    *(
        "harness",
        "harness/clusters",
        "harness/machines",
        "faults",
        "faults/injected",
        "observe/trace",
        "torch_backend/harness",
    ),
    *("transport/bootstrap", "transport/control", "transport/verbs", "launcher/preflight", "plan"),
    *("lab/synthesis", "lab/interchange", "capi"),
)
"""Folders whose modules tests import by their bare names."""

sys.path[:0] = [str(_TESTS / folder) for folder in HARNESSES]
