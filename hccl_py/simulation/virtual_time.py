"""Runs ranks in virtual time, under the engine's rules.

- A rank is one thread. It runs the ops of a channel until one must wait, then those of the other.
- A send costs the thread its messages, one by one, and completes in the background. A message
  leaves when its lane has room, takes its wires, and is there after the latency.
- A receive takes its messages as they come, then reduces. (The engine reads them in rank order,
  which is no order that alike ranks have in common.)
- An op that overwrites a chunk waits until earlier sends of it have left.
- Where ranks share cores, a thread runs op by op, and gets a core in the order of asking.

Events at one time are ordered by what alike ranks have in common, so that folding changes nothing.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from hccl_py.plan.language import PlanError
from hccl_py.plan.tiles import NUM_CHANNELS
from hccl_py.simulation.parts import Channel, Lane, Rank, Step, Way
from hccl_py.simulation.steady import Steadiness

_RUN = -1  # stands for the ordinal of a message: look at the rank

_Leave = tuple[float, int, int, Lane, Way]
"""When a message leaves, its sender's local rank, its number in the plan, its lane and its way."""

Leaving = Iterator[_Leave]
"""Messages that leave one after the other."""

_Event = tuple[float, int, int, int, Rank | None, tuple[Lane, Way, Leaving] | None]
"""Time, what orders events at one time, and either a rank to look at or a message that leaves."""

Program = Callable[[Channel, bool], list[Step]]
"""The steps of a channel in a tile that is the last one, or is not."""


