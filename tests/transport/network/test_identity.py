"""Which cores the ranks of a machine have."""

from hccl_py.transport.network.identity import Identity, are_crowded, count_cores


def test_cores_that_ranks_share_count_once() -> None:
    def bound_to(cores: str) -> Identity:
        return Identity("host", 1, "boot", 1, "", cores)

    assert count_cores([bound_to("3"), bound_to("3")]) == 2
    assert count_cores([bound_to("1"), bound_to("100000000"), bound_to("f")]) == 5
    assert count_cores([Identity.of_this_process()]) > 0


def test_ranks_are_crowded_where_one_kernel_has_more_of_them_than_cores() -> None:
    def rank(boot: str, namespace: int, cores: str) -> Identity:
        return Identity("host", 1, boot, namespace, "", cores)

    # Network namespaces are hosts of their own, but share the cores of their kernel.
    two_hosts = [rank("a", 1, "3"), rank("a", 2, "3")]
    assert not are_crowded(two_hosts)
    assert are_crowded([*two_hosts, rank("a", 2, "3")])
    assert not are_crowded([*two_hosts, rank("b", 1, "3")])
    assert are_crowded([*two_hosts, rank("b", 1, "1"), rank("b", 1, "1")])
