"""DeviceMesh: groups in several dimensions."""

import torch
import torch.distributed as dist
from features import feature
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

SECTION = "DTensor and tensor parallel"


def sum_of_ranks(mesh: DeviceMesh) -> float:
    """Return the sum of the ranks that a mesh of one dimension has."""
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor, group=mesh.get_group())
    return tensor.item()


@feature(SECTION, "init_device_mesh in two dimensions", world_size=4)
def test_mesh_of_two_dimensions(rank: int, world_size: int) -> list[object]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    columns, rows = mesh["replicate"], mesh["shard"]
    ranks = [dist.get_process_group_ranks(one.get_group()) for one in (columns, rows)]
    local = [mesh.get_local_rank(name) for name in ("replicate", "shard")]
    return [sum_of_ranks(columns), sum_of_ranks(rows), ranks, local, mesh.get_coordinate()]


@feature(SECTION, "init_device_mesh with backend_override", world_size=4)
def test_mesh_with_other_backends(rank: int, world_size: int) -> list[object]:
    """Some dimensions on gloo, some on hccl."""
    mesh = init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("a", "b"), backend_override={"a": "gloo", "b": "hccl"}
    )
    backends = [dist.get_backend(mesh[name].get_group()) for name in ("a", "b")]
    return [sum_of_ranks(mesh["a"]), sum_of_ranks(mesh["b"]), backends]
