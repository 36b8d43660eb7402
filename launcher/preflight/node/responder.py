"""A node's side of preflight: answers the coordinator's questions, which `check.py` asks."""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict

from hccl_py.launcher.machine.lookups import MOST_THREADS, in_threads
from hccl_py.launcher.preflight.node.facts import Facts, examine
from hccl_py.launcher.preflight.node.probe import PROBE_S, probe
from hccl_py.launcher.preflight.node.server import PairServer


class Introduction(TypedDict):
    """The answer to "examine".

    `ports` has one number for each path of the facts. `listen_problem` says why there are none,
    `master_problem` why the master port cannot be listened on.
    """

    facts: Facts
    ports: list[int]
    listen_problem: str
    master_problem: str


class CheckResponder:
    """Answers for one node. Close it before a rank starts: it uses the ranks' ports."""

    def __init__(self, environ: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        """Take the ranks' environment; start nothing."""
        self._environ, self._clock = environ, clock
        self._secret = os.fsencode(environ.get("HCCL_SECRET", ""))
        self._server = PairServer(self._secret)

    def answer(self, question: Mapping[str, Any]) -> Any:
        """Answer one question in plain values; blocks, "reach" for up to half a minute."""
        kind = question["kind"]
        if kind == "clock":
            return self._clock()
        if kind == "examine":
            return self._introduce(question)
        if kind == "reach":
            targets = question["targets"]
            limit_s = PROBE_S * (1 + len(targets) // MOST_THREADS)
            results = in_threads(partial(probe, secret=self._secret), targets, limit_s)
            return [each for each in results if each is not None]
        raise ValueError(f"no question of preflight: {kind!r}")

    def close(self) -> None:
        """Close the ports. Idempotent."""
        self._server.close()

    def _introduce(self, question: Mapping[str, Any]) -> Introduction:
        facts = examine(question["names"], question["master_addr"], self._environ)
        first, last = facts["port_range"] or (0, 0)
        answer = Introduction(facts=facts, ports=[], listen_problem="", master_problem="")
        try:
            for _, host in facts["paths"]:
                answer["ports"].append(self._server.listen(host, range(first, last + 1)))
        except OSError as error:
            answer["listen_problem"] = f"{host}: {_reason(error)}"
        if question["listens_at"]:
            try:
                self._server.listen("", [question["listens_at"]])
            except OSError as error:
                answer["master_problem"] = _reason(error)
        return answer


def _reason(error: OSError) -> str:
    """Return the kernel's error text; Python's may repeat the address."""
    return os.strerror(error.errno) if error.errno else str(error)
