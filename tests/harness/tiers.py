"""The two tiers of the suite: what `pytest` runs by default, and the sections of `.ci/nightly`.

    @pytest.mark.nightly("hosts")       # left out by default, run by `.ci/nightly hosts`
    def test_sum_between_two_hosts(): ...

`conftest.py` rejects a section that is not listed here, and skips "hosts" without namespaces.
"""

from typing import Any

SECTIONS = {
    "hosts": "two hosts, as network namespaces with links between them",
    "launchers": "ssh hosts, Slurm, and the mpirun of Open MPI and MPICH",
    "scale": "hundreds of ranks",
    "plans": "broken plans, random ones over every provider, proofs for every rank count",
    "faults": "every kind of failure on every layout",
    "attacks": "random kills, schedules, signals, packet loss, forbidden system calls, floods",
    "training": "the digits example killed, resumed, and against gloo; large models",
    "calls": "every element type and operation on every layout",
    "bench": "benchmarks that start real jobs, one after the other",
    "torch": "the default tier, and torch's own suites of backends, with each version of torch",
    "frameworks": "Lightning, Accelerate, transformers and others, from their wheels",
    "roce": "RDMA over soft-RoCE, in virtual machines",
    "wings": "the core's tests without bench, without capi, without horovod, and without lab",
    "wheels": "wheels of each kind of Python: names, checkers, an install without a compiler",
    "jax_tensorflow": "JAX, TensorFlow and Keras from their wheels, without torch",
    "gaudi": "Optimum Habana and lightning-habana, with the versions that they need",
    "vllm": "vLLM's engine on CPUs, from its wheel",
}
"""Names that the marker `nightly` takes."""

TORCH_VERSIONS = ("2.13.0", "2.14.1", "2.15.0", "newest")
"""Versions of torch with which the default tier runs, in an environment of its own each."""

COMMANDS = {
    **{name: f"python3 -m pytest -q -m nightly --section {name}" for name in SECTIONS},
    "gloo": "HCCL_TEST_GLOO=1 python3 -m pytest -q -m '' tests/torch_backend",
    "rounds": (
        "HCCL_TEST_ROUNDS=10 python3 -m pytest -q -m '' tests/faults/test_injections.py "
        "tests/faults/test_outside.py tests/diagnosis/test_mismatch.py"
    ),
    "soak": "python3 tests/soak/main.py --seconds 600",
    "address": ".ci/sanitize address,undefined",
    "thread": ".ci/sanitize thread && .ci/sanitize python",
    "fuzz": ".ci/sanitize fuzz",
    "c": ".ci/sanitize c && .ci/sanitize c thread",
    "aarch64": ".ci/aarch64",
    "protocols": (
        "cmake -S . -B build/cpp && cmake --build build/cpp --target check_protocols && "
        "HCCL_CHECK_DEPTH=2 build/cpp/check_protocols"
    ),
}
"""The nightly tier: what each section runs, from the root of the tree."""

# Two at a time: a pair of virtual machines that talk keeps one core busy.
COMMANDS["roce"] += " -n 2 --durations=0 --durations-min=10 tests/roce"

# Floods at every port stand in the default tier; here they are longer.
COMMANDS["attacks"] += (
    " && HCCL_TEST_ROUNDS=5 python3 -m pytest -q -m '' tests/faults/test_outside.py "
    "tests/transport/control/test_strangers.py"
)

COMMANDS["torch"] = (
    f"for version in {' '.join(TORCH_VERSIONS)}; do "
    "TORCH=$version .ci/run tests || failed=1; done; exit ${failed:-0}"
)

for name in ("frameworks", "jax_tensorflow"):
    _matrix = f"python3 tests/integrations/matrix.py {name}"
    COMMANDS[name] = f"{_matrix} --forget && {COMMANDS[name]} && {_matrix}"

# vLLM's wheel brings them, built for another torch, and imports them where they are.
COMMANDS["vllm"] = (
    "python3 -m pip uninstall -qy torchvision torchaudio torchcodec && " + COMMANDS["vllm"]
)

PACKAGES = {
    "hosts": ("iproute2", "nftables"),
    "attacks": ("iproute2", "nftables"),
    "calls": ("abigail-tools", "golang-go", "valgrind"),
    "plans": ("chromium",),
    "launchers": (
        *("iproute2", "nftables", "openssh-client", "openssh-server"),
        *("slurmctld", "slurmd", "slurm-client", "munge"),
    ),
    "roce": (
        *("qemu-system-x86", "busybox-static", "cpio", "kmod", "xz-utils", "iproute2"),
        *("ibverbs-providers", "ibverbs-utils", "libibverbs-dev", "perftest"),
    ),
    "aarch64": ("g++-aarch64-linux-gnu", "qemu-user", "cmake"),
}
"""Debian packages by section; `.ci/nightly` installs them where it may."""

ENVIRONMENTS = {
    "frameworks": (
        *("lightning", "accelerate", "transformers", "ignite", "deepspeed", "torchft", "ray"),
        *("monai", "debug-server"),
    ),
    "jax_tensorflow": ("jax", "tensorflow"),
    "gaudi": ("gaudi",),
    "vllm": ("vllm",),
    "wheels": ("release",),
}
"""Extras of pyproject.toml that only this section sees: `.ci/nightly` adds them to the environment
at hand in build/environments/SECTION.
"""


def by_night(section: str, *cases: Any) -> list[Any]:
    """Return cases of a parametrize that only this section tries; tuples are several arguments."""
    import pytest  # what starts the sections does without

    marks = pytest.mark.nightly(section)
    every = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*case, marks=marks) for case in every]
