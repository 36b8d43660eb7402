"""A wrong plan drawn as text: the way of the block whose contribution is missing or double."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from hccl_py.plan.contracts import Contract
from hccl_py.plan.history import Event, History, OpName
from hccl_py.plan.language import Fault, Plan, PlanError
from hccl_py.plan.memory import Value, listed

_MOST_LINES = 40
_MOST_RANKS = 64  # a column each


def explain(
    plans: Sequence[Plan], contract: Contract, error: PlanError, *, in_place: bool = False
) -> str:
    """Return the message of `error`, and below it how the block at fault came to be."""
    fault, n = error.fault, len(plans)
    if fault is None or n > _MOST_RANKS:
        return str(error)
    history = History(plans, contract, in_place)
    with suppress(PlanError):
        history.run()
    done = {(event.rank, event.op_index): event for event in history.events}
    # A plan that ends wrong did all of its ops; where none wrote the block, there is no last one.
    last = history.failed or (None if error.op_index is None else done[error.rank, error.op_index])
    way = [event for event in history.events if (event.rank, event.op_index) in _way(done, last)]
    lines = [
        str(error),
        "",
        f"block {fault.block}; a column is a rank whose contribution is in it: # once, 2 twice, "
        "? missing",
        f"{'':12}  {''.join(str(rank % 10) for rank in range(n))}",
    ]
    bars = [(event, _bar(event.values, fault.block, n)) for event in way if event is not last]
    bars = [(event, bar) for event, bar in bars if "#" in bar]
    if len(bars) > _MOST_LINES:
        lines.append(f"{'':12}  {len(bars) - _MOST_LINES} ops before these")
    lines += [_line(plans, event, bar) for event, bar in bars[-_MOST_LINES:]]
    lines.append(_last_line(plans, error, fault, last))
    if fault.missing:
        reached = 0
        for event in done.values():
            if any(one.block == fault.block and one.ranks & fault.missing for one in event.values):
                reached |= 1 << event.rank
        there = listed(reached | fault.missing)
        lines.append(f"the contribution of rank {listed(fault.missing)} came to rank {there} only")
    return "\n".join(lines)


def _way(done: Mapping[OpName, Event], last: Event | None) -> set[OpName]:
    """Return the ops that what the last one wrote came through."""
    found: set[OpName] = set()
    waiting = [] if last is None else [*last.read, *last.received]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [*done[name].read, *done[name].received]
    return found


def _bar(values: Iterable[Value], block: int, n: int) -> str:
    held = [value.ranks for value in values if value.block == block]
    counts = (sum(ranks >> rank & 1 for ranks in held) for rank in range(n))
    return "".join(".#23456789"[min(count, 9)] for count in counts)


def _line(plans: Sequence[Plan], event: Event, bar: str) -> str:
    name = f"rank {event.rank} op {event.op_index}"
    return f"{name:12}  {bar}  {plans[event.rank].ops[event.op_index]}"


def _last_line(plans: Sequence[Plan], error: PlanError, fault: Fault, last: Event | None) -> str:
    """Draw the op at fault, or the lack of one."""
    plan = plans[error.rank]
    if last is not None:
        bar = _bar(last.values, fault.block, plan.world_size)
    else:  # `data` holds what the rank brought, an output nothing
        own = error.rank if plan.shape.data_chunks else None
        bar = "".join("#" if rank == own else "." for rank in range(plan.world_size))
    bar = "".join("?" if fault.missing >> at & 1 else one for at, one in enumerate(bar))
    if last is not None:
        return f"{_line(plans, last, bar)}  <- here"
    return f"{f'rank {error.rank}':12}  {bar}  no op writes it  <- here"
