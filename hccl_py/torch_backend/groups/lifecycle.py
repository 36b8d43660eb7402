"""Makes the groups of this process, and ends them: at exit, and in a forked child."""

import sys
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.distributed_c10d import _get_default_store

from hccl_py.calls.recording import GUARDS
from hccl_py.communicator import Communicator
from hccl_py.membership.lives import life_at
from hccl_py.membership.settings import wait_of
from hccl_py.torch_backend import ALIAS, NAME, TESTED_TORCH, compat, owns
from hccl_py.torch_backend.checks.arguments import seconds_of
from hccl_py.torch_backend.collectives import TorchCollectives
from hccl_py.torch_backend.groups.backend import HcclBackend, backend_of, is_alone, is_wanted
from hccl_py.torch_backend.groups.identity import GROUPS
from hccl_py.torch_backend.groups.process_group import ProcessGroupHccl
from hccl_py.torch_backend.groups.reconfigure import ReconfigurableGroup
from hccl_py.torch_backend.instruments.capture_guard import OnlyCollectives
from hccl_py.torch_backend.instruments.debug_server import answer_debug_server
from hccl_py.torch_backend.training.step_count import count_steps
from hccl_py.torch_backend.work import as_torch_error
from hccl_py.transport.errors import HcclError
from hccl_py.transport.process_lifecycle import LifecycleStage, register


def create(options: Any, config: str, pg_options: Any = None) -> TorchCollectives:
    """Connect the ranks of a new group; torch calls this once for each group and member.

    A subset of the default group is made from it; any other group meets at its own store. The
    options are torch's `_DistributedBackendOptions`, `config` the user's backends of the group. Of
    `pg_options` a dictionary may have `wait`, as Communicator's; a group that changes ignores it.

    Raises:
        InvalidArgumentError: there is no such way to wait.
        DistBackendError: the ranks did not find each other in time, or the default group failed.
    """
    wait = pg_options.get("wait") if isinstance(pg_options, dict) else None
    if wait is not None:
        wait_of(wait)
    compat.apply_all()
    if (dist.get_rank() if dist.is_initialized() else options.group_rank) == 0:
        _warn_of_untested_torch(torch.__version__)
        _warn_of_other_owner()
    changes = getattr(options, "enable_reconfigure", False) and is_alone(config)
    group = (
        ReconfigurableGroup.unconnected(options) if changes else _connected(options, config, wait)
    )
    count_steps()
    answer_debug_server()
    return group


def _connected(options: Any, config: str, wait: str | None) -> TorchCollectives:
    ranks, name = options.global_ranks_in_group, options.group_id
    timeout_s = seconds_of(options.timeout)
    default = backend_of(dist.group.WORLD) if dist.is_initialized() else None
    try:
        if default is not None and _is_subset(default, options):
            made = default.subset(ranks, name, timeout_s)
        else:
            member = options.group_rank, options.group_size
            with life_at(options.store, *member, timeout_s) as store:
                made = Communicator(store, *member, timeout_s=timeout_s, name=name)
    except HcclError as error:
        raise as_torch_error(error)  # noqa: B904  # it names its cause
    if wait is not None:
        made.wait = wait
    if not is_wanted(config):
        return ProcessGroupHccl(made, options.store, ranks, name)
    backend = HcclBackend(made, options.store, ranks, name)
    backend.recorded = options.process_group
    return backend


@cache  # once in a process
def _warn_of_untested_torch(version: str) -> None:
    if ".".join(version.split(".")[:2]) not in TESTED_TORCH:
        tested = ", ".join(TESTED_TORCH)
        text = f"hccl: warning: torch {version} was not tested with hccl-py; tested: {tested}"
        print(text, file=sys.stderr, flush=True)


@cache
def _warn_of_other_owner() -> None:
    offers = entry_points(group="torch.distributed.backends", name=NAME)
    others = sorted({one.value for one in offers if not one.value.startswith("hccl_py.")})
    if others and owns(NAME):
        text = (
            f"hccl: warning: {', '.join(others)} also offers the torch.distributed backend "
            f'"{NAME}"; here it is hccl-py, whose second name is "{ALIAS}"'
        )
        print(text, file=sys.stderr, flush=True)


def _is_subset(default: TorchCollectives, options: Any) -> bool:
    """Return whether the new group consists of ranks of the default group.

    A group beside the default group, as in jobs that exchange weights, may have ranks of other
    jobs. Its store shows the difference: `dist.new_group` prefixes the default group's store twice,
    with the group's name and with the device.
    """
    ranks = list(options.global_ranks_in_group)
    return (
        len(ranks) == options.group_size
        and set(ranks) <= set(range(default.size()))
        and ranks[options.group_rank] == default.rank()
        and _parent_store(_parent_store(options.store)) is _get_default_store()
    )


def _parent_store(store: Store | None) -> Store | None:
    return store.underlying_store if isinstance(store, PrefixStore) else None


def _end_groups() -> None:
    for group in list(GROUPS):
        group.shutdown()


GUARDS.append(OnlyCollectives)
register(LifecycleStage.PROCESS_GROUPS, at_exit=_end_groups, in_forked_child=GROUPS.clear)
