"""Ranks that are killed, and ranks that have joined: the others go on, or all raise the reason."""

import os
import signal

import pytest
import torch
from ranks import run_ranks

import hccl_py.horovod.torch as hvd

N, STEPS, KILLED_AT = 4, 8, 5


def train(me: int, _: int, victim: int) -> tuple[list[tuple[int, int]], list[float], list[int]]:
    """Return the steps and samples as they were trained, the parameters, and the ranks left."""
    torch.set_num_threads(1)
    torch.manual_seed(me)
    hvd.init()
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(40), shuffle=False)
    trained: list[tuple[int, int]] = []
    resets: list[int] = []

    @hvd.elastic.run
    def steps(state: hvd.elastic.TorchState) -> int:
        while state.step < STEPS:
            if me == victim and state.step == KILLED_AT:
                os.kill(os.getpid(), signal.SIGKILL)
            sample = next(iter(sampler))
            trained.append((state.step, sample))
            batch = torch.full((1, 3), sample / 40)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            sampler.record_batch(state.step, 1)
            sampler.reset()
            state.step += 1
            if state.step % 2 == 0:
                state.commit()
        return int(state.step)

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0)
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    assert steps(state) == STEPS
    values = [value for each in model.parameters() for value in each.flatten().tolist()]
    hvd.shutdown()
    return trained, values, resets


@pytest.mark.nightly("faults")
@pytest.mark.parametrize("victim", [0, 2])
def test_ranks_go_on_from_the_last_commit_after_a_kill(victim: int) -> None:
    ended = run_ranks(train, N, victim, victims=[victim])
    assert ended.pop(victim) is None
    for rank, (trained, values, resets) in enumerate(ended):
        assert resets == [N - 1]
        # The last commit was at step 4, after 4 samples on each of 4 ranks. Step 5 met the loss.
        before = rank + (rank >= victim)
        assert trained == [
            *((step, N * step + before) for step in range(KILLED_AT + 1)),
            *((step, 4 * N + (N - 1) * (step - 4) + rank) for step in range(4, STEPS)),
        ]
        assert values == ended[0][1]


def differ(me: int, _: int) -> None:
    hvd.init()

    @hvd.elastic.run
    def function(state: hvd.elastic.State) -> None:
        hvd.allreduce(torch.ones(2 + me))

    with pytest.raises(hvd.HorovodInternalError, match="called"):
        function(hvd.elastic.ObjectState(step=0))
    hvd.shutdown()
    hvd.init()
    assert hvd.allgather_object(me) == [0, 1]


@pytest.mark.nightly("faults")
def test_calls_that_differ_are_raised_and_not_tried_again() -> None:
    run_ranks(differ, 2)


def join_beside(me: int, _: int, what: str) -> None:
    hvd.init()
    with pytest.raises(
        hvd.HorovodInternalError, match="has joined" if what == "call" else "rank 1"
    ):
        if me == 0:
            hvd.join()
        elif what == "call":
            hvd.allgather(torch.ones(1))
        else:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.nightly("faults")
@pytest.mark.parametrize("what", ["call", "death"])
def test_join_raises_where_zeros_cannot_help(what: str) -> None:
    run_ranks(join_beside, 2, what, victims=[1] if what == "death" else [])
