"""A Linux kernel with soft-RoCE, and an initramfs that makes this machine's files its root.

Both come from Debian's packages and are kept in build/roce. The guest's root is this machine's "/",
read-only, under a tmpfs: a program sees every file at the same path, and what it writes is gone
afterwards. One folder is shared for writing.
"""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tiers import PACKAGES

CACHE = Path(__file__).resolve().parents[3] / "build" / "roce"
_MODULES = (
    *("virtio_pci", "virtio_console", "virtio_net", "virtio_rng", "9pnet_virtio", "9p", "overlay"),
    *("veth", "dummy", "sch_netem", "crc32_generic", "rdma_ucm", "rdma_rxe"),
)
# Debian's full kernel; the cloud flavour has no rdma_rxe. The newest of these series is taken.
_KERNELS = re.compile(r"linux-image-6\.(12|1)\.\d+(-\d+|\+deb\d+)-amd64")
_INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
share=trans=virtio,version=9p2000.L,msize=1048576
mount -t 9p -o ro,cache=loose,$share host /host || poweroff -f
mount -t tmpfs -o size=75% tmpfs /upper; mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/host,upperdir=/upper/files,workdir=/upper/work overlay /root
for each in proc sys dev; do mount --move /$each /root/$each; done
mkdir -p /root/dev/pts /root/dev/shm "/root$SHARED"
mount -t devpts pts /root/dev/pts; mount -t tmpfs shm /root/dev/shm
mount -t 9p -o $share shared "/root$SHARED"
chroot /root /bin/bash "$SHARED/guest"
poweroff -f
"""


@cache
def why_not() -> str | None:
    """Say why no virtual machine can run here; None: it can."""
    if platform.machine() != "x86_64":
        return f"the virtual machine's kernel is for x86_64, this is {platform.machine()}"
    missing = [tool for tool in ("qemu-system-x86_64", "busybox", "cpio") if not shutil.which(tool)]
    if missing:
        return f"needs {', '.join(missing)}: apt install {' '.join(PACKAGES['roce'])}"
    if not (CACHE / "vmlinuz").exists() and not (os.geteuid() == 0 and shutil.which("apt-get")):
        return "needs a kernel with rdma_rxe, which root can download with apt-get"
    if not (CACHE / "vmlinuz").exists() and not _fitting_kernels():
        return "needs a kernel of Debian with rdma_rxe, and apt-get knows none: apt-get update"
    return None


def kernel_and_initramfs() -> tuple[Path, Path]:
    """Return both, made if they are not there yet; a second process waits for the first one."""
    kernel, initramfs = CACHE / "vmlinuz", CACHE / "initramfs"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kernel.exists() and initramfs.exists()):
            _make_both(kernel, initramfs)
    return kernel, initramfs


def _make_both(kernel: Path, initramfs: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        root = Path(folder)
        _fetch_kernel(root)
        _make_initramfs(root)
        (root / "initramfs").rename(initramfs)
        next(root.glob("boot/vmlinuz-*")).rename(kernel)


def _fitting_kernels() -> list[str]:
    """Return the packages, the newest one last."""

    def version(name: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", name)]

    named = _output("apt-cache", "pkgnames", "linux-image-6.").split()
    return sorted(filter(_KERNELS.fullmatch, named), key=version)


def _fetch_kernel(root: Path) -> None:
    fitting = _fitting_kernels()
    # As another user apt-get may not write here, and says so although it can as root.
    _run(root, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", fitting[-1])
    _run(root, "bash", "-c", "dpkg-deb --fsys-tarfile *.deb | tar -x ./boot ./lib/modules")


def _make_initramfs(root: Path) -> None:
    [modules] = root.glob("lib/modules/*")
    _run(root, "depmod", "-b", str(root), modules.name)
    tree = root / "tree"
    for name in ("bin", "modules", "proc", "sys", "dev", "host", "upper", "root"):
        (tree / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", tree / "bin")
    loads = ("modprobe", "-d", str(root), "-S", modules.name, "-D", "-a", *_MODULES)
    files = [line.split()[1] for line in _output(*loads).splitlines() if line.startswith("insmod")]
    for number, file in enumerate(dict.fromkeys(files)):
        unpacked = tree / "modules" / f"{100 + number}.ko"
        read = "xz -dc" if file.endswith(".xz") else "cat"
        _run(root, "bash", "-c", f"{read} {file} > {unpacked}")
    (tree / "init").write_text(_INIT)
    (tree / "init").chmod(0o755)
    _run(tree, "bash", "-c", "find . | cpio -o -H newc --quiet | gzip -1 > ../initramfs")


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True, timeout=300)


def _output(*command: str) -> str:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    return done.stdout
