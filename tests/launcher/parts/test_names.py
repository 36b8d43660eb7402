"""A pod waits for the name of node 0, which nothing resolves yet."""

import subprocess

import pytest
from launching import COMMAND
from quiet_clock import HANG_S

from hccl_py.launcher.exit_codes import MISSING_NODE, USAGE

NAME = "train-0.train.invalid"


@pytest.mark.parametrize(
    ("variables", "exit_code", "expected"),
    [
        (
            {"JOB_COMPLETION_INDEX": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": NAME},
            MISSING_NODE,
            f": {NAME} does not resolve to an address (",
        ),
        (
            {"NODE_RANK": "1", "MASTER_ADDR": NAME},
            USAGE,
            f"error: {NAME} does not resolve",
        ),
    ],
    ids=["pod", "by hand"],
)
def test_only_a_pod_waits_for_a_name(
    variables: dict[str, str], exit_code: int, expected: str
) -> None:
    options = ("--nnodes", "2", "--connect-timeout", "0.6")
    done = subprocess.run(
        [*COMMAND, *options, "-m", "json"],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == exit_code, done.stderr
    last = done.stderr.splitlines()[-1]
    assert expected in last
    assert ("after 1 s" in last) == (exit_code == MISSING_NODE)
