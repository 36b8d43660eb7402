"""Groups of several backends, as "cpu:gloo,cuda:hccl" asks for.

Torch gives a group with one in Python in it to that one alone: what it made for the other devices
before is dropped, and what comes behind is never made. So a tensor that was to go to one of those
is refused, with what to write. Only once a group is made does torch tell for which devices: then a
group that is not to carry all of them becomes one of the class here, and others cost nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from hccl_py._autoload import ALIAS, NAME, owns
from hccl_py.torch_backend.process_group import ProcessGroupHccl
from hccl_py.transport.errors import InvalidArgumentError

_METHODS = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast"),
    *("reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("allgather", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced"),
    *("gather", "scatter", "alltoall", "all_to_all_single"),
    *("send", "recv", "recv_anysource"),
    *("_allgather_base", "allgather_into_tensor_coalesced"),
    *("_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall_base"),
)
"""Those that take tensors."""


class MixedProcessGroupHccl(ProcessGroupHccl):
    """A group that refuses tensors of devices that were to have another backend."""

    _others: Mapping[str, str] = {}
    """The other backends, by device type."""
    _config = ""
    """What the user asked for, as torch writes it."""

    @property
    def _device_types(self) -> list[torch.device]:
        devices = super()._device_types
        ours = [device for device in devices if device.type not in self._others]
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if ours or not devices or accelerator is None or accelerator.type in self._others:
            return ours
        return [torch.device(accelerator.type)]

    def split_group(self, *arguments: Any, **options: Any) -> Any:
        """Return a group of some ranks that refuses the same."""
        part: Any = super().split_group(*arguments, **options)
        if part is not None:
            part._others, part._config = self._others, self._config
        return part

    def _refuse_others(self, method: str, arguments: Iterable[object]) -> None:
        for tensor in _tensors(arguments):
            other = self._others.get(tensor.device.type)
            if other is not None:
                raise InvalidArgumentError(
                    f"{method}: got a tensor on {tensor.device}, which is for {other} in the "
                    f'backend "{self._config}" of this group; but torch gives a '
                    f"group with hccl in it to hccl alone. Make a second group for such tensors, "
                    f'torch.distributed.new_group(backend="{other}"), and pass it as `group`; or '
                    f'write backend="{NAME if owns(NAME) else ALIAS}", which takes them itself'
                )


def _guarded(name: str) -> Callable[..., Any]:
    method = getattr(ProcessGroupHccl, name)

    def guarded(self: MixedProcessGroupHccl, *arguments: Any, **options: Any) -> Any:
        self._refuse_others(name, [*arguments, *options.values()])
        return method(self, *arguments, **options)

    guarded.__name__, guarded.__doc__ = name, method.__doc__
    return guarded


for _name in _METHODS:
    setattr(MixedProcessGroupHccl, _name, _guarded(_name))


def _tensors(arguments: Iterable[object]) -> Iterator[torch.Tensor]:
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _tensors(argument)


def mend_registration() -> None:
    """Look at what a group of ours is for when torch registers it."""
    module: Any = dist.distributed_c10d
    original = getattr(module, "_register_pg_in_world", None)
    if original is None:
        return

    @functools.wraps(original)
    def register(*arguments: Any, **options: Any) -> Any:
        done = original(*arguments, **options)
        group = arguments[0] if arguments else options.get("pg")
        if isinstance(group, ProcessGroupHccl):
            _restrict(group, module._world.pg_backend_config.get(group, ""))
        return done

    module._register_pg_in_world = register


def _restrict(group: ProcessGroupHccl, config: str) -> None:
    """Make a group refuse the devices that its configuration gives to other backends."""
    pairs = [pair.split(":") for pair in config.split(",")]
    others = {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and not owns(pair[1])}
    if others:
        mixed: Any = group
        mixed.__class__ = MixedProcessGroupHccl
        mixed._others, mixed._config = others, config
