"""torch's rendezvous of the nodes, with our view of its members and our port for rank 0's store."""

import os
from collections.abc import Callable
from contextlib import suppress

from torch._C._distributed_c10d import Store
from torch.distributed.elastic.rendezvous import registry
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    create_handler,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig

from hccl_py.launcher.elastic.meeting import is_here
from hccl_py.launcher.elastic.members import Members, NodeDesc
from hccl_py.launcher.options import DEFAULT_MASTER_PORT
from hccl_py.schedulers.ports import free_port

_PORT = "hccl-launch/port"


class Rendezvous(DynamicRendezvousHandler):
    """torch's, for nodes that meet in a store of c10d.

    Attributes:
        store: of all nodes.
        members: who takes part.
        node: this one.
    """

    def __init__(
        self,
        store: Store,
        backend: RendezvousBackend,
        params: RendezvousParameters,
        say: Callable[[str], None],
    ) -> None:
        """Join nobody yet; `say` takes lines for the user."""
        settings = create_handler(store, backend, params).settings
        self.store, self.members = store, Members(backend, settings, say=say)
        self.node = NodeDesc(params.local_addr or "127.0.0.1", os.getpid(), 0)
        super().__init__(self.node, settings, backend.name, store, self.members)

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next start of the ranks."""
        info = super().next_rendezvous()
        assert info.bootstrap_store_info is not None
        # Seconds pass until rank 0 listens there. An outgoing connection may take torch's port.
        if info.rank == 0:
            info.store.set(_PORT, str(free_port()))
        port = int(info.store.get(_PORT))
        where = RendezvousStoreInfo(info.bootstrap_store_info.master_addr, port)
        return RendezvousInfo(info.store, info.rank, info.world_size, where)


def join(config: LaunchConfig, say: Callable[[str], None]) -> RendezvousHandler:
    """Connect to where the nodes meet; torch knows every backend but c10d."""

    def params(**more: object) -> RendezvousParameters:
        return RendezvousParameters(
            config.rdzv_backend,
            config.rdzv_endpoint,
            config.run_id,
            config.min_nodes,
            config.max_nodes,
            config.local_addr,
            **{**config.rdzv_configs, **more},
        )

    # torch would share its own store with the ranks: with the keys of the failed attempt, at which
    # ended ranks would be dialled, and unknown to nodes that join later.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if config.rdzv_backend != "c10d":
        return registry.get_rendezvous_handler(params())
    return _at_store(params, say)


def _at_store(
    params: Callable[..., RendezvousParameters], say: Callable[[str], None]
) -> Rendezvous:
    given = params()
    if given.get("is_host") is None:
        host, _ = parse_rendezvous_endpoint(given.endpoint, DEFAULT_MASTER_PORT)
        if is_here(host):
            # Another process of this machine may be the one that serves the store.
            with suppress(RendezvousConnectionError):
                backend, store = create_backend(params(is_host=True))
                return Rendezvous(store, backend, given, say)
        given = params(is_host=False)
    backend, store = create_backend(given)
    return Rendezvous(store, backend, given, say)
