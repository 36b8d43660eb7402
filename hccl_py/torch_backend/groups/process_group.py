"""The process group of "hccl": a Python subclass of torch's, which calls it without a dispatcher.

It has no C++ backend. C++ calls the names in camel case. Torch's Python code calls the others,
whose C++ versions would raise or crash. `_get_backend` returns the group itself, so the group also
has a backend's methods. It must not have a method `new_group`: torch would delegate to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
import torch.distributed as dist

from hccl_py.membership.subset import check_ranks
from hccl_py.torch_backend.checks.arguments import seconds_of
from hccl_py.torch_backend.collectives import TorchCollectives
from hccl_py.transport.errors import InvalidArgumentError

if TYPE_CHECKING:
    _TorchGroup = object  # the stub's overloads name C++ signatures that no Python method can match
else:
    _TorchGroup = dist.ProcessGroup


class ProcessGroupHccl(TorchCollectives, _TorchGroup):
    """A torch.distributed process group whose collectives run on hccl-py."""

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set the name under which functional collectives find the group."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """Return the group's name."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Set the user's description."""
        self._description = description
        self._describe(description=description)

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the user's description."""
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        # From 2.15 on torch reads it while it makes a group, to attach a recorder to each device's
        # C++ backend. A group without a C++ backend must name no device then.
        groups: Any = dist.distributed_c10d._world.pg_map
        if self not in groups:
            return []
        others = self.backends.others
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        known = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
        return [torch.device(kind) for kind in known if kind not in others][:1]

    def _get_backend(self, device: torch.device | str) -> ProcessGroupHccl:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if torch.device(device).type in ("cpu", accelerator and accelerator.type):
            return self
        raise RuntimeError(f"hccl carries no tensors on {device}")

    get_backend = _get_backend

    def _has_hooks(self) -> bool:
        return False

    def _needs_backend(self, *_: object) -> NoReturn:
        """Raise an error that names the kind of group which torch's dispatcher calls."""
        raise InvalidArgumentError(
            "torch runs hooks around the calls of a group only if hccl is a backend of torch's own "
            "group: set HCCL_NATIVE_BACKEND=1, or name several backends, such as "
            '"cpu:hccl,cuda:gloo", with torch 2.14 or newer (docs/api/mixed-groups.md)'
        )

    register_pre_hook = register_post_hook = register_abort_hook = _needs_backend

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,
    ) -> ProcessGroupHccl | None:
        """Return a group of some ranks of this one, which torch does not know; None on the others.

        `torch.distributed.split_group` and `new_group` register their groups with torch.

        Args:
            ranks: of this group, in their new order; all of them call this.
            timeout: of the new group; None: the same as here.
            group_name: of the new group, the same on all of its ranks.

        Raises:
            InvalidArgumentError: these are not ranks of this group.
            DistBackendError: a rank did not arrive, or died.
        """
        members = check_ranks("ranks", self.size(), ranks)
        if self.rank() not in members:
            return None
        self._splits[tuple(members)] += 1
        part = f"split/{'-'.join(map(str, members))}/{self._splits[tuple(members)]}"
        name = group_name or f"{self._name}/{part}"
        limit_s = None if timeout is None else seconds_of(timeout)
        made = self.subset(members, name, limit_s)
        world_ranks = [self.global_ranks[rank] for rank in members]
        group = cast(ProcessGroupHccl, self._derived(made, part, world_ranks, name))
        group.setGroupDesc(group_desc or f"{self._description}:split")
        return group

    def merge_remote_group(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise an error that names the alternative, `new_group`."""
        raise InvalidArgumentError(
            "merge_remote_group: hccl groups cannot be merged; put all ranks in one job with "
            "torch.distributed.init_process_group, and make the parts with new_group(ranks)"
        )
