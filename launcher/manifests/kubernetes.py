"""An indexed Job for Kubernetes, with the headless Service that gives its pods names.

The pods learn their numbers and where they meet from variables that `schedulers/kubernetes.py` and
torchrun read. YAML is written without a library: a string of JSON is one of YAML.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from hccl_py.launcher.manifests.job import check, name_of
from hccl_py.launcher.options import DEFAULT_MASTER_PORT, Options
from hccl_py.launcher.usage_error import UsageError

_OPTION = "--print-k8s"
# The manifest says them elsewhere, once.
_SIZES = ("--nnodes", "--nproc-per-node", "--nproc", "--world-size", "--master-port")
_AGENT_EXTRA_S = 10
_GIB_PER_RANK = 2
_MANIFEST = Path(__file__).with_name("job.yaml")


def text(options: Options) -> str:
    """Return the manifest; raise UsageError where the options do not fit Kubernetes."""
    check(options, _OPTION)
    program = options.program[options.program[0] == "-m" :]
    words = ["hccl-launch", *_without_sizes(options.own_words), *program]
    return _MANIFEST.read_text().format(
        name=name_of(options),
        num_nodes=options.num_nodes,
        num_ranks=options.ranks_per_node,
        port=options.master_port or DEFAULT_MASTER_PORT,
        grace_s=round(options.stop_s) + _AGENT_EXTRA_S,
        gib_per_rank=_GIB_PER_RANK,
        memory_gib=_GIB_PER_RANK * options.ranks_per_node,
        command="\n".join(f"            - {_quoted(word)}" for word in words),
    )


def _without_sizes(words: tuple[str, ...]) -> Iterator[str]:
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name in _SIZES:
            value = value if equals else next(left)
            if not value.isdecimal():
                raise UsageError(f"{_OPTION}: expected a number after {name}, got {value!r}")
        elif name != _OPTION:
            yield word


def _quoted(word: str) -> str:
    # Kubernetes expands $(NAME) in a command, and makes $( of $$(.
    return json.dumps(word.replace("$(", "$$("), ensure_ascii=False)
