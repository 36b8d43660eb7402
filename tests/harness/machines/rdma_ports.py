"""RDMA ports of hosts of other shapes, as the kernel shows them in /sys."""

from pathlib import Path

V1, V2 = "IB/RoCE v1", "RoCE v2"
LINK_LOCAL = "fe80:0000:0000:0000:0200:00ff:fe00:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"
IPV6 = "2001:0db8:0000:0000:0000:0000:0000:0001"
USUAL = [(LINK_LOCAL, V1), (LINK_LOCAL, V2), (IPV6, V2), (IPV4, V1), (IPV4, V2)]


def make_port(
    sysfs: Path,
    device: str,
    interface: str,
    gids: list[tuple[str, str]] = USUAL,
    *,
    state: str = "4: ACTIVE",
    layer: str = "Ethernet",
    number: int = 1,
) -> None:
    port = sysfs / device / "ports" / str(number)
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "link_layer").write_text(f"{layer}\n")
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    for index, (address, kind) in enumerate([*gids, ("0:0:0:0:0:0:0:0", "")]):
        (port / "gids" / str(index)).write_text(f"{address}\n")
        if kind:
            (port / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")
            (port / "gid_attrs" / "ndevs" / str(index)).write_text(f"{interface}\n")
