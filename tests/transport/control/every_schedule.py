"""Explores schedules of the control plane: deliveries in any order, losses, deaths, late clocks.

Deliveries to different ranks commute, so sleep sets leave one order of them. A schedule is a list
of actions; the same list always ends in the same state, which makes a failing one repeatable.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from simulated_ranks import SimulatedRanks

from hccl_py.transport.control.message import Entry, pack, unpack
from hccl_py.transport.control.participant import Participant

PROMISED_S = 2.0  # docs/failures/reliability.md: after the last fault
Action = tuple[Any, ...]  # its kind, the rank that it happens to, and details


@dataclass(frozen=True)
class Faults:
    """How many of each an exploration may have."""

    deaths: int = 0
    losses: int = 0
    delays: int = 0  # time passes although messages are on their way


class World(SimulatedRanks):
    """Ranks whose messages wait until an action delivers them, in order for each pair of ranks."""

    def __init__(self, world_size: int, faults: Faults) -> None:
        self._channels: dict[tuple[int, int], deque[Entry]] = {}
        self._notices: set[tuple[int, int]] = set()
        self._is_free = False
        super().__init__(world_size)
        self._has_one_fault = faults.deaths + faults.losses + faults.delays == 1
        self.left = {"kill": faults.deaths, "lose": faults.losses, "wait": faults.delays}
        self.adopted_before_death: list[Any] = []
        self.run(1.0)
        self._is_free = True

    def _post(self, participant: Participant, entry: Entry) -> None:
        if not self._is_free or entry.sender == entry.receiver:
            super()._post(participant, entry)
            return
        (message,) = pack([entry])
        (entry,) = unpack(message)
        self._channels.setdefault((entry.sender, entry.receiver), deque()).append(entry)

    def actions(self) -> list[Action]:
        """List what may happen next, the usual first."""
        alive = self._alive()
        waiting = [pair for pair, queue in self._channels.items() if queue and pair[1] in alive]
        usual: list[Action] = [("deliver", receiver, sender) for sender, receiver in waiting]
        usual += [("notice", rank, victim) for rank, victim in sorted(self._notices)]
        faults: list[Action] = []
        if self.left["lose"]:
            faults += [("lose", receiver, sender) for sender, receiver in waiting]
        if self.left["kill"] and len(alive) > 1:
            faults += [(kind, rank) for kind in ("kill", "kill silently") for rank in alive]
        if self.left["wait"] and usual:
            faults.append(("wait", -1))
        return usual + faults

    def act(self, action: Action) -> None:
        kind, rank = action[:2]
        if kind == "deliver":
            self._deliver(self._channels[action[2], rank].popleft())
        elif kind == "notice":
            self._notices.remove((rank, action[2]))
            self.engines[rank].gone = [*self.engines[rank].gone, (action[2], False, 0)]
            self.engines[rank].fails = True  # a call with that rank was running
            self.participants[rank].on_news(self.now_s)
        elif kind == "lose":
            self.left["lose"] -= 1
            self._channels[action[2], rank].popleft()
        elif kind == "wait":
            self.left["wait"] -= 1
            self._pass_time()
        else:
            self._die(rank, kind == "kill silently")
        self.run(0.0)  # what ranks send to themselves
        self.check()

    def _die(self, victim: int, is_silent: bool) -> None:
        self.left["kill"] -= 1
        if self.engines[victim].adopted is not None:
            self.adopted_before_death.append(self.engines[victim].adopted)
        self.dead.add(victim)
        self._notices = {one for one in self._notices if one[0] != victim}
        self._notices |= {(rank, victim) for rank in self._alive()}
        for (sender, receiver), queue in self._channels.items():
            if receiver == victim or (is_silent and sender == victim):
                queue.clear()

    def _pass_time(self) -> None:
        next_s = min(self.participants[rank].next_s() for rank in self._alive())
        self.run(max(0.0, next_s - self.now_s))

    def advance(self) -> bool:
        """Let time pass until something can happen; False once the promised time is over."""
        end_s = self.now_s + PROMISED_S
        while self.now_s < end_s and not self.all_know():
            self._pass_time()
            if any(self._channels.values()):
                return True
        return False

    def all_know(self) -> bool:
        return None not in self.diagnoses()

    def check(self) -> None:
        """No two ranks are told of different failures; after one fault, not even one that died."""
        told = [one for one in self.diagnoses() if one is not None]
        told += self.adopted_before_death if self._has_one_fault else []
        assert all(one == told[0] for one in told), f"two diagnoses: {told}"

    def finish(self) -> None:
        """Deliver everything: within the promised time, all ranks alive have the diagnosis."""
        for rank, victim in sorted(self._notices):
            self.act(("notice", rank, victim))
        end_s = self.now_s + PROMISED_S
        while not self.all_know():
            assert self.now_s < end_s, f"no diagnosis in time: {self.diagnoses()}"
            waiting = [pair for pair, queue in self._channels.items() if queue]
            for sender, receiver in waiting:
                while self._channels[sender, receiver]:
                    self.act(("deliver", receiver, sender))
            if not waiting:
                self._pass_time()
                self.check()


@dataclass
class Node:
    actions: list[Action]
    asleep: set[Action]
    done: set[Action] = field(default_factory=set)

    def chosen(self) -> Action | None:
        tired = self.asleep | self.done
        return next((one for one in self.actions if one not in tired), None)


def commute(one: Action, other: Action) -> bool:
    local = ("deliver", "notice", "lose")
    return one[0] in local and other[0] in local and one[1] != other[1]


def schedules(make: Callable[[], World], depth: int, limit: int) -> Iterator[list[Action]]:
    """Run every schedule whose first `depth` actions differ, at most `limit`; yield its actions."""
    nodes: list[Node] = []
    for _ in range(limit):
        world, actions, is_pruned = make(), [], False
        try:
            while len(actions) < depth:
                options = world.actions()
                if not options and not world.advance():
                    break
                if not (options := options or world.actions()):
                    continue
                if len(actions) == len(nodes):
                    parent = nodes[-1] if nodes else Node([], set())
                    before = actions[-1] if actions else ("begin", -1)
                    tired = parent.asleep | parent.done
                    nodes.append(Node(options, {one for one in tired if commute(one, before)}))
                action = nodes[len(actions)].chosen()
                if (is_pruned := action is None) or action is None:
                    break
                actions.append(action)
                world.act(action)
            if not is_pruned:
                world.finish()
        except AssertionError as failed:
            raise AssertionError(f"{failed} after {actions}") from failed
        finally:
            world.close()
        if not is_pruned:
            yield actions
        del nodes[len(actions) :]
        while nodes:
            nodes[-1].done.add(actions[len(nodes) - 1])
            if nodes[-1].chosen() is not None:
                break
            nodes.pop()
        if not nodes:
            return


def run_random(make: Callable[[], World], seed: int, most_actions: int) -> list[Action]:
    """Run one schedule at random, and return its actions."""
    choose = random.Random(seed)
    world, actions = make(), []
    try:
        while len(actions) < most_actions and (world.actions() or world.advance()):
            options = world.actions()
            usual = [one for one in options if one[0] in ("deliver", "notice")]
            if usual and choose.random() < 0.8:
                options = usual
            if not options:
                break
            actions.append(choose.choice(options))
            world.act(actions[-1])
        world.finish()
    except AssertionError as failed:
        raise AssertionError(f"{failed} after {actions}") from failed
    finally:
        world.close()
    return actions
