"""Who takes part in a job of changing size, as the state in the store of all nodes says.

torch's own class compares heartbeats with the clock of the node that reads them. A node whose clock
is 15 s behind would be taken for dead, again and again. It is also silent while it waits.
"""

import time
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousSettings,
    _BackendRendezvousStateHolder,
    _NodeDesc,
)

from hccl_py.launcher.own_lines import WaitingLines, say


class Members(_BackendRendezvousStateHolder):
    """The state of the rendezvous; a node is dead if its heartbeat does not change."""

    def __init__(self, backend: Any, settings: RendezvousSettings, *rest: Any) -> None:
        """See torch's class."""
        super().__init__(backend, settings, *rest)
        # By node: its heartbeat, and when it came by the clock of this node.
        self._heartbeats: dict[_NodeDesc, tuple[datetime, datetime]] = {}
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
            say(what)
        return result

    def _sanitize(self) -> None:
        """Drop dead nodes, with all heartbeats in the time of this node's clock."""
        now, written = datetime.now(timezone.utc), self._state.last_heartbeats
        seen = {}
        for node, heartbeat in written.items():
            known = self._heartbeats.get(node)
            seen[node] = known if known and known[0] == heartbeat else (heartbeat, now)
        self._heartbeats = seen
        self._state.last_heartbeats = {node: came for node, (_, came) in seen.items()}
        super()._sanitize()
        self._state.last_heartbeats = {node: written[node] for node in self._state.last_heartbeats}

    def _what_is_awaited(self) -> str:
        state, settings = self._state, self._settings
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


def names(nodes: Iterable[_NodeDesc]) -> str:
    """Return the addresses of nodes, at most eight of them."""
    found = [node.addr for node in sorted(nodes)]
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    return ", ".join(found[:8]) + more
