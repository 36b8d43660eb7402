"""What every provider promises: the semantics of a reliable connection.

A provider passes by a class that derives from `Conformance` and names it, see test_conformance.py.
"""

from __future__ import annotations

from conformance_errors import Closing, Errors
from conformance_transfers import Pressure, Transfers, two_gigabytes

__all__ = ["Conformance", "two_gigabytes"]


class Conformance(Transfers, Pressure, Errors, Closing):
    """All of it."""
