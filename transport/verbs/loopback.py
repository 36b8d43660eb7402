"""The loopback provider: both queue pairs live in this process; threads play the peers."""

import secrets
import threading
import weakref

from hccl_py.transport import _core

from ..errors import BootstrapError

_lock = threading.Lock()
_endpoints: "weakref.WeakValueDictionary[bytes, LoopbackEndpoint]" = weakref.WeakValueDictionary()


class LoopbackEndpoint:
    """One end. The end that connects first makes both lanes and leaves one for the other end."""

    def __init__(self) -> None:
        """Make this end known in the process."""
        self.address = secrets.token_bytes(16)
        self._left_for_me: dict[bytes, _core.UnderlyingLane] = {}
        with _lock:
            _endpoints[self.address] = self

    def connect(self, remote: bytes, timeout_s: float) -> _core.UnderlyingLane:
        """Connect; does not wait for the other end to do the same, so `timeout_s` is not needed."""
        with _lock:
            if remote in self._left_for_me:
                return self._left_for_me.pop(remote)
            peer = _endpoints.get(remote)
            if peer is None:
                raise BootstrapError("loopback: no queue pair of this process has that address")
            mine, theirs = _core.loopback_underlying_lanes()
            peer._left_for_me[self.address] = theirs
            return mine

    def close(self) -> None:
        """Forget this end."""
        with _lock:
            _endpoints.pop(self.address, None)
            self._left_for_me.clear()
