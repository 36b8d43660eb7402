"""Plans as text: one line per op."""

from hccl_py.plan.ops import Plan


def render(plan: Plan) -> str:
    """Spell a plan, one op per line, in the words of the algorithm that wrote it."""
    root = "" if plan.root is None else f", root {plan.root}"
    chunks = f", {plan.shape.data_chunks} chunks" if plan.shape.data_chunks else ""
    head = f"{plan.collective}/{plan.algorithm}, rank {plan.rank} of {plan.world_size}"
    width = len(str(len(plan.ops)))
    lines = [f"{index:>{width}}  {op}" for index, op in enumerate(plan.ops)]
    return "\n".join([f"{head}{root}{chunks}", *lines])
