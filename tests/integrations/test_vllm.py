"""vLLM's engine on CPUs, from its wheel: HCCL_REPLACE=gloo:all gives its workers to hccl."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from quiet_clock import Moment

from hccl_py.integrations.vllm import register

PROGRAM = Path(__file__).parent / "programs" / "vllm_engine.py"
LIMIT_S = 900.0
NUM_TOKENS = 200
FASTER_IN = 8
IDLE_S = 10.0


class Engine(subprocess.Popen[str]):
    """One engine; see the program."""

    def __init__(self, kind: str, tensor_parallel: int, pipeline_parallel: int, log: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(PROGRAM.parent),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **({"HCCL_REPLACE": "gloo:all"} if kind == "hccl" else {}),
        }
        sizes = [str(tensor_parallel), str(pipeline_parallel)]
        with log.open("w") as errors:
            super().__init__(
                [sys.executable, PROGRAM, *sizes, *(["gloo"] if kind == "gloo" else [])],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.log, self.said = log, list[str]()

    def begin(self, count: int) -> None:
        assert self.stdin is not None
        print(count, file=self.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self.stdout is not None
        for line in self.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
            self.said.append(line)  # vLLM's log
        pytest.fail("".join([*self.said[-40:], self.log.read_text()[-4000:]]))

    def generate(self, count: int) -> dict[str, Any]:
        self.begin(count)
        return self.answer()


@contextmanager
def engines(folder: Path, kinds: str, *sizes: int) -> Iterator[tuple[list[Engine], list[Any]]]:
    """Start engines at once; they end with the block. The list beside them has their workers."""
    with ExitStack() as stack:
        started = []
        for number, kind in enumerate(kinds.split()):
            started.append(Engine(kind, *sizes, folder / f"{number}_{kind}.txt"))
            stack.callback(started[-1].wait)
            stack.callback(started[-1].kill)
        yield started, [each.answer()["workers"] for each in started]
        for each in started:
            each.communicate(timeout=LIMIT_S)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("setting", ["gloo:all", "gloo", ""])
@pytest.mark.parametrize("is_cpu", [True, False])
def test_plug_in_changes_only_a_cpu_platform_that_is_asked_for(
    setting: str, is_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Platform:
        def is_cpu(self) -> bool:
            return is_cpu

        @classmethod
        def get_device_communicator_cls(cls) -> str:
            return "its own"

    platforms = SimpleNamespace(current_platform=Platform())
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(platforms=platforms))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setenv("HCCL_REPLACE", setting)
    register()
    ours = setting == "gloo:all" and is_cpu
    expected = "hccl_py.integrations.vllm_communicator.HcclCommunicator" if ours else "its own"
    assert Platform().get_device_communicator_cls() == expected


@pytest.mark.nightly("vllm")
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(("sizes", "own"), [((2, 1), "own"), ((4, 1), "own"), ((1, 2), "")])
def test_engine_gives_the_tokens_of_gloo_at_the_speed_of_vllm(
    sizes: tuple[int, int], own: str, tmp_path: Path
) -> None:
    with engines(tmp_path, f"gloo hccl {own}", *sizes) as (started, workers):
        tokens = [each.generate(64)["tokens"] for each in started]
        assert all(each == tokens[0] for each in tokens)
        for each in started:
            replaced = "HCCL_REPLACE=gloo:all: hccl carries" in each.log.read_text()
            assert replaced == ("hccl" in each.log.stem)
        time.sleep(2.0)  # vLLM's workers look for work for a second
        before = [cpu_s(pid) for pid in workers[1]]
        time.sleep(IDLE_S)
        used = [cpu_s(pid) - s for pid, s in zip(workers[1], before, strict=True)]
        assert max(used) <= 0.02 * IDLE_S
        best_s = [LIMIT_S] * len(started)
        for _ in range(FASTER_IN):  # until ours was as fast, on a machine that others may use
            for number, each in enumerate(started[1:], 1):
                best_s[number] = min(best_s[number], each.generate(NUM_TOKENS)["seconds"])
            if best_s[1] <= best_s[-1]:
                break
        assert best_s[1] <= best_s[-1]


@pytest.mark.nightly("vllm")
@pytest.mark.timeout(2 * LIMIT_S)
def test_engines_of_one_machine_do_not_meet_and_one_ends_with_its_killed_worker(
    tmp_path: Path,
) -> None:
    with engines(tmp_path, "hccl hccl", 2, 1) as (started, workers):
        for each in started:
            each.begin(NUM_TOKENS)
        first, second = (each.answer()["tokens"] for each in started)
        assert first == second
        for each in started:
            each.begin(400)
        busy_s = cpu_s(workers[0][1]) + 0.1
        while cpu_s(workers[0][1]) < busy_s:  # it computes
            time.sleep(0.01)
        began = Moment.now()
        os.kill(workers[0][1], signal.SIGKILL)
        assert started[0].answer()["error"] == "EngineDeadError"
        assert Moment.now() - began < 2.0
        assert any("VllmWorker-1 died unexpectedly" in line for line in started[0].said)
        assert len(started[1].answer()["tokens"][0]) == 400
