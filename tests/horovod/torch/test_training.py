"""DistributedOptimizer, state that is broadcast and SyncBatchNorm, on 3 ranks."""

from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks

import hccl_py.horovod.torch as hvd

N = 3
RANKS = range(N)


def given(rank: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).integers(1, 5, shape).astype(np.float32)


def check_optimizer(me: int) -> None:
    """Ranks whose gradients come in another order, or not at all, end with equal parameters."""
    torch.manual_seed(me)
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    alone = [each.detach().clone().double().requires_grad_() for each in model.parameters()]
    oracle = torch.optim.SGD(alone, lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        groups=4,
        gradient_predivide_factor=2.0,
        backward_passes_per_step=2,
    )
    assert isinstance(optimizer, torch.optim.SGD)
    orders = [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2]]  # rank 2 does not use every layer

    def loss_of(rank: int, values: list[torch.Tensor]) -> torch.Tensor:
        made = torch.from_numpy(given(rank, 2, 4)).to(values[0].dtype)
        for layer in orders[rank]:
            made = torch.tanh(made @ values[2 * layer].t() + values[2 * layer + 1])
        return made.square().sum()

    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            loss_of(me, list(model.parameters())).backward()
        with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after"):
            optimizer.zero_grad()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        oracle.zero_grad()
        sum(2 * loss_of(rank, alone) / N for rank in RANKS).backward()
        oracle.step()
    for got, expected in zip(model.parameters(), alone, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        for _ in range(3):
            loss_of(me, list(model.parameters())).backward()
    optimizer.step()
    # The state of rank 2 everywhere; a new optimizer there has none.
    fresh = torch.optim.SGD(model.parameters(), lr=1.0 + me, momentum=0.9)
    hvd.broadcast_optimizer_state(optimizer if me == 2 else fresh, root_rank=2)
    assert fresh.param_groups[0]["lr"] == (1.0 + me if me == 2 else 0.1)
    if me != 2:
        for key, value in optimizer.state_dict()["state"].items():
            torch.testing.assert_close(value, fresh.state_dict()["state"][key])


def check_sparse_and_compressed_gradients(me: int) -> None:
    """Each rank uses row 0 and its own, but ranks may have no gradient, or a dense one."""
    none = [[0.0, 0.0]] * 4
    used = [[4 / 3] * 2, [1 / 3] * 2, [1 / 3] * 2, [0, 0]]
    unused = [[1, 1], [1 / 3] * 2, [0, 0], [0, 0]]
    with_dense = [[4 / 3] * 2, [2 / 3] * 2, [1 / 3] * 2, [1 / 3] * 2]
    for sparse, steps, arguments in (
        (True, (used,), {}),
        (True, (none, unused, used, none), {}),
        (True, (unused, with_dense), {}),
        (True, (with_dense, unused), {}),
        (True, (unused,), {"sparse_as_dense": True}),
        (False, (unused,), {"compression": hvd.Compression.fp16}),
    ):
        table = torch.nn.Embedding(4, 2, sparse=sparse)
        hvd.broadcast_parameters(table.state_dict(), root_rank=0)
        before = table.weight.detach().clone()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), **arguments
        )
        total = np.zeros((4, 2))
        for expected in steps:
            optimizer.zero_grad()
            if expected is with_dense and me == 2:
                table.weight.sum().backward()
            elif expected is used or (expected is not none and me < 2):
                table(torch.tensor([0, me])).sum().backward()
            optimizer.step()
            total += expected
        np.testing.assert_allclose(before - table.weight.detach(), total, 1e-3, 1e-6)


def check_sync_batch_norm(me: int) -> None:
    every = [torch.from_numpy(given(rank, rank + 2, 3, 4)).double() for rank in RANKS]
    mine, together = every[me].requires_grad_(), torch.cat(every).detach().requires_grad_()
    ours, theirs = hvd.SyncBatchNorm(3).double(), torch.nn.BatchNorm1d(3).double()
    made, expected = ours(mine), theirs(together)
    begin = sum(len(each) for each in every[:me])
    part = slice(begin, begin + len(mine))
    torch.testing.assert_close(made, expected[part])
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    made.pow(3).sum().backward()
    expected.pow(3).sum().backward()
    assert mine.grad is not None
    assert together.grad is not None
    torch.testing.assert_close(mine.grad, together.grad[part])
    large = torch.full((2, 3, 256, 256), 2.0, dtype=torch.float16)  # whose sum is not in float16
    torch.testing.assert_close(hvd.SyncBatchNorm(3)(large), torch.zeros_like(large))


