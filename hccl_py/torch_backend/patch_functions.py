"""Functions of torch.distributed that do not expect a group that is written in Python.

Each is replaced in `torch.distributed`, and goes on to torch's own for every other group. Who has
imported one by name before the first group of ours was made has torch's; a group's method of the
same name does the same.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hccl_py.transport.errors import InvalidArgumentError

Function = Callable[..., Any]


def mend_functions(group_type: type[Any]) -> None:
    """Make torch's functions call the methods of groups in Python.

    Args:
        group_type: of the groups that need it.
    """
    module: Any = dist.distributed_c10d
    mends = {
        "monitored_barrier": _monitored_barrier,
        "_set_pg_timeout": _set_pg_timeout,
        "split_group": _split_group,
        "_coalescing_manager": _coalescing_manager,
    }
    for name, mend in mends.items():
        original = getattr(module, name, None)
        if original is None:
            continue
        mended = functools.wraps(original)(mend(original, group_type))
        setattr(module, name, mended)
        if getattr(dist, name, None) is original:
            setattr(dist, name, mended)


def _monitored_barrier(original: Function, group_type: type[Any]) -> Function:
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> Any:
        asked = group or dist.group.WORLD
        if not isinstance(asked, group_type):
            return original(group, timeout, wait_all_ranks)
        limit = timedelta(seconds=timeout) if isinstance(timeout, float) else timeout
        return asked.monitored_barrier(limit, wait_all_ranks)

    return monitored_barrier


def _set_pg_timeout(original: Function, group_type: type[Any]) -> Function:
    def set_pg_timeout(timeout: timedelta, group: Any = None) -> Any:
        asked = group or dist.group.WORLD
        if not isinstance(asked, group_type):
            return original(timeout, group)
        return asked.set_timeout(timeout)

    return set_pg_timeout


def _coalescing_manager(original: Function, group_type: type[Any]) -> Function:
    """End the batch of calls when its body raises: torch would keep all later calls for it."""

    @contextlib.contextmanager
    def coalescing_manager(
        group: Any = None, device: Any = None, async_ops: bool = False
    ) -> Iterator[Any]:
        asked = group or dist.group.WORLD
        try:
            with original(group, device, async_ops) as manager:
                yield manager
        except BaseException:
            if isinstance(asked, group_type):
                dist.distributed_c10d._world.pg_coalesce_state.pop(asked, None)
                asked._abandon_coalescing()
            raise

    return coalescing_manager


def _split_group(original: Function, group_type: type[Any]) -> Function:
    """Split a group of CPU tensors, which torch up to 2.14 refuses; others it does itself."""

    def split_group(
        parent_pg: Any = None,
        split_ranks: Sequence[Sequence[int]] | None = None,
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        **options: Any,
    ) -> Any:
        parent = parent_pg or dist.group.WORLD
        if not isinstance(parent, group_type):
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **options)
        mine = _split_of(parent.rank(), _checked_splits(split_ranks, parent.size()))
        if mine is None:
            return dist.GroupMember.NON_GROUP_MEMBER if _SPLITS_CPU_GROUPS else None
        world_ranks = dist.get_process_group_ranks(parent)
        # The members only, which meet in the default group: nobody else has to call.
        return dist.new_group(
            [world_ranks[rank] for rank in mine],
            timeout=timeout or timedelta(seconds=parent._communicator.timeout_s),
            backend=options.get("backend") or dist.get_backend(parent),
            pg_options=pg_options,
            use_local_synchronization=True,
            group_desc=group_desc or f"{parent.group_desc}:split",
            sort_ranks=False,
        )

    return split_group


_SPLITS_CPU_GROUPS = hasattr(dist, "set_timeout")
"""Whether this torch does, as it does since it has this function; the rest are then no members."""


def _checked_splits(splits: Any, world_size: int) -> Sequence[Sequence[int]]:
    """Return the splits, each of which must be different ranks of the parent, none in two."""
    wanted = "split_group: expected `split_ranks` to be lists of ranks of the parent group, "
    if not splits or any(isinstance(split, int) or not split for split in splits):
        raise InvalidArgumentError(f"{wanted}such as [[0, 1], [2, 3]]; got {splits!r}")
    ranks = [rank for split in splits for rank in split]
    if any(rank not in range(world_size) for rank in ranks):
        raise InvalidArgumentError(f"{wanted}0 to {world_size - 1}; got {splits!r}")
    if len(set(ranks)) != len(ranks):
        raise InvalidArgumentError(f"{wanted}each at most once; got {splits!r}")
    found: Sequence[Sequence[int]] = splits
    return found


def _split_of(rank: int, splits: Sequence[Sequence[int]]) -> Sequence[int] | None:
    return next((split for split in splits if rank in split), None)
