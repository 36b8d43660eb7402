"""Protection domain and memory region: the memory that requests may access."""

from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.providers.verbs.types import Access, ScatterGather
from hccl_py.transport.verbs.device import Device, Domain, Resource


class ProtectionDomain(Resource[Domain]):
    """Keeps memory regions and the queue pairs that may use them together; ibv_pd.

    A context manager: closes its queue pairs, then its regions. An open region stays alive: its key
    is valid, so its memory must be too.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device, device.new_domain())
        self.device = device

    def register(self, buffer: object, access: Access = Access.LOCAL_WRITE) -> "MemoryRegion":
        """Register memory (ibv_reg_mr).

        Args:
            buffer: anything with the buffer protocol, C-contiguous: bytes, bytearray, numpy array.
                Writable unless `access` is LOCAL_READ or REMOTE_READ only. Kept alive and, where
                Python can, fixed in size until the region is closed.
            access: permitted uses. REMOTE_WRITE needs LOCAL_WRITE.

        Raises:
            InvalidArgumentError: the buffer does not fit, or `access` is invalid.
        """
        return MemoryRegion(self, buffer, access)


class MemoryRegion(Resource[Domain]):
    """Registered memory; ibv_mr. A context manager. `ProtectionDomain.register` makes one.

    close() makes both keys invalid at once (ibv_dereg_mr).

    Attributes:
        address: of the first byte; peers name it in RDMA requests.
        length: bytes.
        lkey: for the pieces of this side's requests.
        rkey: for the peer's RDMA requests.
    """

    closes_after_siblings = True

    def __init__(self, domain: ProtectionDomain, buffer: object, access: Access) -> None:
        writable = bool(access & (Access.LOCAL_WRITE | Access.REMOTE_WRITE))
        try:
            # The view also prevents resizing of a bytearray while the engine uses it.
            self._view = memoryview(buffer)  # type: ignore[arg-type]
            self.address = _core.address_of(buffer, writable)
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidArgumentError(
                f"cannot register {type(buffer).__name__}: {error}"
            ) from error
        self.length = self._view.nbytes
        self.lkey, self.rkey = domain.core.register_memory(self.address, self.length, int(access))
        super().__init__(domain, domain.core)

    def piece(self, offset: int = 0, length: int | None = None) -> ScatterGather:
        """Return a part of the region for a work request; by default all from `offset` on.

        Nothing is checked here: a wrong range ends the request with an error, as on hardware.
        """
        if length is None:
            length = self.length - offset
        return ScatterGather(self.address + offset, length, self.lkey)

    def _release(self) -> None:
        self._core.deregister_memory(self.lkey)
        self._view.release()
