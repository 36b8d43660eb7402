"""Engines of vLLM as processes, which are asked for tokens over their pipes; imports no vLLM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("vllm_engine.py")
_HCCL = {"HCCL_REPLACE": "gloo:all"}
_SETTLE_S = 2.0  # vLLM's workers look for work for a second
_LOG_TAIL = 4000

CONTENDERS: dict[str, dict[str, str]] = {
    "gloo": {},
    "own": {},
    "hccl": _HCCL,
    "hccl_spin": {**_HCCL, "HCCL_WAIT": "spin"},
    "hccl_idle": {**_HCCL, "HCCL_WAIT": "idle"},
}
"""Ways to carry an engine's collectives, each with its variables. `own` is vLLM's shared memory."""

_HAS_OWN = """\
import torch, vllm.platforms, vllm.plugins
vllm.plugins.load_general_plugins()
vllm.platforms.current_platform.import_kernels()
print(hasattr(torch.ops._C, "init_shm_manager"))"""


class EngineError(RuntimeError):
    """An engine did not answer; the message has the end of its log."""


class Engine(subprocess.Popen[str]):
    """One engine; see the program.

    Attributes:
        name: of CONTENDERS.
        log: what it prints to stderr.
        said: the lines of vLLM's log on stdout.
        workers: the process ids of its workers.
    """

    def __init__(self, name: str, sizes: Sequence[int], log: Path) -> None:
        """Start it; `sizes` are those of tensor parallelism and pipeline parallelism."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(_PROGRAM.parent),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **CONTENDERS[name],
        }
        words = [*map(str, sizes), *(["gloo"] if name == "gloo" else [])]
        with log.open("w") as errors:
            super().__init__(
                [sys.executable, str(_PROGRAM), *words],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=os.setpgrp,  # its processes outlive it: see `end`
            )
        self.name, self.log, self.said = name, log, list[str]()
        self.workers: list[int] = []

    def end(self) -> None:
        """Kill all its processes that still run."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def begin(self, count: int) -> None:
        """Ask for so many tokens of each prompt."""
        assert self.stdin is not None
        print(count, file=self.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Wait for its next answer."""
        assert self.stdout is not None
        for line in self.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
            self.said.append(line)
        raise EngineError(self._printed())

    def generate(self, count: int) -> dict[str, Any]:
        """Return `tokens` of each prompt, `seconds`, and `cpu_s` of all its processes."""
        self.begin(count)
        found = self.answer()
        if "error" in found:
            raise EngineError(f"{self.name}: {found['error']}: {found['text']}\n{self._printed()}")
        return found

    def _printed(self) -> str:
        return "".join(self.said)[-_LOG_TAIL:] + self.log.read_text()[-_LOG_TAIL:]

    def idle_share(self, seconds: float) -> float:
        """Return the part of a core that its busiest worker uses without work."""
        time.sleep(_SETTLE_S)
        before = [cpu_s(pid) for pid in self.workers]
        time.sleep(seconds)
        return max(cpu_s(pid) - s for pid, s in zip(self.workers, before, strict=True)) / seconds


@contextmanager
def engines(folder: Path, names: Sequence[str], sizes: Sequence[int]) -> Iterator[list[Engine]]:
    """Start engines side by side, with their logs in the folder; they end with the block."""
    with ExitStack() as stack:
        started = []
        for number, name in enumerate(names):
            started.append(Engine(name, sizes, folder / f"{number}_{name}.txt"))
            stack.callback(started[-1].end)
        for each in started:
            each.workers = each.answer()["workers"]
        yield started
        for each in started:
            each.communicate()


def has_own() -> bool:
    """Return whether vLLM has shared memory of its own on this processor."""
    printed = subprocess.check_output([sys.executable, "-c", _HAS_OWN], text=True)
    return printed.split()[-1] == "True"


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
