"""An end of a queue pair on another machine, used as if it were here.

    serve(port)                       # there; until ended() is true
    with Link("10.99.0.2", port):     # here
        end = link.make("verbs", attributes, ...)
        end.post_recv(64)

Numbers, completions and copies of arrays travel. Everything else stays there, and a `Remote` stands
for it.
Each thread has a connection of its own, so one can wait there while another one posts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from types import SimpleNamespace
from typing import Any

import numpy as np
from queue_pairs import End

from hccl_py.transport.verbs import MemoryRegion

_KEY = b"of two virtual machines"
_TRAVEL = (type(None), bool, int, float, str, bytes, tuple, list, dict, Enum, np.generic)
_PATIENCE_S = 200.0


class Link:
    """Connections to the server. A context manager; its end is the server's too."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._of_thread = threading.local()
        self._methods: set[str] = set()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.ask("end")

    def make(self, *arguments: Any, **options: Any) -> Any:
        """Make an `End` there."""
        return self.ask("make", arguments, options)

    def forget(self, end: Remote) -> None:
        """Drop an end, and all that was made after it."""
        self.ask("forget", end._number)

    def attribute(self, number: int, name: str) -> Any:
        """Return an attribute of an object, or a function that calls its method there."""
        if name not in self._methods:
            kind, value = self.ask("attribute", number, name)
            if kind != "method":
                return value
            self._methods.add(name)
        return lambda *arguments, **options: self.call(number, name, *arguments, **options)

    def call(self, number: int, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of an object there."""
        return self.ask("call", number, name, arguments, options)

    def ask(self, *request: Any) -> Any:
        """Return the answer, or raise what was raised there."""
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = self._dial()
        connection: Connection = self._of_thread.connection
        connection.send(_to_wire(request))
        error, answer = connection.recv()
        if error is not None:
            raise error
        return self._from_wire(answer)

    def _dial(self) -> Connection:
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return Client(self._address, authkey=_KEY)
            except OSError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.2)

    def _from_wire(self, answer: Any) -> Any:
        if isinstance(answer, _Reference):
            return Remote(self, answer.number)
        if isinstance(answer, tuple) and type(answer) is tuple:
            return tuple(map(self._from_wire, answer))
        return answer


class Remote:
    """Stands for an object of the other machine."""

    def __init__(self, link: Link, number: int) -> None:
        self._link, self._number = link, number

    def __getattr__(self, name: str) -> Any:
        return self._link.attribute(self._number, name)

    def __getitem__(self, key: Any) -> Any:
        return self._link.call(self._number, "__getitem__", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._link.call(self._number, "__setitem__", key, value)

    def __eq__(self, other: object) -> Any:
        return self._link.call(self._number, "__eq__", other)

    __hash__ = None  # type: ignore[assignment]


class _Reference(SimpleNamespace):
    number: int


def _to_wire(value: Any) -> Any:
    if isinstance(value, Remote):
        return _Reference(number=value._number)
    if isinstance(value, MemoryRegion):  # the other end needs to know no more of it
        return SimpleNamespace(address=value.address, length=value.length, rkey=value.rkey)
    if type(value) in (tuple, list):
        return type(value)(map(_to_wire, value))
    if type(value) is dict:
        return {key: _to_wire(one) for key, one in value.items()}
    return value


class _Server:
    def __init__(self) -> None:
        self.ended = threading.Event()
        self._objects: list[Any] = []
        self._lock = threading.Lock()

    def answer(self, connection: Connection) -> None:
        """Answer the requests of one connection."""
        while True:
            try:
                kind, *request = self._resolved(connection.recv())
            except (EOFError, OSError):
                return
            try:
                answer = None, getattr(self, f"_{kind}")(*request)
            except BaseException as error:  # it is raised where the test runs
                answer = error, None
            connection.send(answer)
            if kind == "end":
                self.ended.set()

    def _make(self, arguments: Any, options: Any) -> Any:
        return self._reference(End(*arguments, **options))

    def _attribute(self, number: int, name: str) -> Any:
        value = getattr(self._objects[number], name)
        if callable(value):
            return "method", None
        # An array that belongs to an object is not copied: the device writes to it.
        travels = isinstance(value, _TRAVEL)
        return "value", value if travels else self._reference(value)

    def _call(self, number: int, name: str, arguments: Any, options: Any) -> Any:
        value = getattr(self._objects[number], name)(*arguments, **options)
        return value if isinstance(value, (*_TRAVEL, np.ndarray)) else self._reference(value)

    def _forget(self, first: int) -> None:
        # Numbers are not used again: no test meets the objects of another one.
        with self._lock:
            self._objects[first:] = [None] * len(self._objects[first:])

    def _end(self) -> None:
        pass

    def _reference(self, value: Any) -> _Reference:
        with self._lock:
            self._objects.append(value)
            return _Reference(number=len(self._objects) - 1)

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, _Reference):
            return self._objects[value.number]
        if type(value) in (tuple, list):
            return type(value)(map(self._resolved, value))
        return value


def serve(host: str, port: int) -> None:
    """Make ends and use them as the other machine says, until it ends its link."""
    server = _Server()

    def accept(listener: Listener) -> None:
        while True:
            start(partial(server.answer, listener.accept()))

    def start(action: Callable[[], None]) -> None:
        threading.Thread(target=action, daemon=True).start()

    with Listener((host, port), authkey=_KEY) as listener:
        start(lambda: accept(listener))
        server.ended.wait()
