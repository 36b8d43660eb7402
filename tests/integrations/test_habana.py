"""HCCL_HABANA_SHIM=1: programs for Gaudi run on the CPU as they are written for Gaudi."""

import os
import sys
from pathlib import Path

import pytest
import torch
from launching import launch, run

from hccl_py.integrations.habana.hpex import FusedAdamW
from hccl_py.schedulers.ports import free_port

PAGE = Path(__file__).parents[2] / "docs/frameworks/habana.md"
SAID = "hccl: HCCL_HABANA_SHIM=1: stands in for habana_frameworks"

PROGRAM = """
import os, sys
from habana_frameworks.tensorflow import load_habana_module as load_for_tensorflow
assert "torch" not in sys.modules or __name__ != "__main__"
from habana_frameworks.torch.utils.library_loader import load_habana_module
import torch, habana_frameworks.torch as ht
from habana_frameworks.torch.utils.distributed_utils import initialize_distributed_hpu
from concurrent.futures import ThreadPoolExecutor
from torch.hpex import hmp
from torch.utils.data import DataLoader

class Samples:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.full((2,), index, device="hpu")

def message(statement):
    try:
        exec(statement)
    except (AttributeError, ImportError) as error:
        return f"{type(error).__name__}: {error}"

if __name__ == "__main__":
    load_habana_module(), load_for_tensorflow(), hmp.convert(opt_level="O1", isVerbose=False)
    spawned = DataLoader(Samples(), 2, num_workers=1, multiprocessing_context="spawn")
    assert torch.cat(list(spawned)).sum() == 12
    with hmp.disable_casts(), ThreadPoolExecutor() as threads:
        assert threads.submit(torch.ones(2).to, "hpu:0").result().device.type == "cpu"
    moved = torch.nn.Linear(2, 2, device="hpu").to("hpu").hpu()
    with torch.autocast(device_type="hpu"):
        assert moved(torch.ones(2).hpu()).dtype is torch.bfloat16
    assert not torch.empty(2, device=torch.device("hpu", 0), pin_memory=True).is_pinned()
    assert torch.ones(2).pin_memory("hpu").equal(torch.ones(2))
    assert torch.einsum("hpu", torch.ones(1, 2, 3)).shape == (1, 2, 3)  # no device
    torch.hpu.enable_dynamic_shape(), torch.hpu.disable_dynamic_shape(), ht.core.mark_step()
    assert torch.hpu.wrap_in_hpu_graph(moved) is moved
    assert initialize_distributed_hpu() == (1, 0, 0)
    assert initialize_distributed_hpu(world_size=4, rank=3, local_rank=1) == (4, 3, 1)
    print(os.environ["DS_ACCELERATOR"], os.environ["ACCELERATE_USE_CPU"])
    print(message("from habana_frameworks.torch.utils import visualization"))
    print(message("import habana_frameworks.torch.sharing"))
    print(message("ht.distributed.hccl.compute_stream"))
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DS_ACCELERATOR", "ACCELERATE_USE_CPU", "PT_HPU_LAZY_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)  # programs write there
    return tmp_path / "program.py"


@pytest.mark.nightly("frameworks")
@pytest.mark.shows("Gaudi's programs, torch", "data parallel")
@pytest.mark.shows("Gaudi's programs, torch", "adapter", "`--habana-shim`")
def test_program_of_the_page_trains_equal_models(script: Path) -> None:
    script.write_text(PAGE.read_text().partition("```python\n")[2].partition("```")[0])
    ran = launch("--habana-shim", "--world_size", 2, "--use_mpi", script)
    assert ran.returncode == 0, ran.stderr
    (first, weights), second = (line.rsplit(", ", 1) for line in sorted(ran.stdout.splitlines()))
    assert first == "rank 0 of 2, lazy mode 0"
    assert second == ["rank 1 of 2, lazy mode 0", weights]
    assert ran.stderr.count(SAID) == 1


@pytest.mark.nightly("frameworks")
def test_shim_serves_spawned_processes_threads_and_says_what_it_lacks(script: Path) -> None:
    script.write_text(PROGRAM)
    ran = launch("--habana-shim", script)
    assert ran.returncode == 0, ran.stderr
    lacks, root = "hccl-py's shim does not have", "habana_frameworks.torch"
    children = "core, distributed, dynamo, hpex, hpu, utils"
    utils = "debug, distributed_utils, experimental, internal, lib_utils, library_loader"
    hccl = "initialize_distributed_hpu"
    assert ran.stdout.splitlines() == [
        "cpu true",
        f"ModuleNotFoundError: {lacks} {root}.utils.visualization; {root}.utils has {utils}",
        f"ModuleNotFoundError: {lacks} {root}.sharing; {root} has {children}",
        f"AttributeError: {lacks} {root}.distributed.hccl.compute_stream; "
        f"{root}.distributed.hccl has {hccl}",
    ]
    assert ran.stderr.count(SAID) == 1


@pytest.mark.nightly("frameworks")
def test_distributed_runner_and_elastic_jobs_start_the_shim_in_every_rank(script: Path) -> None:
    script.write_text(
        "from habana_frameworks.tensorflow import load_habana_module\n"  # needs no torch
        "import os, sys\n"
        "print(os.environ['RANK'], os.environ['WORLD_SIZE'], sys.argv[1])\n"
        "sys.exit(3 if sys.argv[1] == 'b' else 0)\n"
    )
    jobs = f"['{script} a', '{script} b', '{script} c'], world_size=2, master_port={free_port()}"
    source = (
        "from hccl_py.integrations.habana.runner import DistributedRunner\n"
        f"raise SystemExit(DistributedRunner({jobs}).run())"
    )
    ran = run(sys.executable, "-c", source)
    assert ran.returncode == 3, ran.stderr
    # The rank of b that fails first ends the other, which may not have printed.
    done = sorted(line[-5:] for line in ran.stdout.splitlines() if not line.endswith("b"))
    assert done == ["0 2 a", "1 2 a"]
    ran = launch("--habana-shim", "--role", "trainer", "--nproc", 2, script, "c")
    assert sorted(ran.stdout.splitlines()) == ["0 2 c", "1 2 c"], ran.stderr
    assert ran.stderr.count(SAID) == 1


@pytest.mark.parametrize("corrects", [True, False])
def test_fused_adamw_corrects_its_bias_only_where_it_should(corrects: bool) -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = FusedAdamW([weight], lr=0.1, bias_correction=corrects)
    weight.grad = gradient = torch.tensor([0.5, 0.25])
    optimizer.step()
    # The means of one step; each has a bias of 1 - beta.
    mean, square = (gradient, gradient**2) if corrects else (0.1 * gradient, 1e-3 * gradient**2)
    wanted = torch.tensor([1.0, -2.0]) - 0.1 * mean / (square.sqrt() + 1e-6)
    torch.testing.assert_close(weight.detach(), wanted)


def test_version_of_habanas_plugin_is_seen_by_pip(script: Path) -> None:
    script.write_text(
        "import subprocess, sys\n"
        "show = sys.executable, '-m', 'pip', 'show', 'habana-torch-plugin'\n"
        "print(subprocess.run(show, capture_output=True, text=True).stdout)\n"
    )
    ran = launch("--habana-shim", script)
    assert "Version: 1.24.0" in ran.stdout.splitlines(), ran.stderr


def test_shim_refuses_habanas_own_package_and_programs_without_python(script: Path) -> None:
    script.write_text("print('ran')")
    script.with_name("habana_frameworks").mkdir()
    script.with_name("habana_frameworks").joinpath("__init__.py").touch()
    ran = launch("--habana-shim", script)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "Habana's own habana_frameworks is installed, and the shim would hide it" in ran.stderr
    ran = launch("--habana-shim", "--no-python", "true")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("hccl-launch: error: --habana-shim needs a Python script")


def test_import_of_torch_starts_the_shim_without_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(os.environ, "HCCL_HABANA_SHIM", "1")
    source = "import torch, habana_frameworks.torch.hpu as hpu; print(torch.hpu is hpu)"
    ran = run(sys.executable, "-c", source)
    assert ran.stdout == "True\n"
    assert (ran.stderr.count(SAID), ran.stderr.count("\n")) == (1, 1), ran.stderr
