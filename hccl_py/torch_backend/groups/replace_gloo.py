"""HCCL_REPLACE: hccl replaces gloo, while the program still sees the name gloo.

By `gloo` the default group, and every group made from it without an explicit backend, uses hccl.
Torch's records of them still name gloo, because frameworks compare that name. A group with an
explicit `new_group(backend="gloo")` uses gloo. By `gloo:all` it uses hccl too, beside any default
group. In a group of several backends hccl replaces gloo's part; before torch 2.14 only if no
accelerator could use the others, because such a group would be hccl's alone.
"""

import functools
import os
import re
import sys
from typing import Any

from hccl_py.torch_backend import ALIAS

VARIABLE = "HCCL_REPLACE"
_GLOO = "gloo"
ALL = "gloo:all"
VALUES = (_GLOO, ALL)


def replace_gloo() -> None:
    """Programs name gloo, which HCCL_REPLACE replaces by hccl. `import torch` applies this patch
    only if the variable is set.
    """
    from torch import distributed as dist
    from torch.distributed import device_mesh
    from torch.distributed import distributed_c10d as c10d

    init, new = c10d.init_process_group, c10d._new_group_with_tag

    @functools.wraps(init)
    def init_process_group(backend: Any = None, *rest: Any, **named: Any) -> None:
        _check()
        shown = _shown_name(backend, named.get("device_id"))
        if shown is None:
            init(backend, *rest, **named)
            if _names_gloo(backend):
                _say(f"leaves {backend} alone: torch would give the accelerator's tensors to hccl")
            return
        init(_replaced(shown), *rest, **named)
        _show(dist.group.WORLD, shown)

    @functools.wraps(new)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *rest: Any, **named: Any
    ) -> Any:
        shown: str | None = None
        if not backend:
            shown = _name_in_records(dist.group.WORLD)
        elif os.environ.get(VARIABLE) == ALL:
            shown = _shown_name(backend, None)
        group = new(ranks, timeout, _replaced(shown) if shown else backend, *rest, **named)
        if shown and isinstance(group, dist.ProcessGroup):
            _show(group, shown)
        return group

    for module in (c10d, dist, device_mesh):  # each has its own reference
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
    c10d._new_group_with_tag = new_group


def _check() -> None:
    if (value := os.environ[VARIABLE]) not in VALUES:
        raise ValueError(f"{VARIABLE}: expected {' or '.join(VALUES)}, got {value!r}")


def _shown_name(backend: Any, device_id: Any) -> str | None:
    """Return the name that `get_backend()` shows for a group with hccl in it; None: without."""
    import torch

    has_accelerator = torch.accelerator.is_available()
    if backend is None:
        return None if has_accelerator or device_id is not None else _GLOO
    name = str(backend).lower()
    return name if _names_gloo(name) and (_replaced(name) == ALIAS or _can_mix()) else None


def _can_mix() -> bool:
    from hccl_py.torch_backend.groups.backend import IS_SUPPORTED

    return IS_SUPPORTED


def _replaced(name: str) -> str:
    """Return the backends to make in the place of `name`, which names gloo."""
    import torch

    pairs = name.split(",")
    if all(each.endswith(_GLOO) for each in pairs) or not torch.accelerator.is_available():
        return ALIAS
    return ",".join(re.sub(f":{_GLOO}$", f":{ALIAS}", each) for each in pairs)


def _name_in_records(group: Any) -> str:
    from hccl_py.torch_backend.groups.backend import backend_of

    part = backend_of(group)
    return "" if part is None else part.shown_as


def _names_gloo(backend: Any) -> bool:
    """Return whether torch would give CPU tensors to gloo under this name."""
    parts = str(backend).lower().split(",")
    return parts == [_GLOO] or f"cpu:{_GLOO}" in parts


def _show(group: Any, name: str) -> None:
    """Have torch's records name `name`, once the group has read the true names, and say so."""
    from torch.distributed import distributed_c10d as c10d

    from hccl_py.torch_backend.groups.backend import backend_of

    world: Any = c10d._world
    part: Any = backend_of(group)
    part.backends  # noqa: B018  # reads them
    part.shown_as = name
    backend = c10d.Backend(name)
    world.pg_map[group] = (backend, world.pg_map[group][1])
    world.pg_backend_config[group] = str(c10d.BackendConfig(backend))
    if group is c10d.GroupMember.WORLD:
        c10d._backend = backend
    _say(f"hccl carries CPU tensors in place of gloo; get_backend() still answers {name}")


@functools.cache  # prints each text once
def _say(text: str) -> None:
    from torch import distributed as dist

    if dist.get_rank() == 0:
        print(f"hccl: {VARIABLE}={os.environ[VARIABLE]}: {text}", file=sys.stderr, flush=True)
