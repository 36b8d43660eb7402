"""What lets hundreds of agents start on one machine: few imports, one coordinator for all."""

import resource
import subprocess
import sys

import pytest
from launching import run

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.machine.open_files import allow_connections

# Each would cost an agent 3 to 20 % of the CPU time of its start, torch 20 times that time.
_COSTLY = (
    *("torch", "numpy", "dataclasses", "inspect", "logging", "shutil", "msgpack", "secrets", "zmq"),
    "unicodedata",  # which a host name needs that is not ASCII
)
_IMPORTS = """
import sys
before = set(sys.modules)
import hccl_py.launcher.launch, hccl_py.launcher.job.join
from hccl_py.launcher.command_line.read import parse
from hccl_py.launcher.parts import several_nodes
from hccl_py.transport.network.interfaces import address_towards
options = parse(["--nnodes", "2", "--node-rank", "1", "--no-python", "true"], {})
address_towards(several_nodes.resolve(options.coordinator), None)
print(*sorted(set(sys.modules) - before))
"""


def test_agent_imports_nothing_costly() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = done.stdout.split()
    assert "hccl_py.launcher.job.agent" in imported
    assert not set(_COSTLY) & set(imported)


def test_coordinator_that_may_open_too_few_files_is_refused() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(UsageError, match=f"node 0 needs .* this user may open {hard}"):
        allow_connections(hard)


@pytest.mark.nightly("scale")
def test_job_of_256_agents_begins_and_ends() -> None:
    done = run(sys.executable, "-m", "benchmarks.agents", 256, limit_s=600.0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[0] == "256"
