"""Findings about a node's resources: cores, descriptors, memory, RDMA ports."""

from collections.abc import Iterator

from hccl_py.launcher.preflight.finding import Finding, Nodes

# Open files of Python, torch, the library and a program besides connections with other ranks.
_OWN_DESCRIPTORS = 64
_LANES = 3  # to a rank of another node, each made at its first use
_RANK_BYTES = 512 << 20  # memory of a rank with torch and its buffers
_TRANSPORT = "HCCL_TRANSPORT"
_NO_PORT = (
    "modprobe the driver of the adapter; without one: unset HCCL_TRANSPORT, or soft-RoCE: "
    "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE"
)


def check_cores(nodes: Nodes) -> Iterator[Finding]:
    """Find nodes with fewer CPUs than ranks."""
    for node, facts in nodes.facts.items():
        cpus = min(facts["cpus"], facts["quota"] or facts["cpus"])
        if cpus >= nodes.sizes[node]:
            continue
        why = "its affinity or cpuset allows no more"
        more = "srun --cpus-per-task, taskset"
        if cpus < facts["cpus"]:
            why = "the quota of its cgroup"
            more = "docker run --cpus, resources.limits.cpu"
        what = f"has {cpus:g} CPUs for {nodes.sizes[node]} ranks: {why}"
        remedy = f"fewer ranks (--nproc-per-node {max(1, int(cpus))}), or more CPUs ({more})"
        yield Finding(node, "warning", what, remedy)


def check_descriptors(nodes: Nodes) -> Iterator[Finding]:
    """Find limits below the number of a rank's connections."""
    for node, facts in nodes.facts.items():
        local, remote = nodes.sizes[node], sum(nodes.sizes) - nodes.sizes[node]
        connections = remote * max(1, len(facts["paths"])) * facts["connections_per_path"]
        least = _OWN_DESCRIPTORS + 2 * (local - 1) + connections
        most = least + _LANES * connections
        soft, hard = facts["open_files"]
        if soft == -1 or soft >= most:
            continue
        wanted = max(4096, 1 << (most - 1).bit_length())
        remedy = f"ulimit -n {wanted}"
        if hard != -1 and hard < wanted:
            remedy = (
                f"as root: echo '* - nofile {wanted}' >> /etc/security/limits.conf, and log in "
                f"again; in a container: --ulimit nofile={wanted}"
            )
        opens = f"{least} files" if soft < least else f"{most} files for an all_to_all"
        what = f"lets a process open {soft} files; a rank of {local + remote} opens {opens}"
        yield Finding(node, "error" if soft < least else "warning", what, remedy)


def check_memory(nodes: Nodes) -> Iterator[Finding]:
    """Find nodes with too little memory for their ranks."""
    for node, facts in nodes.facts.items():
        needed, limit = nodes.sizes[node] * _RANK_BYTES, facts["memory_limit"]
        ranks = f"{nodes.sizes[node]} ranks need {_size(needed)} or more"
        if limit is not None and limit < needed:
            what = f"kills processes of its cgroup at {_size(limit)} of memory; {ranks}"
            remedy = "docker run --memory, resources.limits.memory, srun --mem; or fewer ranks"
            yield Finding(node, "error", what, remedy)
        elif facts["memory_available"] < needed:
            what = f"has {_size(facts['memory_available'])} of memory free; {ranks}"
            yield Finding(node, "warning", what, "end other programs (ps aux --sort -rss | head)")


def check_rdma(nodes: Nodes) -> Iterator[Finding]:
    """Find nodes that cannot use RDMA although it is requested."""
    wants = any(facts["hccl_settings"].get(_TRANSPORT) == "verbs" for facts in nodes.facts.values())
    for node, facts in nodes.facts.items():
        rdma = facts["rdma"]
        num_peers = sum(nodes.sizes) - nodes.sizes[node]
        needed, locked = num_peers * rdma["locked_bytes_per_peer"], rdma["locked_bytes"]
        if rdma["problem"]:
            what = f"has a setting that does not work: {rdma['problem']}"
            yield Finding(node, "error", what, "export another value, or unset it")
        elif rdma["unopened"] and wants:
            cause, remedy = rdma["unopened"]
            yield Finding(node, "error", f"cannot open {rdma['used']}: {cause}", remedy)
        elif not rdma["used"] and wants:
            what = f"has no RDMA port to use, which {_TRANSPORT}=verbs needs"
            ports = [line.partition("): ")[2] for line in rdma["lines"] if line[0] != " "]
            yield Finding(node, "error", what, "; ".join(filter(None, ports)) or _NO_PORT)
        elif rdma["used"] and not rdma["unopened"] and locked is not None and locked < needed:
            what = f"lets a rank lock {locked >> 20} MiB of memory; RDMA needs {needed >> 20} MiB"
            remedy = "ulimit -l unlimited; in a container: --ulimit memlock=-1"
            yield Finding(node, "warning", what, remedy)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
