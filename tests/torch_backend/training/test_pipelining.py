"""torch.distributed.pipelining: every schedule, against the model in one process."""

import pytest
import torch
from features import feature
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    SplitPoint,
    pipeline,
)

SECTION = "Pipelines and ring attention"
WIDTH, MICROBATCHES = 8, 8


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    shape = 2 * MICROBATCHES, WIDTH
    return torch.randn(shape, generator=random), torch.randn(shape, generator=random)


def stages_of(rank: int, world_size: int, schedule: type) -> list[int]:
    """Return the numbers of a rank's stages: one, two in a row of loops, or two that make a V."""
    if schedule in (ScheduleGPipe, Schedule1F1B):
        return [rank]
    if schedule in (ScheduleZBVZeroBubble, ScheduleDualPipeV):
        return [rank, 2 * world_size - 1 - rank]
    return [rank, rank + world_size]


def run_schedule(rank: int, world_size: int, schedule: type) -> tuple[float, list[torch.Tensor]]:
    """Return the loss, where it is known, and the gradients of this rank's stages."""
    mine = stages_of(rank, world_size, schedule)
    count = len(mine) * world_size
    modules = layers(count)
    device = torch.device("cpu")
    stages = [PipelineStage(modules[index], index, count, device) for index in mine]
    one = schedule in (ScheduleGPipe, Schedule1F1B)
    runner = schedule(
        stages[0] if one else stages, n_microbatches=MICROBATCHES, loss_fn=nn.functional.mse_loss
    )
    inputs, targets = batch()
    losses: list[torch.Tensor] = []
    first, last = 0 in mine, count - 1 in mine
    target = {"target": targets, "losses": losses} if last else {}
    runner.step(*([inputs] if first else []), **target)
    gradients = [weight.grad for index in mine for weight in modules[index].parameters()]
    return sum(loss.item() for loss in losses) / MICROBATCHES, gradients


SCHEDULES = (
    *(ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleLoopedBFS),
    *(ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble, ScheduleDualPipeV),
)


@feature(
    SECTION,
    "Schedule: " + ", ".join(schedule.__name__[8:] for schedule in SCHEDULES),
    world_size=4,
)
def test_schedules(rank: int, world_size: int) -> tuple[tuple[float, list[torch.Tensor]], ...]:
    return tuple(run_schedule(rank, world_size, schedule) for schedule in SCHEDULES)


@pytest.mark.nightly("training")
@feature(SECTION, "pipeline(): a model is split by tracing it")
def test_pipeline_of_a_traced_model(rank: int, world_size: int) -> list[torch.Tensor]:
    inputs, _ = batch()
    network = nn.Sequential(*layers(2))
    split = {"1": SplitPoint.BEGINNING}
    traced = pipeline(network, mb_args=(inputs.chunk(MICROBATCHES)[0],), split_spec=split)
    stage = traced.build_stage(rank, torch.device("cpu"))
    outputs = ScheduleGPipe(stage, MICROBATCHES).step(*([inputs] if rank == 0 else []))
    return network(inputs) if rank == 0 else outputs
