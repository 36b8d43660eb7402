"""The proof: these plans, one per rank, do what their collective promises, and cannot hang."""

from collections.abc import Sequence
from dataclasses import replace

from hccl_py.plan.check import check_op
from hccl_py.plan.chunks import BufferName, Chunk
from hccl_py.plan.contract import Contract, Contribution, Seat, Total
from hccl_py.plan.errors import PlanError
from hccl_py.plan.ops import Plan
from hccl_py.plan.simulate import Simulation


def verify(plans: Sequence[Plan], contract: Contract, *, in_place: bool = False) -> None:
    """Prove the plans of one collective, for all ranks and all timings.

    Proved are: ranges in bounds and input never written; sends and receives match in order and
    length; no deadlock with room for one message per lane; every message received; the
    postcondition; every contribution counted exactly once; a total held by several ranks reduced
    in the same order everywhere, hence the same bits.

    No two blocks are taken to have the same length unless the contract says so, so a message and
    its receive always name the same elements: a plan stays right when any blocks are empty and the
    engine skips them.

    Args:
        plans: plan i belongs to rank i.
        contract: what the collective promises.
        in_place: prove it for callers whose input and output overlap as the contract allows.

    Raises:
        PlanError: naming rank, op and what is wrong.
    """
    _check_headers(plans, contract)
    for plan in plans:
        for index, op in enumerate(plan.ops):
            check_op(plan, index, op)
    simulation = Simulation(plans, contract, in_place)
    simulation.run()
    _check_promises(plans, contract, simulation)


def _check_headers(plans: Sequence[Plan], contract: Contract) -> None:
    first, n = plans[0], len(plans)
    if (first.root is not None) != contract.rooted:
        raise PlanError(0, None, f"root {first.root} in {contract.name}")
    for rank, plan in enumerate(plans):
        shape = contract.shape(Seat(rank, n, first.root), first.shape.data_chunks)
        expected = Plan(contract.name, first.algorithm, rank, n, first.root, shape)
        if replace(plan, ops=()) != expected:
            raise PlanError(rank, None, f"is {replace(plan, ops=())}, expected {expected}")


def _check_promises(plans: Sequence[Plan], contract: Contract, simulation: Simulation) -> None:
    totals: dict[int, int] = {}
    buffer = BufferName.DATA if contract.output_blocks is None else BufferName.OUTPUT
    for plan, memory, heard in zip(plans, simulation.memories, simulation.heard, strict=True):
        if contract.meets and heard != (1 << plan.world_size) - 1:
            raise PlanError(plan.rank, None, "finishes before it heard from every rank")
        for block in range(plan.shape.parts(buffer)):
            chunk = Chunk(buffer, block, block + 1)
            problem = _broken_promise(plan, contract, simulation, chunk, totals)
            if problem:
                writer = memory.last_writer.get(memory.places(chunk)[0])
                raise PlanError(plan.rank, writer, f"{chunk} ends wrong: {problem}")


def _broken_promise(
    plan: Plan, contract: Contract, simulation: Simulation, chunk: Chunk, totals: dict[int, int]
) -> str | None:
    """Say how the final value of `chunk` breaks its promise; remember totals across ranks."""
    promise = contract.promise(Seat(plan.rank, plan.world_size, plan.root), chunk.begin)
    if promise is None:
        return None
    values = simulation.values
    try:
        (value,) = simulation.memories[plan.rank].read(chunk)
    except ValueError:
        return "nothing was written to it"
    held = values.describe(value)
    if isinstance(promise, Contribution):
        expected = values.leaf(promise)
        return None if value == expected else f"holds {held}, not {values.describe(expected)}"
    assert isinstance(promise, Total)
    if values.block(value) != promise.block:
        return f"holds {held}, a reduction of another block"
    if missing := values.missing(value, plan.world_size):
        return f"holds {held}, without the contribution of rank {missing}"
    if totals.setdefault(promise.block, value) != value:
        return f"holds {held}, another rank {values.describe(totals[promise.block])}"
    return None
