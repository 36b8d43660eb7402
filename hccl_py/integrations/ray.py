"""`ray.util.collective` on hccl: the backend "hccl", between Ray's actors and tasks.

    from hccl_py.integrations.ray import register

    ray.init(runtime_env={"worker_process_setup_hook": register})
    register()  # in the driver too, for create_collective_group

Importing this module imports Ray. Ray's own calls check their arguments; they hand each array over
in a list, and several of them for the GPUs of a process.
"""

import time
from typing import Any

import ray
from ray.experimental import internal_kv
from ray.util.collective.backend_registry import BackendRegistry, register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from hccl_py.communicator import Communicator
from hccl_py.membership.unique_id import get_unique_id
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.types import ReduceOp

BACKEND = "HCCL"
_NAMESPACE = b"hccl"
_CONNECT_S = 120.0
_PAUSE_S = 0.05


def register() -> None:
    """Make the backend known to Ray in this process; the driver and each worker need it."""
    if not BackendRegistry().is_registered(BACKEND):
        register_collective_backend(BACKEND, HcclGroup)


class HcclGroup(BaseGroup):  # type: ignore[misc]  # ray may not be installed
    """A collective group of Ray on a communicator; arrays of numpy, and tensors on the CPU.

    Attributes:
        communicator: for calls that Ray does not have.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        """Connect all ranks of the group; BootstrapError: one did not come within 120 s."""
        super().__init__(world_size, rank, group_name)
        self.communicator = _connect(world_size, rank, group_name)

    @classmethod
    def backend(cls) -> str:
        """Return the name of the backend."""
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Return that it works wherever it is installed."""
        return True

    def destroy_group(self) -> None:
        """Leave the group."""
        self.communicator.close()

    def allreduce(self, tensor: list[Any], allreduce_options: Any = None) -> None:
        """Reduce in place."""
        data = _only(tensor, "allreduce")
        op, limit = _op(allreduce_options), _limit(allreduce_options)
        self.communicator.all_reduce(data, op, timeout_s=limit)

    def barrier(self, barrier_options: Any = None) -> None:
        """Wait for all ranks."""
        self.communicator.barrier(timeout_s=_limit(barrier_options))

    def reduce(self, tensor: list[Any], reduce_options: Any = None) -> None:
        """Reduce in place on the root; other ranks keep their array."""
        data = _only(tensor, "reduce")
        root, op = _root(reduce_options), _op(reduce_options)
        self.communicator.reduce(data, root, op, timeout_s=_limit(reduce_options))

    def allgather(
        self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: Any = None
    ) -> None:
        """Copy each rank's array to a list of arrays."""
        data, blocks = _only(tensor, "allgather"), _only(tensor_list, "allgather")
        self.communicator.all_gather(blocks, data, timeout_s=_limit(allgather_options))

    def broadcast(self, tensor: list[Any], broadcast_options: Any = None) -> None:
        """Copy the root's array to all."""
        data = _only(tensor, "broadcast")
        limit = _limit(broadcast_options)
        self.communicator.broadcast(data, _root(broadcast_options), timeout_s=limit)

    def reducescatter(
        self, tensor: list[Any], tensor_list: list[list[Any]], reducescatter_options: Any = None
    ) -> None:
        """Reduce a list of arrays, and keep the array of this rank."""
        data, blocks = _only(tensor, "reducescatter"), _only(tensor_list, "reducescatter")
        op, limit = _op(reducescatter_options), _limit(reducescatter_options)
        self.communicator.reduce_scatter(data, blocks, op, timeout_s=limit)

    def send(self, tensor: list[Any], send_options: Any) -> None:
        """Send an array to a rank, which receives it."""
        data = _only(tensor, "send", send_options)
        self.communicator.send(data, send_options.dst_rank, timeout_s=_limit(send_options))

    def recv(self, tensor: list[Any], recv_options: Any) -> None:
        """Receive an array of a rank."""
        data = _only(tensor, "recv", recv_options)
        self.communicator.recv(data, recv_options.src_rank, timeout_s=_limit(recv_options))


def _connect(world_size: int, rank: int, group_name: str) -> Communicator:
    """Meet by a unique id, which rank 0 publishes in Ray's key-value store."""
    job = ray.get_runtime_context().get_job_id()
    key = f"{job}/{group_name}".encode()
    end_s = time.monotonic() + _CONNECT_S
    name = f"ray/{group_name}"
    if rank == 0:
        made = get_unique_id(_CONNECT_S)
        internal_kv._internal_kv_put(key, bytes(made), overwrite=True, namespace=_NAMESPACE)
        try:
            return Communicator(made, rank, world_size, timeout_s=_CONNECT_S, name=name)
        finally:
            # Each rank has read it, or the group has failed.
            internal_kv._internal_kv_del(key, namespace=_NAMESPACE)
    tried: bytes | None = None
    failure: BootstrapError | None = None
    while time.monotonic() < end_s:
        found = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
        if found is not None and found != tried:
            tried, left_s = found, max(1.0, end_s - time.monotonic())
            try:
                return Communicator(found, rank, world_size, timeout_s=left_s, name=name)
            except BootstrapError as error:  # perhaps of an actor that died before it deleted it
                failure = error
        time.sleep(_PAUSE_S)
    raise failure or BootstrapError(
        f"group {group_name}, rank {rank} of {world_size}: rank 0 did not come in {_CONNECT_S:g} s"
    )


def _only(arrays: list[Any], call: str, options: Any = None) -> Any:
    """Return the array of a call; Ray's calls for several GPUs are refused by their name."""
    if len(arrays) != 1 or (options is not None and options.n_elements):
        raise InvalidArgumentError(
            f"{call}_multigpu: expected one array on the CPU in each process, got arrays of "
            f"{len(arrays)} GPUs; call {call}, with one actor for each rank"
        )
    if hasattr(arrays[0], "__cuda_array_interface__"):
        raise InvalidArgumentError(f"{call}: expected an array on the CPU, got one on a GPU")
    return arrays[0]


def _op(options: Any) -> ReduceOp:
    """Return the reduction; Ray's names are SUM, PRODUCT, MIN and MAX."""
    return ReduceOp.SUM if options is None else ReduceOp[options.reduceOp.name]


def _root(options: Any) -> int:
    return 0 if options is None else int(options.root_rank)


def _limit(options: Any) -> float | None:
    """Return the deadline of a call in seconds; Ray's default is -1 ms, for none."""
    given = getattr(options, "timeout_ms", None)
    if given is None:
        return None
    limit_s = given / 1000 if isinstance(given, int | float) else given.total_seconds()
    return None if limit_s < 0 else float(limit_s)
