"""What a soak does, drawn from its seed alone: the same on every rank, and in every later run.

A soak is a row of generations. Each has its own ranks, nodes and settings, a list of events that
all ranks walk through in the same order, and at most one fault. Generation 7 of a seed depends on
nothing that happened in generation 6, so it can be run by itself.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

WORLD = "world"
"""Name of the communicator of all ranks of a generation."""

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
KINDS = (*REDUCING, "broadcast", "all_gather", "all_to_all", "gather", "scatter", "send_recv")
BITWISE = ("BAND", "BOR", "BXOR")
_OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", *BITWISE)

GONE = ("kill", "segv", "exit")
"""Faults after which the victim's process is gone."""
DEADLY = (*GONE, "stop")
"""Faults after which it answers no more."""
FINAL = (*DEADLY, "exception")
"""Faults after which it calls no more, at whatever call the others are."""
SPOKEN = ("exception", "abort", "leave", "mismatch", "late")
"""Faults of a rank that lives on; they end one communicator."""
STUCK = ("stop", "late")
"""Faults that only a timeout tells of."""
MENDED = ("reset", "noise")
"""Faults after which every result must still be right."""


@dataclass(frozen=True)
class Call:
    """One collective, or a ring of sends and receives.

    Attributes:
        number: of the event; seeds the data.
        group: name of the communicator.
        kind: a name of `KINDS`, or "barrier".
        dtype: element type.
        op: name of a ReduceOp.
        count: elements of one rank's block.
        root: rank in the group; for send_recv how far the ring turns.
        memory: "plain", "registered", or "mixed": registered on every other rank.
        in_place: the input is part of the output, where the call permits that.
        tensor: torch tensors instead of numpy arrays.
        waits: events until the result is waited for; 0: the call blocks.
    """

    number: int
    group: str
    kind: str
    dtype: str
    op: str
    count: int
    root: int
    memory: str
    in_place: bool
    tensor: bool
    waits: int


@dataclass(frozen=True)
class GroupOpens:
    """Some ranks make a communicator of their own."""

    number: int
    group: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class GroupCloses:
    """Its members close it."""

    number: int
    group: str


Event = Call | GroupOpens | GroupCloses


@dataclass(frozen=True)
class Fault:
    """What goes wrong, where and when.

    Attributes:
        kind: a name of `DEADLY`, `SPOKEN` or `MENDED`.
        number: of the event at whose beginning it starts; 0 for noise, which is there all the time.
        victim: rank of the generation.
        group: whose communicator it ends.
        delay_s: how long after that beginning, for faults that strike from outside.
    """

    kind: str
    number: int
    victim: int
    group: str
    delay_s: float


@dataclass(frozen=True)
class Generation:
    """A job from its first connection to its end.

    Attributes:
        seed, index: what everything else was drawn from.
        order: which process is which rank.
        nodes: the emulated node of every rank.
        settings: environment, the same for all ranks.
        timeout_s: of the communicators.
        events: in the order in which every rank takes them.
        fault: None in a generation where all goes well.
        shrinks: the survivors of a death go on with what `shrink` leaves.
    """

    seed: int
    index: int
    order: tuple[int, ...]
    nodes: tuple[str, ...]
    settings: dict[str, str]
    timeout_s: float
    events: tuple[Event, ...]
    fault: Fault | None
    shrinks: bool

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.order)


@dataclass(frozen=True)
class Limits:
    """How large a soak may get, and what may go wrong in it."""

    num_processes: int
    max_bytes: int
    num_events: int
    faults: tuple[str, ...]


CALL_TIMEOUT_S = 20.0
CONNECT_S = 20.0
CONNECT_WITH_STOPPED_S = 5.0
"""Where one of them may have stopped."""
SHORT_TIMEOUT_S = 1.5
"""Where a rank that is stuck has to be waited for."""


def draw(seed: int, index: int, limits: Limits) -> Generation:
    """Draw one generation."""
    dice = random.Random(f"{seed}/{index}")
    world_size = dice.choice([1, *range(2, limits.num_processes + 1)] + [limits.num_processes] * 2)
    order = tuple(dice.sample(range(limits.num_processes), world_size))
    num_nodes = dice.randint(1, min(3, world_size))
    nodes = tuple(dice.choice("abc"[:num_nodes]) for _ in range(world_size))
    kind = dice.choice(limits.faults) if limits.faults and dice.random() < 0.75 else None
    if len(set(nodes)) == 1 and kind in MENDED:
        kind = None  # there is no connection to break
    settings = _settings(dice, kind)
    events = _events(dice, limits, world_size)
    fault = _fault(dice, kind, events, world_size) if kind and world_size > 1 else None
    if fault and fault.kind in ("abort", "leave", "mismatch", "late"):
        events = _with_meeting(events, fault)
    stuck = fault is not None and fault.kind in STUCK
    return Generation(
        seed,
        index,
        order,
        nodes,
        settings,
        SHORT_TIMEOUT_S if stuck else CALL_TIMEOUT_S,
        events,
        fault,
        dice.random() < 0.5,
    )


