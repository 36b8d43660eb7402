"""Ranks of a large communicator in one process, as far as the wire goes.

Each has connections of its own and the state machine of a participant; they have no engine. A
module of its own, because the processes of a swarm import it by its bare name.
"""

import selectors
import time
from dataclasses import replace
from multiprocessing.connection import Connection

from fake_engine import FakeEngine

from hccl_py.transport.control.message import ControlMembers, Entry, pack, unpack
from hccl_py.transport.control.participant import Participant
from hccl_py.transport.control.sockets import ControlSockets

WORLD_SIZE = 512
COMMUNICATOR = bytes(range(16))
SECRET = bytes(range(32))


class Client:
    """A rank of the swarm."""

    def __init__(
        self, selector: selectors.BaseSelector, rank: int, members: ControlMembers
    ) -> None:
        self.engine = FakeEngine(rank)
        members = replace(members, rank=rank)
        self.sockets = ControlSockets(selector, self._receive)
        self.sockets.admit(members)
        self.coordinator = members.addresses[0].key
        self.beat_s: list[float] = []
        self.answer_s: list[float] = []
        self.participant = Participant(members, self.engine, self._send)

    def _send(self, _: Participant, entry: Entry) -> None:
        if entry.receiver != 0:  # nobody else is there
            return
        if entry.kind == "beat":
            self.beat_s.append(time.monotonic())
        for message in pack([entry]):
            self.sockets.send(self.coordinator, message)

    def _receive(self, _key: bytes, message: bytes) -> None:
        for entry in unpack(message):
            if entry.kind == "beat-back":
                self.answer_s.append(time.monotonic() - self.beat_s[-1])
            self.participant.receive(entry.sender, entry.kind, entry.body, time.monotonic())


def swarm(pipe: Connection, ranks: range, members: ControlMembers) -> None:
    """Be these ranks until told to stop; then say how it went."""
    selector = selectors.DefaultSelector()
    clients = [Client(selector, rank, members) for rank in ranks]
    told = False
    while True:
        for ready, _ in selector.select(0.02):
            ready.data()
        if pipe.poll():
            word = pipe.recv()
            if word == "begin":
                for client in clients:
                    client.answer_s.clear()
            elif word == "fail":
                clients[-1].engine.fail()
                clients[-1].participant.on_news(time.monotonic())
            elif word == "stop":
                answers = [client.answer_s for client in clients]
                diagnoses = [(one.engine.adopted, one.engine.adopted_s) for one in clients]
                pipe.send((answers, diagnoses))
                return
        now_s = time.monotonic()
        for client in clients:
            client.sockets.tick()
            if client.participant.next_s() <= now_s:
                client.participant.tick(now_s)
        if not told and all(client.answer_s for client in clients):
            told = True
            pipe.send("connected")
