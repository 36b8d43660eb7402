"""The manifest of --print-k8s: valid for Kubernetes, and its containers run as two pods.

A pod is a network namespace with a host name and process ids of its own, whose first process is
the container's command.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import namespaces
import pytest
from launching import launch
from namespaces import Hosts
from wheels import installed

pytestmark = pytest.mark.nightly("launchers")

LIMIT_S = 60.0
SCRIPT = """
import os
import torch, torch.distributed as dist
dist.init_process_group("hccl")
data = torch.ones(10)
dist.all_reduce(data)
names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
os.write(1, (" ".join(os.environ[name] for name in names) + f" {int(data[0])}\\n").encode())
dist.destroy_process_group()
"""
READ_YAML = "import json, sys, yaml; print(json.dumps([*yaml.safe_load_all(sys.stdin)]))"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = launch("--print-k8s", "--nnodes", 2, "--nproc", 2, "--prefix", "never", script)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "train.yaml"
    path.write_text(done.stdout)
    return path


def validator(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run something with the packages of kubernetes-validate."""
    folder = installed("kubernetes-validate", "bin/kubernetes-validate")
    (packages,) = folder.glob("lib/python*/site-packages")
    words = tuple(word.replace("FOLDER", str(folder)) for word in words)
    return subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": str(packages)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_manifest_is_valid(manifest: Path) -> None:
    check = (sys.executable, "FOLDER/bin/kubernetes-validate", "--strict")
    done = validator(*check, str(manifest))
    assert done.returncode == 0, done.stdout + done.stderr
    manifest.write_text(manifest.read_text().replace("subdomain:", "subDomain:"))
    assert validator(*check, str(manifest)).returncode != 0


def test_containers_of_two_pods_run_the_job_once_their_name_is_known(manifest: Path) -> None:
    if reason := namespaces.why_not():
        pytest.skip(reason)
    done = validator(sys.executable, "-c", READ_YAML, stdin=manifest.read_text())
    service, job = json.loads(done.stdout)
    pod = job["spec"]["template"]["spec"]
    name = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    logs = [manifest.with_name(f"pod_{index}.log") for index in range(2)]
    with Hosts(num_hosts=2) as hosts, names_of(hosts) as files, ExitStack() as cleanup:
        pods = [start(hosts, index, pod, logs[index]) for index in range(2)]
        for each in pods:
            cleanup.callback(each.kill)
        for log in logs:
            await_text(log, f"{name} does not resolve to an address")
        for file in files:  # in place, as the pods have it mounted
            file.write_text(f"127.0.0.1 localhost\n{hosts.address(0)} {name}\n")
        outputs = [each.communicate(timeout=LIMIT_S)[0] for each in pods]
    assert [each.returncode for each in pods] == [0, 0], [log.read_text() for log in logs]
    lines = [sorted(out.splitlines()) for out in outputs]
    assert lines == [["0 0 0 4 4", "1 1 0 4 4"], ["2 0 1 4 4", "3 1 1 4 4"]]


@contextmanager
def names_of(hosts: Hosts) -> Iterator[list[Path]]:
    """Give each host a file of names, in which no pod is yet."""
    files = [Path("/etc/netns", each, "hosts") for each in hosts.names]
    try:
        for file in files:
            file.parent.mkdir(parents=True)
            file.write_text("127.0.0.1 localhost\n")
        yield files
    finally:
        for file in files:
            shutil.rmtree(file.parent, ignore_errors=True)


def start(hosts: Hosts, index: int, pod: dict[str, Any], log: Path) -> subprocess.Popen[str]:
    """Start the container of a pod, as Kubernetes does."""
    (container,) = pod["containers"]
    environment = {each["name"]: each.get("value", "c0ffee") for each in container["env"]}
    bin_folder = str(Path(sys.executable).parent)
    host_name = f"{pod['subdomain']}-{index}"
    alone = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    named = ["sh", "-c", f'hostname {host_name}; exec "$@"', "sh"]
    with log.open("wb") as file:
        return subprocess.Popen(
            hosts.command(index, *alone, *named, *container["command"]),
            env={
                "PATH": f"{bin_folder}:{os.environ['PATH']}",
                "JOB_COMPLETION_INDEX": str(index),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )


def await_text(log: Path, expected: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while expected not in log.read_text():
        assert time.monotonic() < deadline_s, f"no {expected!r} in {log.read_text()!r}"
        time.sleep(0.05)
