"""What a rank tells about its last collectives when something went wrong, and how that is read.

    rank's report["calls"] = {"calls": [[number, fingerprint, bytes, site], ...],
                              "sites": ["train.py:41", ...]}

Sites are there with HCCL_DEBUG=1 only; `site` counts from 0, -1 is none.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hccl_py.fingerprint import count_of, describe, without_number
from hccl_py.observe.call_sites import CallSites
from hccl_py.transport import _core

STATE = "calls"
"""Name of this state in a report."""
_MOST_CALLS = 128  # a rank can be ahead of another by the 64 messages that a lane holds
_MOST_SITES = 64


class PastCall(NamedTuple):
    """A collective that some rank made.

    Attributes:
        fingerprint: without its number, so that equal calls are equal.
        num_bytes: which it gave or got, whichever are more.
        site: the user's line, or an empty string.
    """

    fingerprint: int
    num_bytes: int
    site: str

    @property
    def num_elements(self) -> int | None:
        """Number of elements; None where ranks may differ in it."""
        return count_of(self.fingerprint, self.num_bytes)

    @property
    def key(self) -> tuple[int, int | None]:
        """Equal for equal calls."""
        return self.fingerprint, self.num_elements

    def __str__(self) -> str:
        """Name the call, without its number."""
        return describe(self.fingerprint, self.num_elements)


class History:
    """The last calls of one rank of a communicator, for its reports."""

    def __init__(self, core: _core.Communicator, sites: CallSites | None) -> None:
        """Read the engine's memory."""
        self._core = core
        self._sites = sites

    def tail(self) -> dict[str, Any]:
        """Return the last calls, in what msgpack can carry."""
        last = self._core.sequence()
        sites: dict[str, int] = {}
        calls = [
            [number, fingerprint, num_bytes, self._index_of(number, sites)]
            for number, fingerprint, num_bytes in self._core.history(
                max(1, last - _MOST_CALLS + 1), last
            )
        ]
        return {"calls": calls, "sites": list(sites)}

    def _index_of(self, number: int, sites: dict[str, int]) -> int:
        site = self._sites.site_of(number) if self._sites is not None else ""
        if not site or (site not in sites and len(sites) == _MOST_SITES):
            return -1
        return sites.setdefault(site, len(sites))


def past_calls(report: Mapping[str, Any]) -> dict[int, PastCall]:
    """Return the calls by number that a rank's report tells of."""
    state = report.get(STATE)
    if not isinstance(state, Mapping):  # a rank that could not tell says why, in words
        return {}
    sites = state["sites"]
    return {
        number: PastCall(without_number(fingerprint), num_bytes, sites[site] if site >= 0 else "")
        for number, fingerprint, num_bytes, site in state["calls"]
    }