class VirtualTime:
    """Ranks, from the begin of their first call to the end of their last."""

    def __init__(self, ranks: Sequence[Rank], program: Program, num_calls: int) -> None:
        self._ranks = ranks
        self._program = program
        self._num_calls = num_calls
        self._events: list[_Event] = []
        self._leaving: list[_Leave] = []  # of the ops that a rank runs now
        self._sequence = itertools.count()

    def run(self, num_tiles: int, steadiness: Steadiness | None) -> None:
        """Run all calls. Where tiles turn out to repeat themselves, the rest is counted only.

        Raises:
            PlanError: the plans hang.
        """
        self._num_tiles, self._steadiness = num_tiles, steadiness
        for rank in self._ranks:
            self._begin_call(rank, 0.0)
        events, leave = self._events, self._leave
        while events:
            now, _, _, _, woken, left = heapq.heappop(events)
            if woken is not None:
                self._wake(woken, now)
            elif left is not None:
                leave(left, now)
        stuck = [rank for rank in self._ranks if len(rank.ended_us) < self._num_calls]
        if stuck:
            steps = [one.steps[one.at] for one in stuck[0].channels if one.steps]
            at = steps[0].op_index if steps else None
            raise PlanError(
                stuck[0].number, at, f"waits for ever, as do {len(stuck) - 1} more ranks"
            )

    def _begin_call(self, rank: Rank, now: float) -> None:
        rank.channels_left = 0
        for channel in rank.channels:
            if channel.number < self._num_tiles:
                rank.channels_left += 1
                self._begin_tile(channel, channel.number)
        rank.busy_until = now + rank.late_us
        self._push_run(rank, rank.busy_until)

    def _begin_tile(self, channel: Channel, tile: int) -> None:
        channel.tile, channel.at, channel.missing = tile, 0, None
        channel.steps = self._program(channel, tile == self._num_tiles - 1)

    def _push_run(self, rank: Rank, at: float) -> None:
        """Have the rank looked at; a look that comes earlier sees to the later ones."""
        if rank.look_at <= at:
            return
        rank.look_at = at
        number = next(self._sequence)
        heapq.heappush(self._events, (at, rank.local_rank, _RUN, number, rank, None))

    # ---- the thread of a rank

    def _wake(self, rank: Rank, now: float) -> None:
        if now != rank.look_at:
            return  # an earlier look has seen to it
        machine = rank.machine
        rank.look_at = math.inf
        if rank.busy_until > now:
            self._push_run(rank, rank.busy_until)
            return
        if machine.free_cores is None:
            self._look(rank, now)
            return
        if rank.is_running:
            rank.is_running = False
            machine.free_cores += 1
        if not rank.is_running and not rank.is_queued:
            rank.is_queued = True
            machine.queue.append(rank)
        while machine.free_cores > 0 and machine.queue:
            other = machine.queue.popleft()
            other.is_queued = False
            if self._look(other, now):
                other.is_running = True
                machine.free_cores -= 1

    def _look(self, rank: Rank, now: float) -> bool:
        """Run what can be run; true if anything was."""
        for turn in range(NUM_CHANNELS):
            at = (rank.current + turn) % NUM_CHANNELS
            channel = rank.channels[at]
            if channel.steps is None:
                continue
            if (end := self._go_on(channel, now)) is not None:
                rank.current = at
                rank.busy_until = end = max(end, rank.busy_until)
                self._push_run(rank, end)
                return True
        next_at = min((one.arrived[0][0] for one in rank.channels if one.arrived), default=None)
        if next_at is not None and next_at > now:
            self._push_run(rank, next_at)
        return False

    def _go_on(self, channel: Channel, now: float) -> float | None:
        """Run ops until one must wait; return when the last one ends, None if none could run."""
        at, alone = now, channel.rank.machine.free_cores is not None
        has_moved = False
        while channel.steps is not None:
            if channel.at == len(channel.steps):
                self._end_tile(channel, at)
                has_moved = True
                continue
            step = channel.steps[channel.at]
            end = self._send(channel, step, at) if step.is_send else self._take(channel, step, at)
            if end is None:
                break
            at, has_moved = end, True
            if alone:
                break
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            self._push_leave(iter(leaving))
        return at if has_moved else None

    def _send(self, channel: Channel, step: Step, at: float) -> float:
        channel.at += 1
        rank = channel.rank
        rank.num_messages += len(step.messages)
        for place, message in enumerate(step.messages):
            at = self._spend(rank, at, message.thread_us, message.memory_us)
            lane = message.lane
            if lane.num_sent - lane.num_taken < lane.capacity and not lane.waiting:
                self._enter(lane, message.way, step.ordinal + place, at)
            else:
                lane.waiting.append((step, message, step.ordinal + place))
                channel.unsent[step.op_index] += 1
        return at

    def _take(self, channel: Channel, step: Step, at: float) -> float | None:
        if channel.unsent and not step.hazards.isdisjoint(channel.unsent):
            return None
        if channel.missing is None:
            self._await(channel, step)
        rank, begin, arrived = channel.rank, at, channel.arrived
        missing = channel.missing or 0
        while missing and arrived and arrived[0][0] <= at:
            _, thread_us, memory_us = heapq.heappop(arrived)
            at = self._spend(rank, at, thread_us, memory_us)
            missing -= 1
        has_taken = missing != channel.missing
        channel.missing = missing
        if missing:
            return at if has_taken and at >= begin else None
        at = self._spend(rank, at, step.thread_us, step.memory_us)
        channel.at += 1
        channel.missing = None
        for message in step.messages:
            lane = message.lane
            lane.num_taken += 1
            if lane.waiting:
                self._make_room(lane, at)
        return at

    def _await(self, channel: Channel, step: Step) -> None:
        channel.missing = len(step.messages)
        for message in step.messages:
            lane = message.lane
            if lane.arrivals:
                entry = (lane.arrivals.popleft(), message.thread_us, message.memory_us)
                heapq.heappush(channel.arrived, entry)
            else:
                lane.awaited_by = channel
                lane.take_us, lane.take_memory_us = message.thread_us, message.memory_us

    def _spend(self, rank: Rank, at: float, thread_us: float, memory_us: float) -> float:
        """Return when the thread is done, which the memory of the machine may hold up."""
        if memory_us:
            machine = rank.machine
            machine.memory_clear_at = max(machine.memory_clear_at, at) + memory_us
            return max(at + thread_us, machine.memory_clear_at)
        return at + thread_us

    # ---- messages

    def _enter(self, lane: Lane, way: Way, ordinal: int, at: float) -> None:
        lane.num_sent += 1
        if way:
            self._leaving.append((at, lane.sender.rank.local_rank, ordinal, lane, way))
        else:
            self._arrive(lane, at + lane.latency_us)

    def _push_leave(self, leaving: Leaving) -> None:
        """Wait for the next message that leaves: one event at a time keeps the heap small."""
        following = next(leaving, None)
        if following is not None:
            at, local_rank, ordinal, lane, way = following
            number = next(self._sequence)
            event = (at, local_rank, ordinal, number, None, (lane, way, leaving))
            heapq.heappush(self._events, event)

    def _make_room(self, lane: Lane, at: float) -> None:
        step, message, ordinal = lane.waiting.popleft()
        self._enter(lane, message.way, ordinal, at)
        channel = lane.sender
        channel.unsent[step.op_index] -= 1
        if not channel.unsent[step.op_index]:
            del channel.unsent[step.op_index]
            self._push_run(channel.rank, at)
            self._end_call_if_done(channel.rank, at)

    def _leave(self, left: tuple[Lane, Way, Leaving], now: float) -> None:
        lane, way, leaving = left
        begin = end = now
        for wire, busy_us in way:  # each begins with what the one before lets through
            clear_at = wire.clear_at
            wire.clear_at = clear_at = (clear_at if clear_at > begin else begin) + busy_us
            out = clear_at - wire.burst_us
            if out > end:
                end = out
            if out - busy_us > begin:
                begin = out - busy_us
        self._arrive(lane, end + lane.latency_us)
        self._push_leave(leaving)

    def _arrive(self, lane: Lane, at: float) -> None:
        channel = lane.awaited_by
        if channel is None:
            lane.arrivals.append(at)
            return
        lane.awaited_by = None
        heapq.heappush(channel.arrived, (at, lane.take_us, lane.take_memory_us))
        self._push_run(channel.rank, at)

    # ---- ends

    def _end_tile(self, channel: Channel, at: float) -> None:
        if self._steadiness is not None:
            self._num_tiles = self._steadiness.note(channel, at, self._num_tiles)
        tile = channel.tile + NUM_CHANNELS
        if tile < self._num_tiles:
            self._begin_tile(channel, tile)
            return
        channel.steps = None
        channel.rank.channels_left -= 1
        self._end_call_if_done(channel.rank, at)

    def _end_call_if_done(self, rank: Rank, at: float) -> None:
        if rank.channels_left or any(channel.unsent for channel in rank.channels):
            return
        if len(rank.ended_us) < self._num_calls:
            rank.ended_us.append(at)
            if len(rank.ended_us) < self._num_calls:
                self._begin_call(rank, at)
