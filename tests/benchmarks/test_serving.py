"""Engines of vLLM beside each other: the tables from recorded rounds, and one real run."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.serving.__main__ import main


def _recorded() -> dict[str, Any]:
    speeds = {"gloo": 100.0, "hccl": 250.0}
    return {
        "command": "recorded",
        "machine": {"cpu": "a processor", "usable_cores": 2, "system": "Linux"},
        "versions": {"torch": "2"},
        "date": "today",
        "starts": 2,
        "rounds": 3,
        "tokens": 200,
        "missing": ["without own: no AVX-512"],
        "results": [
            {
                "contender": name,
                "ranks": 2,
                "start": start,
                "differs": False,
                "tokens_per_s": [0.98 * speed, speed, 1.02 * speed],
                "cpu_ms": [400 / speed] * 3,
                "idle": 0.003 + 0.002 * start,
            }
            for start in range(2)
            for name, speed in speeds.items()
        ],
        "failures": ["start 1 of 2, 4 workers: hccl gave other tokens than gloo"],
    }


def test_show_recorded_rounds_gives_speed_and_cpu_time_of_each_contender(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps(_recorded()))
    assert main(["--show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines[lines.index("# 2 workers") + 2 :][:2]}
    assert rows["gloo"] == ["gloo", "100", "(98.0-102)", "1.00x", "4.00", "0.4%"]
    assert rows["hccl"] == ["hccl", "250", "(245-255)", "2.50x", "1.60", "0.4%"]
    assert f"# {_recorded()['missing'][0]}" in lines
    assert lines[-2:] == ["# What failed", f"  {_recorded()['failures'][0]}"]


def test_main_without_vllm_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.serving.__main__.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "this needs vLLM: pip install" in capsys.readouterr().err


@pytest.mark.nightly("vllm")
@pytest.mark.timeout(3600)
def test_main_measures_engines_that_give_the_same_tokens_and_leave_the_cores_when_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, has_own = tmp_path / "serving.json", torch.cpu._is_avx512_supported()
    wanted = ["--contenders", "gloo,own,hccl", "--starts", "1", "--rounds", "2", "--tokens", "100"]
    assert main([*wanted, "--json", str(path)]) == 0
    results = json.loads(path.read_text())["results"]
    measured = [(each["ranks"], each["contender"]) for each in results]
    contenders = ("gloo", "own", "hccl") if has_own else ("gloo", "hccl")
    assert measured == list(product((2, 4), contenders))
    assert all(min(each["tokens_per_s"]) > 0 and min(each["cpu_ms"]) > 0 for each in results)
    assert all(each["idle"] <= 0.02 for each in results if each["contender"] == "hccl")
    out = capsys.readouterr().out
    assert "# 4 workers" in out
    assert ("# without own: " in out) != has_own