def check_arguments_of_the_optimizer(me: int) -> None:
    """A bias with gradient me + 1 after each pass: the ops, groups, a closure, more passes."""

    def stepped(passes: int = 1, compression: Any = hvd.Compression.none, **named: Any) -> float:
        bias, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        given = torch.optim.SGD([bias, other], lr=1.0)
        groups = named.pop("groups", None)
        if groups == "lists":
            groups = [[other]]
        made = hvd.DistributedOptimizer(given, compression=compression, groups=groups, **named)
        made.set_backward_passes_per_step(passes)

        def loss() -> torch.Tensor:
            made.zero_grad()
            for _ in range(passes):
                total = (bias * (me + 1) + other).sum()
                total.backward()
            return total.detach()

        assert made.step(loss) == 0
        assert other.item() == -passes * (3 if named.get("op") is hvd.Sum else 1)
        return -bias.item()

    assert stepped() == 2
    assert stepped(op=hvd.Sum) == 6
    assert stepped(op=hvd.Min) == 1
    assert stepped(op=hvd.Max) == 3
    assert stepped(passes=3) == 6
    assert stepped(groups=2) == stepped(groups=1) == stepped(groups="lists") == 2
    assert stepped(compression=hvd.Compression.fp16) == 2
    assert stepped(gradient_predivide_factor=4.0) == 2
    pair = hvd.add_process_set([0, 2])
    alone = torch.nn.Parameter(torch.zeros(1))
    made = hvd.DistributedOptimizer(torch.optim.SGD([alone], lr=1.0), process_set=pair)
    alone.backward(torch.tensor([me + 1.0]))
    made.step()
    assert -alone.item() == 2  # the average of 1 and 3; rank 1 steps alone
    made.zero_grad()
    alone.backward(torch.ones(1))
    made.synchronize()
    with pytest.warns(UserWarning, match="reduced twice"):
        made.step()
    made.zero_grad()
    alone.backward(torch.ones(1))
    made.load_state_dict(made.state_dict())  # forgets the gradient
    made.zero_grad()


def check_parameters(me: int) -> None:
    for given in (
        {"b": torch.full((2,), me), "a": torch.full((3,), me)},
        [("b", torch.full((2,), me)), ("a", torch.full((3,), me))],
        [torch.full((2,), me), torch.full((3,), me)],
    ):
        hvd.broadcast_parameters(given, root_rank=2)  # type: ignore[arg-type]
        tensors = given.values() if isinstance(given, dict) else given
        for each in tensors:
            assert (each[1] if isinstance(each, tuple) else each).tolist()[:2] == [2, 2]
    with pytest.raises(ValueError, match="params: expected tensors, got int, str"):
        hvd.broadcast_parameters([1, "two"], root_rank=0)  # type: ignore[list-item]


def check_state_of_optimizers(me: int) -> None:
    """Steps that are tensors, nested values and several groups, from a root with more state."""
    for kind, settings in (
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.LBFGS, {}),
    ):
        values = [torch.nn.Parameter(torch.full((4, 2), me + 1.0)) for _ in range(2)]
        optimizer: Any = kind(values, lr=1.0 + me, **settings)
        if me == 1:
            for _ in range(3):
                for each in values:
                    each.grad = torch.ones_like(each)
                optimizer.step(lambda: torch.ones(()))
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        every = hvd.allgather_object(optimizer.state_dict())
        torch.testing.assert_close(every[me], every[1])
        assert every[me]["param_groups"][0]["lr"] == 2.0
        assert every[me]["state"]


def every_check(me: int, _: int) -> None:
    torch.set_num_threads(1)
    for check in (
        *(check_optimizer, check_sparse_and_compressed_gradients, check_sync_batch_norm),
        *(check_arguments_of_the_optimizer, check_parameters, check_state_of_optimizers),
    ):
        hvd.init()
        check(me)
        hvd.shutdown()


def test_training_on_three_ranks() -> None:
    run_ranks(every_check, N)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"backward_passes_per_step": 0}, "backward_passes_per_step must be > 0"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"named_parameters": ["weight"]}, "sequence of tuples"),
        ({"named_parameters": []}, "not named"),
        ({"groups": -1}, "groups: expected a number or lists"),
        ({"groups": [["weight"]]}, "groups must consist of torch.Tensor"),
    ],
)
def test_argument_of_the_optimizer_that_makes_no_sense_is_named(
    named: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hvd.ProcessSet, "included", lambda self: True)
    everyone = type("TwoRanks", (), {"world_size": 2, "rank": 0})
    monkeypatch.setattr(hvd.global_process_set, "_communicator", everyone)
    weight = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=words):
        hvd.DistributedOptimizer(torch.optim.SGD([weight]), **named)


def test_names_of_parameters_are_unique_and_groups_have_each_once() -> None:
    hvd.init()
    one, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    given = torch.optim.SGD([one, other])
    with pytest.raises(ValueError, match="Found duplicates: a"):
        hvd.DistributedOptimizer(given, [("a", one), ("a", other)])
    with pytest.warns(DeprecationWarning, match="replaced by `groups`"):
        assert isinstance(hvd.DistributedOptimizer(given, num_groups=2), torch.optim.SGD)
    hvd.shutdown()
