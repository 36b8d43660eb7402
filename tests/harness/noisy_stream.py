"""A connection that delays, spoils, doubles and cuts some of its frames, by seed."""

import random
import socket
import struct
import time

from hccl_py.transport import _core

FAULTS = {"delay": 0.01, "corrupt": 0.004, "double": 0.004, "truncate": 0.002, "reset": 0.002}
LONGEST_DELAY_S = 0.002
HEADER_BYTES = 64
LENGTH_AT = 56
"""Of `csrc/lanes/path.h`: the payload's length in the header."""


class NoisyStream(_core.Stream):
    """Takes over a connected socket. A frame has at most one fault."""

    def __init__(self, descriptor: int, seed: int) -> None:
        super().__init__()
        self._socket = socket.socket(fileno=descriptor)
        self._chance = random.Random(seed)
        self._fault = ""
        self._left = 0  # bytes of the frame under way
        self._not_before = 0.0
        self._copy = b""  # of the frame under way, if it is to be doubled
        self._again = b""  # to be sent before anything else

    def fd(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def receive(self, into: memoryview) -> int:
        try:
            received = self._socket.recv_into(into, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        if received == 0:
            raise EOFError("the connection was closed")
        return received

    def send(self, data: memoryview) -> int:
        self._again = self._again[self._send(self._again) :]
        if self._again or time.monotonic() < self._not_before:
            return 0
        if self._left == 0:
            self._begin(data)
        fault = self._fault
        if fault == "delay":
            self._fault = ""
            self._not_before = time.monotonic() + self._chance.uniform(0, LONGEST_DELAY_S)
            return 0
        if fault in ("truncate", "reset"):
            self._end(data[: self._chance.randrange(len(data))] if fault == "truncate" else b"")
        sent = self._send(self._spoilt(data) if fault == "corrupt" else data)
        self._left -= sent
        if fault == "double":
            self._copy += data[:sent]
            if self._left == 0:
                self._again, self._copy = self._copy, b""
        elif sent:
            self._fault = ""
        return sent

    def _begin(self, header: memoryview) -> None:
        self._left = HEADER_BYTES + struct.unpack_from("I", header, LENGTH_AT)[0]
        names, weights = list(FAULTS), list(FAULTS.values())
        self._fault = self._chance.choices([*names, ""], [*weights, 1 - sum(weights)])[0]

    def _spoilt(self, data: memoryview) -> bytes:
        spoilt = bytearray(data)
        spoilt[self._chance.randrange(len(spoilt))] ^= 1 << self._chance.randrange(8)
        return bytes(spoilt)

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT) if len(data) else 0
        except BlockingIOError:
            return 0

    def _end(self, last: bytes | memoryview) -> None:
        self._send(last)
        if not last:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()
        raise ConnectionResetError("the connection was closed")
