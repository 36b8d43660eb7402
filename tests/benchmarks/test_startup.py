"""The start-up benchmark: one real start, and what its table says of it."""

import json
from pathlib import Path

import pytest

from benchmarks.startup.__main__ import main


@pytest.mark.nightly("bench")
def test_startup_measures_a_start_on_two_emulated_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "startup.json"
    words = ["--layouts", "2x1", "--starts", "1", "--subgroups", "3"]
    assert main([*words, "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert set(written["imports"]) == {"import hccl_py", "from hccl_py import Communicator"}
    (start,) = written["results"]
    assert (start["layout"], start["contender"]) == ("2x1", "communicator")
    assert all(seconds > 0 for seconds in start["seconds"][0].values())
    fds = start["fds"]
    assert fds["before"] < fds["connected"] < fds["all_reduce"], "a lane came with the call"
    assert fds["all_to_all"] < fds["subgroups"]
    assert start["threads"]["all_to_all"] == start["threads"]["subgroups"], "none for a subgroup"
    printed = capsys.readouterr().out
    assert "# 2x1, communicator" in printed and "import hccl_py: " in printed


@pytest.mark.parametrize("layouts", ["16", "0x4", "1x2,"])
def test_startup_rejects_what_is_no_layout(layouts: str) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--layouts", layouts])
    assert exit_info.value.code == 2
