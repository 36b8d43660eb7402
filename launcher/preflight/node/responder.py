"""A node's side of preflight: answers the coordinator's questions, which `check.py` asks."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypedDict

from hccl_py.launcher.preflight.node.facts import Facts, Settings, examine
from hccl_py.launcher.preflight.node.probe import PairResult, Target, probe
from hccl_py.launcher.preflight.node.server import PairServer

PROBES_AT_ONCE = 16
"""How many targets a node dials at the same time."""


class Introduction(TypedDict):
    """The answer to "examine".

    `ports` has one number for each path of the facts. `listen_problem` says why there are none,
    `master_problem` why the master port cannot be listened on.
    """

    facts: Facts
    ports: list[int]
    listen_problem: str
    master_problem: str


class Responder:
    """Answers for one node. Close it before a rank starts: it holds the ports that ranks use."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        """Do nothing yet."""
        self._settings = settings
        self._clock = clock
        self._server = PairServer(settings.secret)
        self._knows_master = False

    def answer(self, question: dict[str, Any]) -> Any:
        """Answer one question in plain values; blocks, "reach" for up to half a minute."""
        kind = question["kind"]
        if kind == "clock":
            return self._clock()
        if kind == "examine":
            return self._introduce()
        if kind == "reach":
            return self._reach(question["targets"])
        raise ValueError(f"no question of preflight: {kind!r}")

    def close(self) -> None:
        """Give the ports back. Idempotent."""
        self._server.close()

    def _introduce(self) -> Introduction:
        facts = examine(self._settings)
        self._knows_master = not isinstance(facts["resolved"][self._settings.master_addr], str)
        first, last = facts["port_range"] or (0, 0)
        answer = Introduction(facts=facts, ports=[], listen_problem="", master_problem="")
        try:
            for _, host in facts["paths"]:
                answer["ports"].append(self._server.listen(host, range(first, last + 1)))
        except OSError as error:
            answer["listen_problem"] = f"{host}: {_reason(error)}"
        if self._settings.node == 0 and self._settings.master_port is not None:
            try:
                self._server.listen("", [self._settings.master_port])
            except OSError as error:
                answer["master_problem"] = _reason(error)
        return answer

    def _reach(self, targets: list[Target]) -> list[PairResult]:
        known = []
        for target in targets:
            if target["path"] is None:
                target["host"] = self._settings.master_addr
                target["port"] = self._settings.master_port or 0
            if target["path"] is not None or self._knows_master:
                known.append(target)
        with ThreadPoolExecutor(PROBES_AT_ONCE) as threads:
            return list(threads.map(partial(probe, secret=self._settings.secret), known))


def _reason(error: OSError) -> str:
    """Return what the kernel said; Python's own text may repeat the address."""
    return os.strerror(error.errno) if error.errno else str(error)
