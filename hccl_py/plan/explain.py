"""A drawing of a wrong plan: the path of the block with a missing or double contribution."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from hccl_py.plan.contracts import Contract, Contribution, Promise
from hccl_py.plan.history import Event, History, OpName
from hccl_py.plan.language import Buffer, Fault, MalformedPlanError, Plan, PlanError
from hccl_py.plan.memory import Value, listed

_MISSING = "? missing"
_MOST_LINES = 40
_MOST_RANKS = 64  # a column each
_MOST_OPS = 1 << 17  # of all ranks: every op is recorded


def explain(
    plans: Sequence[Plan], contract: Contract, error: PlanError, *, in_place: bool = False
) -> str:
    """Return the message of `error`, and below it the history of the wrong block."""
    fault, n = error.fault, len(plans)
    is_large = n > _MOST_RANKS or sum(len(plan.ops) for plan in plans) > _MOST_OPS
    if is_large or isinstance(error, MalformedPlanError):
        return str(error)
    history = History(plans, contract, in_place)
    with suppress(PlanError):
        history.run()
    if fault is None:
        lines = list(_standstill(plans, contract, history)) if history.stands_still else []
        return "\n".join([str(error), *lines])
    done = {(event.rank, event.op_index): event for event in history.events}
    # A plan with a wrong result ran all its ops; there may be none that wrote the block.
    last = history.failed or (None if error.op_index is None else done[error.rank, error.op_index])
    way = [event for event in history.events if (event.rank, event.op_index) in _way(done, last)]
    lines = [
        str(error),
        "",
        f"block {fault.block}; a column is a rank whose contribution is in it: # once, 2 twice, "
        f"{_MISSING}",
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


def _standstill(plans: Sequence[Plan], contract: Contract, history: History) -> Iterator[str]:
    """Draw what each blocked receive has got, or a message that no rank receives."""
    n, rows = len(plans), list[str]()
    for rank, index, got in history.waiting():
        chunk = plans[rank].ops[index].dst
        assert chunk is not None
        promise = None if chunk.scratch is not None else contract.promise(plans[rank], chunk.begin)
        block = promise.block if promise else next((one.block for one in got), 0)
        name = f"rank {rank} op {index}"
        bar = _lacking(_bar(got, block, n), promise)
        rows.append(f"{name:12}  {bar}  {plans[rank].ops[index]}  <- waits")
    for sender, index, receiver, values in () if rows else history.untaken()[:1]:
        if not values:  # of a barrier
            break
        op, block = plans[sender].ops[index], values[0].block
        rows.append(f"{f'rank {sender} op {index}':12}  {_bar(values[:1], block, n)}  {op}")
        rows += _lacking_at(plans[receiver], contract, history, values[0])
    if rows:
        yield from ("", f"a column is a rank whose contribution is in it: # once, {_MISSING}")
        yield f"{'':12}  {''.join(str(rank % 10) for rank in range(n))}"
        yield from rows[:_MOST_LINES]


def _lacking_at(plan: Plan, contract: Contract, history: History, value: Value) -> Iterator[str]:
    """Draw the block of a rank that lacks a value at its end."""
    buffer = Buffer.DATA if contract.blocks is None else Buffer.OUTPUT
    for block in range(plan.shape[buffer]):
        promise = contract.promise(plan, block)
        if promise is None or promise.block != value.block:
            continue
        if isinstance(promise, Contribution) and not value.ranks >> promise.rank & 1:
            continue
        held: tuple[Value, ...] = ()
        with suppress(ValueError):  # it was never written
            held = history.memories[plan.rank].read(buffer[block])
        bar = _lacking(_bar(held, promise.block, plan.world_size), promise)
        if "?" in bar:
            yield f"{f'rank {plan.rank}':12}  {bar}  {buffer[block]} at its end  <- here"


def _lacking(bar: str, promise: Promise | None) -> str:
    """Mark the missing contributions of a block."""
    if promise is None:
        return bar
    if isinstance(promise, Contribution):
        rank = promise.rank
        return bar if bar[rank] == "#" else f"{bar[:rank]}?{bar[rank + 1 :]}"
    return bar.replace(".", "?")


def _way(done: Mapping[OpName, Event], last: Event | None) -> set[OpName]:
    """Return the ops on the path of the last op's result."""
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
    else:  # `data` holds the rank's contribution, an output nothing
        own = error.rank if plan.shape.data_chunks else None
        bar = "".join("#" if rank == own else "." for rank in range(plan.world_size))
    bar = "".join("?" if fault.missing >> at & 1 else one for at, one in enumerate(bar))
    if last is not None:
        return f"{_line(plans, last, bar)}  <- here"
    return f"{f'rank {error.rank}':12}  {bar}  no op writes it  <- here"
