"""Files of this user in folders that other users may write to: logs and dumps.

A path is opened folder by folder, each relative to the descriptor of the one above, so no other
user can redirect it between two steps. Symbolic links of other users are not followed: by root
nowhere, by others not in world-writable folders. A file is always created anew: an existing one of
that name may be a link to a valuable file, or a pipe without a reader.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

_MOST_LINKS = 40  # the kernel's number
_NOBODY = 65534  # what NFS and user namespaces make of root
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(path: Path, mode: int = 0o777) -> int:
    """Open a folder, creating it and its parents if necessary; return its descriptor.

    Args:
        path: path of the folder.
        mode: permissions of a new folder.

    Raises:
        OSError: it cannot be created or opened, or another user's symbolic link leads there.
    """
    left = list(path.absolute().parts[::-1])
    folder, num_links = os.open("/", _FOLDER), 0
    try:
        while left:
            name = left.pop()
            inner = _open(name, folder, 0o777 if left else mode)
            if stat.S_ISLNK(os.fstat(inner).st_mode):
                num_links += 1
                try:
                    left += Path(_target(inner, folder, num_links)).parts[::-1]
                finally:
                    os.close(inner)
            else:
                os.close(folder)
                folder = inner
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except BaseException as error:
        os.close(folder)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
    return folder


def open_private_folder(parent: int, name: str) -> int:
    """Open a folder that only its owner may read; create it if necessary.

    Args:
        parent: descriptor of the folder above.
        name: of the folder in it.

    Raises:
        OSError: it is not a folder, or belongs to another user.
    """
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except (NotADirectoryError, PermissionError):
        raise _not_ours(name) from None
    if os.fstat(folder).st_uid not in (os.geteuid(), _NOBODY):
        os.close(folder)
        raise _not_ours(name)
    os.fchmod(folder, 0o700)  # left by an earlier job, perhaps with more permissions
    return folder


def create_file(folder: int, name: str) -> int:
    """Create an empty file that only its owner may read, replacing any of that name.

    Args:
        folder: descriptor of the folder.
        name: of the file in it.

    Returns:
        Its descriptor, to write to.
    """
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=folder)


def _open(name: str, folder: int, mode: int) -> int:
    """Open an entry of a folder, a link as itself; create a missing folder."""
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=folder)
    except OSError:  # a link, a file, or a folder with x but not r permission
        pass
    return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _target(link: int, folder: int, num_links: int) -> str:
    """Return the target of a link in a folder; OSError: it may not be followed."""
    owner, me = os.fstat(link).st_uid, os.geteuid()
    everybody_writes = os.fstat(folder).st_mode & stat.S_IWOTH
    if owner not in (0, me) and (me == 0 or everybody_writes):
        raise PermissionError(errno.EPERM, f"a symbolic link of user {owner} leads there")
    if num_links > _MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return os.readlink("", dir_fd=link)


def _not_ours(name: str) -> PermissionError:
    return PermissionError(errno.EPERM, "expected a folder of this user, no link", name)
