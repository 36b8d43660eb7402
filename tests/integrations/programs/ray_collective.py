"""Two actors call each collective of ray.util.collective, and compare with numpy."""

import numpy as np
import ray
import torch
from ray.util import collective
from ray.util.collective.types import ReduceOp

from hccl_py.integrations.ray import HcclGroup, register

SIZE = 2
REDUCTIONS = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


@ray.remote(num_cpus=0)
class Rank:
    def __init__(self, rank):
        self.rank = rank

    def begin(self, name):
        collective.init_collective_group(SIZE, self.rank, backend="hccl", group_name=name)

    def end(self, name):
        collective.destroy_collective_group(name)

    def check(self, name):
        group = collective.get_group_handle(name)
        assert type(group) is HcclGroup, group
        assert collective.get_rank(name) == self.rank
        inputs = [np.arange(12, dtype=np.float64).reshape(3, 4) + 2 * r + 1 for r in range(SIZE)]
        mine = inputs[self.rank]
        for op, reduction in REDUCTIONS.items():
            expected = reduction.reduce(inputs)
            for data in (mine.copy(), torch.from_numpy(mine.copy())):
                collective.allreduce(data, name, op)
                np.testing.assert_array_equal(data, expected)
            data = mine.copy()
            collective.reduce(data, 1, name, op)
            np.testing.assert_array_equal(data, expected if self.rank == 1 else mine)
            out, rows = np.empty(4), [mine[r].copy() for r in range(SIZE)]
            collective.reducescatter(out, rows, name, op)
            np.testing.assert_array_equal(out, expected[self.rank])
            np.testing.assert_array_equal(rows, mine[:SIZE])
        data = mine.copy()
        collective.broadcast(data, 1, name)
        np.testing.assert_array_equal(data, inputs[1])
        gathered = [np.empty_like(mine) for _ in range(SIZE)]
        collective.allgather(gathered, mine, name)
        np.testing.assert_array_equal(gathered, inputs)
        if self.rank == 0:
            collective.send(mine, 1, name)
        else:
            data = np.empty_like(mine)
            collective.recv(data, 0, name)
            np.testing.assert_array_equal(data, inputs[0])
        collective.barrier(name)
        refused = []
        for call in ("allreduce", "broadcast", "reduce"):
            try:
                getattr(group, call)([mine, mine])
            except ValueError as error:
                refused.append(str(error).partition(":")[0])
        return refused


if __name__ == "__main__":
    ray.init(
        num_cpus=2, include_dashboard=False, runtime_env={"worker_process_setup_hook": register}
    )
    register()
    actors = [Rank.remote(rank) for rank in range(SIZE)]
    for _ in range(2):  # a group that was destroyed is made again
        ray.get([actor.begin.remote("own") for actor in actors])
        print(*ray.get([actor.check.remote("own") for actor in actors])[0])
        ray.get([actor.end.remote("own") for actor in actors])
    collective.create_collective_group(actors, SIZE, [0, 1], backend="hccl", group_name="declared")
    ray.get([actor.check.remote("declared") for actor in actors])
    # An actor that died before the others came leaves its id behind.
    early = Rank.remote(0)
    begun = early.begin.remote("again")
    key = f"{ray.get_runtime_context().get_job_id()}/again".encode()
    while not ray.experimental.internal_kv._internal_kv_get(key, namespace=b"hccl"):
        pass
    ray.kill(early)
    late = [actors[1].begin.remote("again")]
    ray.wait(late, timeout=2)
    late.append(actors[0].begin.remote("again"))
    ray.get(late)
    print("all right")
