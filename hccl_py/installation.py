"""What is installed, and commands for hints that install what is missing from where ours came.

pip and its like write down in `direct_url.json` (PEP 610) that a package came from a folder or a
file. Reading it takes milliseconds, so each function imports what it needs.
"""

import re
import shlex
from pathlib import Path

PACKAGE = "hccl-py"


def version_of(package: str) -> str:
    """Return the version of an installed package, else "not installed"."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def pip_install(extra: str) -> str:
    """Return the command that adds an extra of this package to this environment.

    It names the checkout or file that the package came from, else the packages of the extra: they
    can be had, wherever this package came from.
    """
    origin, is_editable = _origin()
    if origin is None:
        return f"pip install {shlex.join(_requirements(extra))}"
    place = "." if origin == Path.cwd() else str(origin)
    return f"pip install {'-e ' if is_editable else ''}{shlex.quote(f'{place}[{extra}]')}"


def install_elsewhere(python: str) -> str:
    """Return what to do on another host that has no hccl-py, or another version."""
    origin, _ = _origin()
    if origin is None:
        return f"run {python} -m pip install {PACKAGE}=={version_of(PACKAGE)} there"
    return f"copy {origin} there, and run {python} -m pip install on the copy"


def _origin() -> tuple[Path | None, bool]:
    """Return the folder or file that the package came from, and whether it is used in place."""
    import json
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    recorded = json.loads(metadata.distribution(PACKAGE).read_text("direct_url.json") or "{}")
    url = urlsplit(recorded.get("url", ""))
    origin = Path(unquote(url.path))
    if url.scheme != "file" or not origin.exists():
        return None, False
    return origin, bool(recorded.get("dir_info", {}).get("editable"))


def _requirements(extra: str) -> list[str]:
    """Return what an extra adds, with what it adds through other extras of this package."""
    from importlib import metadata

    found: list[str] = []
    for line in metadata.requires(PACKAGE) or ():
        requirement, _, marker = line.partition(";")
        if re.search(rf"""extra == ["']{re.escape(extra)}["']""", marker):
            inner = re.fullmatch(rf"{PACKAGE}\[(.*)\]", requirement.strip())
            others = inner[1].split(",") if inner else []
            found += [one for other in others for one in _requirements(other.strip())]
            found += [] if inner else [requirement.strip()]
    return found
