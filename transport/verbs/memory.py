"""Protection domain and memory region: what may be touched, and by whom."""

from typing import Protocol

from hccl_py.transport import _core

from ..errors import InvalidArgumentError
from .device import Device
from .types import Access, ScatterGather


class _Child(Protocol):
    def close(self) -> None: ...

    def leave_to_parent(self) -> None: ...


class ProtectionDomain:
    """Keeps memory regions and the queue pairs that may use them together; ibv_pd.

    A context manager: closes its queue pairs, then its regions.
    """

    def __init__(self, device: Device) -> None:
        """Make a domain on a device (ibv_alloc_pd)."""
        self.device = device
        self._core = _core.ProtectionDomain()
        self._pairs: list[_Child] = []
        # A region is kept until it is closed: its key is valid, so its memory has to be.
        self._regions: list[MemoryRegion] = []
        self._closed = False
        device.core  # noqa: B018 - raises if the device is closed
        device.adopt(self)

    def __enter__(self) -> "ProtectionDomain":
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @property
    def core(self) -> _core.ProtectionDomain:
        """The engine's object; raises InvalidArgumentError after close()."""
        if self._closed:
            raise InvalidArgumentError("the protection domain is closed")
        return self._core

    def register(self, buffer: object, access: Access = Access.LOCAL_WRITE) -> "MemoryRegion":
        """Register memory (ibv_reg_mr).

        Args:
            buffer: anything with the buffer protocol, C-contiguous: bytes, bytearray, numpy array.
                Writable unless `access` is LOCAL_READ or REMOTE_READ only. Kept alive and, where
                Python can, fixed in size until the region is closed.
            access: what it may be used for. REMOTE_WRITE needs LOCAL_WRITE.

        Raises:
            InvalidArgumentError: no such buffer, or access that makes no sense.
        """
        region = MemoryRegion(self, buffer, access)
        self._regions.append(region)
        return region

    def adopt(self, pair: _Child) -> None:
        """Close this queue pair before the domain."""
        self._pairs.append(pair)

    def disown(self, child: _Child) -> None:
        """Forget an object that closes itself."""
        for children in (self._pairs, self._regions):
            if child in children:
                children.remove(child)  # type: ignore[arg-type]

    def close(self) -> None:
        """Close queue pairs and regions, then the domain (ibv_dealloc_pd). Idempotent."""
        if self._closed:
            return
        for child in (*self._pairs, *self._regions):
            child.close()
        self._closed = True
        self.device.disown(self)

    def leave_to_parent(self) -> None:
        """See `Device.leave_to_parent`."""
        self._closed = True
        for child in (*self._pairs, *self._regions):
            child.leave_to_parent()


class MemoryRegion:
    """Registered memory; ibv_mr. A context manager. `ProtectionDomain.register` makes one.

    Attributes:
        address: of the first byte; peers name it in RDMA requests.
        length: bytes.
        lkey: for the pieces of this side's requests.
        rkey: for the peer's RDMA requests.
    """

    def __init__(self, domain: ProtectionDomain, buffer: object, access: Access) -> None:
        """Register; see ProtectionDomain.register."""
        writable = bool(access & (Access.LOCAL_WRITE | Access.REMOTE_WRITE))
        try:
            # The view also keeps a bytearray from being resized under the engine's hands.
            self._view = memoryview(buffer)  # type: ignore[arg-type]
            self.address = _core.address_of(buffer, writable)
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidArgumentError(
                f"cannot register {type(buffer).__name__}: {error}"
            ) from error
        self.length = self._view.nbytes
        self.lkey = self.rkey = domain.core.register_memory(self.address, self.length, int(access))
        self._domain = domain
        self._closed = False

    def __enter__(self) -> "MemoryRegion":
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def piece(self, offset: int = 0, length: int | None = None) -> ScatterGather:
        """Name a part of the region, for a work request; by default all from `offset` on.

        Nothing is checked here: a wrong range ends the request with an error, as on hardware.
        """
        if length is None:
            length = self.length - offset
        return ScatterGather(self.address + offset, length, self.lkey)

    def close(self) -> None:
        """Make both keys invalid at once (ibv_dereg_mr). Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._domain.core.deregister_memory(self.lkey)
        self._domain.disown(self)
        self._view.release()

    def leave_to_parent(self) -> None:
        """See `Device.leave_to_parent`."""
        self._closed = True
