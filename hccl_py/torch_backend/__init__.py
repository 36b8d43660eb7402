"""The torch.distributed backend "hccl". Only this folder and the layers above import torch.

collectives     the collectives that torch calls; read first
checks/         the arguments of a call as plain buffers
submit, work    checked calls on the communicator, and torch's Work
groups/         process groups and backends, their beginning and end
training/       models whose gradients or buffers lie in registered memory
compat/         all changes to torch, one file for each version that needs its own
staging/        tensors of an accelerator, through host memory
instruments/    the groups' calls in torch's profilers, dispatch modes and debug server

This file has torch's names of this backend; it does not import torch.
"""

import functools
import importlib
import os
import re
from collections.abc import Callable
from typing import Any

NAME = "hccl"
ALIAS = "hccl_py"
"""Always registered: Habana's and Ascend's plug-ins register `NAME` too, and the last one wins."""

TESTED_TORCH = ("2.13", "2.14", "2.15")
"""Versions with which the tests that need torch passed; the matrix of the hosted CI has these."""

AFTER_IMPORT: dict[str, Callable[[], None]] = {}
"""By module of torch, what to do once a program has imported it; see `_autoload.py`."""

_FEW_DESCRIPTORS = 64  # torch's store needs about twenty, and says only that it failed
_STORE_GRACE_S = 1.0  # torch's own error comes first, where it is in time
_STARTED_BY = (
    *("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_JOB_ID"),
    *("JOB_COMPLETION_INDEX", "PET_NODE_RANK", "NODE_RANK", "GROUP_RANK"),
    *("AWS_BATCH_JOB_NODE_INDEX", "SM_HOSTS", "VC_TASK_INDEX", "VK_TASK_INDEX"),
    *("LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "SKYPILOT_NODE_RANK", "DSTACK_NODE_RANK"),
    *("LSB_JOBID", "PBS_JOBID", "NHOSTS", "PE_HOSTFILE", "OAR_JOB_ID", "COBALT_JOBID"),
    *("AZ_BATCH_HOST_LIST", "_CONDOR_NPROCS", "AWS_BATCH_JOB_NUM_NODES", "SKYPILOT_NUM_NODES"),
    *("DSTACK_NODES_NUM", "CLUSTER_SPEC", "TF_CONFIG", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    *("FLUX_TASK_RANK", "FLUX_JOB_NNODES", "FLUX_JOB_SIZE", "FLUX_JOB_ID", "FLUX_URI"),
    *("FLUX_ENCLOSING_ID", "PJM_JOBID"),
)
"""Every scheduler's environment has one of these variables."""


def owns(name: str | None) -> bool:
    """Return whether torch has hccl-py's backend under this name."""
    if name not in (NAME, ALIAS):
        return False
    import torch.distributed as dist

    plugin = dist.Backend._plugins.get(name.upper())
    return plugin is not None and plugin.creator_fn.__module__ == "hccl_py._autoload"


def watch_backend_names(creator: Callable[..., Any], warn: Callable[[], None]) -> None:
    """Torch silently replaces a backend of the same name; hccl-py warns once when another package
    registers "hccl" after it. `import torch` applies this patch.
    """
    import torch.distributed as dist

    backend: Any = dist.Backend
    original = backend.register_backend

    @functools.wraps(original)
    def register_backend(name: str, func: Any, *arguments: Any, **options: Any) -> Any:
        done = original(name, func, *arguments, **options)
        if func is not creator and str(name).lower() == NAME:
            backend.register_backend = original
            warn()
        return done

    backend.register_backend = staticmethod(register_backend)


def let_signals_interrupt_rendezvous() -> None:
    """Torch waits for the store and the other ranks in C++, where no signal handler runs, and for
    up to twice its timeout where nobody serves the store. `import torch` applies this patch,
    because the group's backend is known only afterwards.
    """
    # In `torch.distributed` its name is also a function's.
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    original = rendezvous._create_c10d_store

    @functools.wraps(original)
    def create(
        host: str, port: int, rank: int, size: int, timeout: Any, *rest: Any, **options: Any
    ) -> Any:
        from hccl_py.transport.network.system_calls import descriptor_limits
        from hccl_py.transport.threads import call_interruptibly, is_of_signal_handler

        arguments = (host, port, rank, size, timeout, *rest)
        try:
            limit_s = timeout.total_seconds() + _STORE_GRACE_S
            return call_interruptibly(lambda: original(*arguments, **options), limit_s)
        except TimeoutError as error:
            if is_of_signal_handler(error):
                raise
            raise importlib.import_module("torch.distributed").DistNetworkError(
                f"rank {rank}: the store at {host}:{port} (MASTER_ADDR:MASTER_PORT): {error}: "
                "rank 0 did not come, or failed before it served it; look at its output first"
            ) from None
        except RuntimeError as error:
            limit = descriptor_limits()[0]
            if limit > _FEW_DESCRIPTORS or is_of_signal_handler(error):
                raise
            text = f"rank {rank}: {error}: ulimit -n is {limit}; raise it there"
            raise type(error)(text) from error

    rendezvous._create_c10d_store = create


def is_scheduled() -> bool:
    """Return whether a scheduler started this process without RANK."""
    return not os.environ.get("RANK") and any(name in os.environ for name in _STARTED_BY)


def adopt_rank_of_scheduler() -> None:
    """Torch reads RANK, …, MASTER_PORT, which srun and mpirun do not set; hccl-py sets them for its
    own groups. `import torch` applies this patch only if `is_scheduled`.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    original = distributed_c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(
        backend: Any = None, init_method: Any = None, *rest: Any, **named: Any
    ) -> None:
        names = ("timeout", "world_size", "rank", "store")
        given = {**dict(zip(names, rest, strict=False)), **named}
        is_ours = any(owns(name) for name in re.split("[:,]", str(backend).lower()))
        from_environment = init_method in (None, "env://") and given.get("store") is None
        if is_ours and from_environment and given.get("rank", -1) == -1:
            from hccl_py.schedulers.adopt import adopt

            adopt()
        original(backend, init_method, *rest, **named)

    distributed_c10d.init_process_group = dist.init_process_group = init_process_group