def _settings(dice: random.Random, fault: str | None) -> dict[str, str]:
    settings = {
        "HCCL_CHECKSUM": dice.choice("01"),
        "HCCL_CONNECTIONS": dice.choice("112"),
        "HCCL_TRANSPORT": dice.choice(["auto", "auto", "auto", "tcp"]),
    }
    if fault == "noise":
        settings["HCCL_CHECKSUM"] = "1"
    return settings


def _events(dice: random.Random, limits: Limits, world_size: int) -> tuple[Event, ...]:
    """Calls of all ranks and of some, between which groups come and go."""
    groups = {WORLD: tuple(range(world_size))}
    events: list[Event] = []
    for number in range(1, limits.num_events + 1):
        chance = dice.random()
        if chance < 0.04 and len(groups) < 4:
            members = tuple(dice.sample(range(world_size), dice.randint(1, world_size)))
            groups[f"group {number}"] = members
            events.append(GroupOpens(number, f"group {number}", members))
        elif chance < 0.06 and len(groups) > 1:
            name = dice.choice([name for name in groups if name != WORLD])
            del groups[name]
            events.append(GroupCloses(number, name))
        else:
            name = dice.choice(list(groups))
            events.append(_call(dice, limits, number, name, len(groups[name])))
    return tuple(events)


def _call(dice: random.Random, limits: Limits, number: int, group: str, size: int) -> Call:
    kind = dice.choice([*KINDS, *KINDS, "barrier"])
    dtype = dice.choice([*FLOATS, *INTEGERS])
    ops = [op for op in _OPS if dtype in INTEGERS or op not in BITWISE]
    # Mostly small, now and then as large as permitted: the exponent's smaller of two draws.
    exponent = min(dice.random(), dice.random()) * math.log2(limits.max_bytes)
    item = item_bytes(dtype)
    blocks = 1 if kind in ("all_reduce", "reduce", "broadcast", "send_recv") else size
    count = 0 if dice.random() < 0.03 else max(1, int(2**exponent) // (item * blocks))
    return Call(
        number,
        group,
        kind,
        dtype,
        dice.choice(ops),
        count,
        dice.randrange(size),
        dice.choice(["plain", "plain", "registered", "mixed"]),
        dice.random() < 0.3,
        dtype == "bfloat16" or dice.random() < 0.3,
        dice.choice([0, 0, 0, 1, 3, 8]),
    )


def _fault(dice: random.Random, kind: str, events: tuple[Event, ...], world_size: int) -> Fault:
    """Choose when, whom and where; groups of one rank have nobody who could notice."""
    sizes = {WORLD: world_size}
    sizes |= {one.group: len(one.members) for one in events if isinstance(one, GroupOpens)}
    members = {one.group: one.members for one in events if isinstance(one, GroupOpens)}
    calls = [one for one in events if isinstance(one, Call) and sizes[one.group] > 1]
    if kind == "late":
        # Late for one group is late for all, whose calls have the same timeout.
        calls = [one for one in calls if one.group == WORLD]
    call = dice.choice(calls or [_any_call(events)])
    group = call.group if kind in ("abort", "leave", "mismatch", "late") and calls else WORLD
    victim = dice.choice(members.get(group, range(world_size)))
    return Fault(kind, 0 if kind == "noise" else call.number, victim, group, dice.random() * 0.02)


def _any_call(events: tuple[Event, ...]) -> Event:
    return events[len(events) // 2]


def _with_meeting(events: tuple[Event, ...], fault: Fault) -> tuple[Event, ...]:
    """Make the call of the fault one that nobody can finish without the victim."""

    def meeting(event: Event) -> Event:
        if not isinstance(event, Call) or event.number != fault.number:
            return event
        return replace(event, kind="all_reduce", count=max(event.count, 1), waits=0)

    return tuple(meeting(event) for event in events)


def item_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return 2 if dtype == "bfloat16" else int("".join(filter(str.isdigit, dtype))) // 8
