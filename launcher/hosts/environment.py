"""The environment of ranks on other hosts: `-x`, `--env-file`, and default variables.

It is sent over the stdin of ssh, never in a command line. It may contain HCCL_SECRET, so it must
not be logged as a whole.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.hosts.host_list import read_lines

ALWAYS = (
    "HCCL_*",  # settings that ranks must agree on
    # Start-up and module paths of Python, as in DeepSpeed, and of the loader.
    *("PYTHON*", "LD_LIBRARY_PATH"),
    # Numbers of threads, and settings of compute libraries: results and speed depend on them, and
    # one slow host slows all.
    *("OMP_*", "MKL_*", "OPENBLAS_*", "KMP_*", "GOMP_*", "TORCH*", "PYTORCH_*", "GLOO_*"),
    "ACCELERATE_USE_CPU",  # otherwise the launcher sets it there
)
"""Patterns of variables sent to every host. Each host's shell sets PATH."""

NEVER = (
    "HCCL_NODE_ID",  # identifies this node
    # This process's session and location; the launcher sets a rank's own variables.
    *("SSH_*", "DISPLAY", "XAUTHORITY", "XDG_*", "DBUS_*", "TERM*", "HOSTNAME", "HOME", "USER"),
    *("LOGNAME", "SHELL", "SHLVL", "PWD", "OLDPWD", "TMPDIR", "BASH*", "_"),
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_*", "*WORLD_SIZE", "MASTER_*"),
    *("TORCHELASTIC_*", "PET_*", "SLURM*", "SRUN_*", "OMPI_*", "PMI_*", "PMIX_*", "PRTE_*"),
    *("HYDRA_*", "HYDI_*", "MPI_*", "KUBERNETES_*", "JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_*"),
    *("SM_HOSTS", "SM_CURRENT_HOST", "VC_*", "VK_*", "LWS_*", "SKYPILOT_*", "DSTACK_*"),
    *("LSB_*", "LSF_*", "PBS_*", "SGE_*", "NHOSTS", "PE_HOSTFILE", "OAR_*", "COBALT_*", "PJM_*"),
    *("AZ_BATCH_*", "_CONDOR_*", "FLUX_*", "CLUSTER_SPEC", "TF_CONFIG"),
)
"""Patterns of variables of one process or host, sent only with an explicit `-x NAME`."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)")
_QUOTED = re.compile(r"""(?P<quote>["'])(?P<inner>(?:(?!(?P=quote)).)*)(?P=quote)\s*(?:#.*)?""")


def select(
    environ: Mapping[str, str], exports: Sequence[str] = (), files: Sequence[Path] = ()
) -> dict[str, str]:
    """Return the variables to pass on; `-x` wins over `--env-file`, which wins over `ALWAYS`.

    Args:
        environ: this process's environment.
        exports: values of `-x`: NAME, NAME=value, or a pattern with `*`, `?` or `[...]`.
        files: values of `--env-file`.

    Raises:
        UsageError: an unset name, an invalid name, or an unreadable file.
    """
    selected = _matching(environ, ALWAYS)
    for path in files:
        selected |= read_env_file(path)
    for export in exports:
        name, has_value, value = export.partition("=")
        if not has_value and any(sign in name for sign in "*?["):
            selected |= _matching(environ, [name])
        elif not _NAME.fullmatch(name):
            raise UsageError(f"-x: expected NAME, NAME=value or a pattern, got {name!r}")
        elif has_value:
            selected[name] = value
        elif name in environ:
            selected[name] = environ[name]
        else:
            raise UsageError(f"-x {name}: it is not set here; set it or write -x {name}=value")
    return selected


def read_env_file(path: Path) -> dict[str, str]:
    """Read a file of NAME=value lines, as for docker, dotenv and `.deepspeed_env`.

    `#` starts a comment at the start of a line and after a space; `export` before a name and quotes
    round a value are dropped. Nothing is expanded.

    Raises:
        UsageError: the file cannot be read, or a line is wrong; the message names it.
    """
    found = {}
    for number, line in enumerate(read_lines(path, "--env-file"), start=1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        match = _FILE_LINE.fullmatch(content)
        if match is None:
            # The line may contain a secret, so the message does not repeat it.
            raise UsageError(f"{path}:{number}: expected NAME=value or a comment")
        quoted = _QUOTED.fullmatch(match["value"])
        plain = re.split(r"(?:^|\s)#", match["value"], maxsplit=1)[0].rstrip()
        found[match["name"]] = quoted["inner"] if quoted else plain
    return found


def _matching(environ: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        and not any(fnmatchcase(name, pattern) for pattern in NEVER)
        and _NAME.fullmatch(name)
    }
