"""Who takes part in a job of changing size, as the state in the store of all nodes says.

torch's own class compares heartbeats with the clock of the node that reads them. A node whose clock
is 15 s behind would be taken for dead, again and again. It is also silent while it waits.
"""

import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousBackend,
    RendezvousSettings,
    _BackendRendezvousStateHolder,
    _NodeDesc,
)

from hccl_py.launcher.own_lines import WaitingLines, say

NodeDesc = _NodeDesc
# A heartbeat is written every 5 s, and read within a second.
_MOST_SKEW = timedelta(seconds=10)


class Members(_BackendRendezvousStateHolder):
    """The state of the rendezvous; a node is dead if its heartbeat does not change."""

    def __init__(
        self,
        backend: RendezvousBackend,
        settings: RendezvousSettings,
        cache_s: int = 1,
        say: Callable[[str], None] = say,
    ) -> None:
        """Read the state from the backend every `cache_s` at most; `say` takes lines."""
        super().__init__(backend, settings, cache_s)
        self._limits, self._say = settings, say
        # By node: its heartbeat, and when it came by the clock of this node.
        self._heartbeats: dict[NodeDesc, tuple[datetime, datetime]] = {}
        self._wrong_clocks: set[NodeDesc] = set()
        self._waits_since_s = 0.0
        self._lines = WaitingLines(0.0)

    def sync(self) -> bool | None:
        """Exchange the state with the other nodes, and say what this node waits for."""
        result = super().sync()
        now_s = time.monotonic()
        what = self._what_is_awaited()
        if not what or not self._waits_since_s:
            self._waits_since_s, self._lines = now_s, WaitingLines(now_s)
        elif self._lines.is_due(now_s):
            self._say(what)
        return result

    def _sanitize(self) -> None:
        """Drop dead nodes, with all heartbeats in the time of this node's clock."""
        now, written = datetime.now(timezone.utc), self.state.last_heartbeats
        seen = {}
        for node, heartbeat in written.items():
            known = self._heartbeats.get(node)
            if known and known[0] == heartbeat:
                seen[node] = known
            else:
                seen[node] = heartbeat, now
                if known:
                    self._look_at_clock(node, heartbeat - now)
        self._heartbeats = seen
        self.state.last_heartbeats = {node: came for node, (_, came) in seen.items()}
        super()._sanitize()
        self.state.last_heartbeats = {node: written[node] for node in self.state.last_heartbeats}

    def _look_at_clock(self, node: NodeDesc, skew: timedelta) -> None:
        """Say that a clock is wrong, given how far a heartbeat of just now is ahead of this one."""
        if abs(skew) > _MOST_SKEW and node not in self._wrong_clocks:
            self._wrong_clocks.add(node)
            way = "ahead of" if skew > timedelta() else "behind"
            self._say(
                f"the clock of {node.addr} is {abs(skew).total_seconds():.0f} s {way} the one of "
                "this node: times in logs are wrong (timedatectl set-ntp true)"
            )

    def _what_is_awaited(self) -> str:
        state, settings = self.state, self._limits
        if state.closed or (state.complete and not state.wait_list):
            return ""
        if state.complete:
            silent_s = settings.keep_alive_interval * settings.keep_alive_max_attempt
            return (
                f"{names(state.wait_list)} here; waiting until {names(state.participants)} "
                f"stopped too, or was silent for {silent_s.total_seconds():.0f} s"
            )
        there = f"{names(state.participants) or 'none'} here"
        if len(state.participants) >= settings.min_nodes:
            return f"{there}; waiting a moment for more (--rdzv-conf last_call_timeout=SECONDS)"
        left_s = settings.timeout.join.total_seconds() - (time.monotonic() - self._waits_since_s)
        return (
            f"{there}; waiting for {settings.min_nodes - len(state.participants)} more of at "
            f"least {settings.min_nodes} nodes, for {left_s:.0f} s more (--connect-timeout)"
        )


def names(nodes: Iterable[NodeDesc]) -> str:
    """Return the addresses of nodes, at most eight of them."""
    found = [node.addr for node in sorted(nodes)]
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    return ", ".join(found[:8]) + more
