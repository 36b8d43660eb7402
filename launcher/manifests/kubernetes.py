"""An indexed Job for Kubernetes, with the headless Service that gives its pods names.

The pods learn their numbers and where they meet from variables that `schedulers/kubernetes.py` and
torchrun read. YAML is written without a library: a string of JSON is one of YAML.
"""

import json
from collections.abc import Iterator

from hccl_py.launcher.manifests.job import check, name_of
from hccl_py.launcher.options import DEFAULT_MASTER_PORT, Options
from hccl_py.launcher.usage_error import UsageError

_OPTION = "--print-k8s"
# The manifest says them elsewhere, once.
_SIZES = ("--nnodes", "--nproc-per-node", "--nproc", "--world-size", "--master-port")
_AGENT_EXTRA_S = 10
_GIB_PER_RANK = 2
_MANIFEST = """\
# Put an image in place of IMAGE. It has to contain the program and hccl-py. Then:
#   openssl rand -hex 32 | head -c 64 |
#       kubectl create secret generic {name} --from-file=HCCL_SECRET=/dev/stdin
#   kubectl apply -f FILE
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  # No address of its own: each pod gets a name, {name}-0.{name} and so on.
  clusterIP: None
  selector:
    job-name: {name}
  # The pods look for each other before any of them is ready.
  publishNotReadyAddresses: true
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  # A pod is a node, and its index is the number of the node.
  completionMode: Indexed
  completions: {num_nodes}
  parallelism: {num_nodes}
  # One failed pod ends the job. All pods fail together, so each further try takes {num_nodes} more.
  backoffLimit: 0
  podReplacementPolicy: Failed
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      # The variables of a Service called master would look like MASTER_PORT.
      enableServiceLinks: false
      # Longer than --shutdown-timeout.
      terminationGracePeriodSeconds: {grace_s}
      containers:
        - name: hccl-launch
          image: IMAGE
          command:
{command}
          env:
            - name: PET_NNODES
              value: "{num_nodes}"
            - name: PET_NPROC_PER_NODE
              value: "{num_ranks}"
            - name: PET_MASTER_ADDR
              value: {name}-0.{name}
            - name: PET_MASTER_PORT
              value: "{port}"
            - name: HCCL_SECRET
              valueFrom:
                secretKeyRef:
                  name: {name}
                  key: HCCL_SECRET
          resources:
            # A core and {gib_per_rank} GiB for each rank: change both to what the program needs.
            # Requests are equal to limits, as none are given.
            limits:
              cpu: "{num_ranks}"
              memory: {memory_gib}Gi
"""


def text(options: Options) -> str:
    """Return the manifest; raise UsageError where the options do not fit Kubernetes."""
    check(options, _OPTION)
    program = options.program[options.program[0] == "-m" :]
    words = ["hccl-launch", *_without_sizes(options.own_words), *program]
    return _MANIFEST.format(
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
