"""vLLM's engine on CPUs, from its wheel: HCCL_REPLACE=gloo:all gives its workers to hccl.

Tensor parallelism alone is in `tests/benchmarks/test_serving.py`.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from launching import launch
from quiet_clock import Moment

from benchmarks.serving.engines import cpu_s, engines
from hccl_py.integrations.vllm import register

LIMIT_S = 900.0
NUM_TOKENS = 200


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
def test_engine_with_pipeline_parallelism_gives_the_tokens_of_gloo(tmp_path: Path) -> None:
    with engines(tmp_path, ["gloo", "hccl"], (1, 2)) as started:
        tokens = [each.generate(64)["tokens"] for each in started]
        assert tokens[0] == tokens[1]
        for each in started:
            replaced = "HCCL_REPLACE=gloo:all: hccl carries" in each.log.read_text()
            assert replaced == (each.name == "hccl")


@pytest.mark.nightly("vllm")
@pytest.mark.timeout(2 * LIMIT_S)
def test_engines_of_one_machine_do_not_meet_and_one_ends_with_its_killed_worker(
    tmp_path: Path,
) -> None:
    with engines(tmp_path, ["hccl", "hccl"], (2, 1)) as started:
        for each in started:
            each.begin(NUM_TOKENS)
        first, second = (each.answer()["tokens"] for each in started)
        assert first == second
        for each in started:
            each.begin(400)
        killed = started[0].workers[1]
        busy_s = cpu_s(killed) + 0.1
        while cpu_s(killed) < busy_s:  # it computes
            time.sleep(0.01)
        began = Moment.now()
        os.kill(killed, signal.SIGKILL)
        assert started[0].answer()["error"] == "EngineDeadError"
        assert Moment.now() - began < 2.0
        assert any("VllmWorker-1 died unexpectedly" in line for line in started[0].said)
        assert len(started[1].answer()["tokens"][0]) == 400


@pytest.mark.nightly("vllm")
@pytest.mark.timeout(2 * LIMIT_S)
def test_dictionaries_of_tensors_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_REPLACE", "gloo:all")
    program = Path(__file__).parent / "programs" / "vllm_dictionaries.py"
    done = launch("--nproc", 2, program, limit_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same") == 2
