"""Control planes of several ranks with a simulated clock and a network that can lose messages.

ranks = SimulatedRanks(4)
ranks.engines[2].fail()
ranks.run(0.1)                                   # seconds of simulated time
assert ranks.diagnoses() == ...
"""

import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fake_engine import FakeEngine

from hccl_py.transport.control.message import ControlAddress, ControlMembers, Entry, pack, unpack
from hccl_py.transport.control.participant import Participant

LATENCY_S = 0.001
_ID = bytes(16)


class SimulatedRanks:
    """Places that talk to each other. `dead` ranks are gone, `stopped` ones hear later."""

    def __init__(self, world_size: int) -> None:
        self.now_s = 100.0
        self.engines = [FakeEngine(rank) for rank in range(world_size)]
        control_addresses = (ControlAddress(),) * world_size
        self.participants = [
            Participant(ControlMembers(_ID, rank, control_addresses), engine, self._post)
            for rank, engine in enumerate(self.engines)
        ]
        self.dead: set[int] = set()
        self.stopped: set[int] = set()
        self.lost: Callable[[Entry], bool] = lambda entry: False
        self._pending: list[tuple[float, int, Entry]] = []
        self._order = itertools.count()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def _post(self, participant: Participant, entry: Entry) -> None:
        (message,) = pack([entry])
        (entry,) = unpack(message)  # what does not fit the wire shall fail here
        delay_s = 0.0 if entry.sender == entry.receiver else LATENCY_S
        if not self.lost(entry) or entry.sender == entry.receiver:
            heapq.heappush(self._pending, (self.now_s + delay_s, next(self._order), entry))

    def kill(self, *victims: int) -> None:
        """End ranks; the others' engines notice at once."""
        self.dead |= set(victims)
        for rank, engine in enumerate(self.engines):
            if rank not in self.dead:
                engine.gone += [(victim, False, 0) for victim in victims]

    def fail(self, *ranks: int) -> None:
        """Have engines propose a failure, and tell their participants."""
        for rank in ranks:
            self.engines[rank].fails = True
        for rank in ranks:
            self.participants[rank].on_news(self.now_s)

    def news(self) -> None:
        """Have every engine alive tell its participant that there is something new."""
        for rank in self._alive():
            self.participants[rank].on_news(self.now_s)

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end_s = self.now_s + seconds
        while True:
            alive = self._alive()
            ticks_s = [(self.participants[rank].next_s(), rank) for rank in alive]
            due = [one for one in self._pending if one[2].receiver in alive]
            next_s = min([when for when, _ in ticks_s] + [one[0] for one in due])
            if next_s > end_s:
                self.now_s = end_s
                return
            self.now_s = max(self.now_s, next_s)
            for one in sorted(one for one in due if one[0] <= self.now_s):
                self._pending.remove(one)
                self._deliver(one[2])
            heapq.heapify(self._pending)
            for when_s, rank in ticks_s:
                if when_s <= self.now_s and rank in self._alive():
                    self.participants[rank].tick(self.now_s)

    def _deliver(self, entry: Entry) -> None:
        if entry.receiver in self._alive():
            participant = self.participants[entry.receiver]
            participant.receive(entry.sender, entry.kind, entry.body, self.now_s)
            participant.decide(self.now_s)

    def _alive(self) -> list[int]:
        ranks = range(len(self.participants))
        return [rank for rank in ranks if rank not in self.dead and rank not in self.stopped]

    def diagnoses(self) -> list[Any]:
        """Return what each rank alive has adopted."""
        return [self.engines[rank].adopted for rank in self._alive()]

    def agree(
        self,
        rank: int,
        key: str,
        value: Any,
        timeout_s: float = 5.0,
        among: tuple[int, ...] | None = None,
    ) -> Future[Any]:
        """Have a rank agree."""
        future: Future[Any] = Future()
        self.participants[rank].ask("agree", [key, value, timeout_s, among], future)
        return future
