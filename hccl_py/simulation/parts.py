"""What virtual time consists of: wires, lanes, channels, ranks and machines. Times are in us."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Wire:
    """Carries messages one after the other, after a burst of some at once."""

    __slots__ = ("burst_us", "clear_at")

    def __init__(self, burst_us: float) -> None:
        self.burst_us = burst_us
        self.clear_at = 0.0  # when all that it was given would be through without bursts


Way = tuple[tuple[Wire, float], ...]
"""The wires that a message takes, and how long each is busy with it; empty: shared memory."""


class Message(NamedTuple):
    """One message of a send, or one that a receive takes."""

    thread_us: float
    memory_us: float
    lane: Lane
    way: Way = ()


class Step(NamedTuple):
    """An op of a plan for tiles of one size; ops without elements are left out."""

    is_send: bool
    messages: tuple[Message, ...]
    thread_us: float  # after the messages: of the reduction, or the copy
    memory_us: float
    ordinal: int  # of its first message in the plan
    op_index: int
    hazards: frozenset[int]  # earlier sends whose source it overwrites


class Lane:
    """Messages from one rank to another on one channel, first in first out."""

    __slots__ = (
        *("arrivals", "awaited_by", "capacity", "latency_us", "num_sent", "num_taken"),
        *("receiver", "sender", "take_us", "take_memory_us", "waiting"),
    )

    def __init__(
        self, latency_us: float, capacity: int, sender: Channel, receiver: Channel
    ) -> None:
        self.latency_us = latency_us
        self.capacity = capacity  # messages that were sent and not taken
        self.sender = sender
        self.receiver = receiver
        self.arrivals: deque[float] = deque()
        self.awaited_by: Channel | None = None
        self.take_us = self.take_memory_us = 0.0  # of the message that is awaited
        self.num_sent = self.num_taken = 0
        self.waiting: deque[tuple[Step, Message, int]] = deque()  # no room for these yet


@dataclass(eq=False, slots=True)
class Channel:
    """What a rank has under way on one channel."""

    rank: Rank
    number: int
    tile: int = 0
    steps: list[Step] | None = None  # of the tile; None: it has ended its last one
    at: int = 0  # the step
    missing: int | None = None  # messages that a receive still has to take; None: not begun
    arrived: list[tuple[float, float, float]] = field(default_factory=list)
    # A heap of the messages that a receive may take: when they are there, and what they cost.
    # By op, how many of its messages have no room yet.
    unsent: Counter[int] = field(default_factory=Counter)


@dataclass(eq=False, slots=True)
class Rank:
    """A rank: one thread that runs its channels in turn."""

    number: int
    local_rank: int
    machine: Machine
    late_us: float
    channels: list[Channel] = field(default_factory=list)
    current: int = 0  # channel
    busy_until: float = 0.0
    look_at: float = math.inf  # the next look at it
    is_running: bool = False
    is_queued: bool = False
    channels_left: int = 0
    num_calls: int = 0
    ended_us: list[float] = field(default_factory=list)  # of each call
    num_messages: int = 0


@dataclass(eq=False, slots=True)
class Machine:
    """Cores and memory that some ranks share."""

    free_cores: int | None  # None: a core for each rank
    memory_clear_at: float = 0.0
    queue: deque[Rank] = field(default_factory=deque)
