"""Ranks of a large communicator in one process, as far as the wire goes.

Each is a DEALER under CURVE and the state machine of a participant; they have no engine. A module
of its own, because the processes of a swarm import it by its bare name.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import zmq
from fake_engine import FakeEngine

from hccl_py.transport.control.message import ControlAddress, ControlMembers, Entry, pack, unpack
from hccl_py.transport.control.participant import Participant

WORLD_SIZE = 512
COMMUNICATOR = bytes(range(16))


class Client:
    """A rank of the swarm."""

    def __init__(
        self, context: Any, rank: int, keys: tuple[bytes, bytes], to: ControlAddress
    ) -> None:
        self.engine = FakeEngine(rank)
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.curve_publickey, self.socket.curve_secretkey = keys
        self.socket.curve_serverkey = to.key
        self.socket.connect(f"ipc://@{to.unix_name}")
        self.beat_s: list[float] = []
        self.answer_s: list[float] = []
        members = ControlMembers(COMMUNICATOR, rank, (ControlAddress(),) * WORLD_SIZE)
        self.participant = Participant(members, self.engine, self._send)

    def _send(self, _: Participant, entry: Entry) -> None:
        if entry.receiver != 0:  # nobody else is there
            return
        if entry.kind == "beat":
            self.beat_s.append(time.monotonic())
        for message in pack([entry]):
            self.socket.send(message, zmq.NOBLOCK)

    def receive(self) -> None:
        for entry in unpack(self.socket.recv()):
            if entry.kind == "beat-back":
                self.answer_s.append(time.monotonic() - self.beat_s[-1])
            self.participant.receive(entry.sender, entry.kind, entry.body, time.monotonic())


def swarm(
    pipe: Connection, ranks: range, keys: list[tuple[bytes, bytes]], to: ControlAddress
) -> None:
    """Be these ranks until told to stop; then say how it went."""
    context = zmq.Context()
    clients = [Client(context, rank, keys[rank], to) for rank in ranks]
    poller = zmq.Poller()
    by_socket = {client.socket: client for client in clients}
    for client in clients:
        poller.register(client.socket, zmq.POLLIN)
    poller.register(pipe.fileno(), zmq.POLLIN)
    told = False
    while True:
        for ready, _ in poller.poll(20):
            if ready in by_socket:
                by_socket[ready].receive()
                continue
            word = pipe.recv() if ready == pipe.fileno() else ""
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
                context.destroy(linger=0)
                return
        now_s = time.monotonic()
        for client in clients:
            if client.participant.next_s() <= now_s:
                client.participant.tick(now_s)
        if not told and all(client.answer_s for client in clients):
            told = True
            pipe.send("connected")
