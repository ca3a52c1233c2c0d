"""Runs one command in a container's namespaces. Started by the node agent as a script, with `python -I -S`.

It needs the standard library alone, and little of it: one of these runs before every container and every exec.
Descriptors: 3 the specification (JSON), 4 a pipe on which it tells the command's pid and what went wrong, 5 the pod's
network namespace. The first process only makes namespaces and forks; the child sets up the files and becomes the command.
An orphan, the command then belongs to PID 1 of the machine room, which collects its exit.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import termios

SPECIFICATION, REPORT, NETWORK = 3, 4, 5
NEW_MOUNTS, NEW_HOST_NAME, NEW_IPC, NEW_PIDS, NEW_NETWORK = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
NO_SUID, NO_DEV, BIND, RECURSIVE, PRIVATE, DETACH = 2, 4, 4096, 16384, 1 << 18, 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
MOUNT_SETATTR, AT_RECURSIVE, ATTRIBUTE_READ_ONLY = 442, 0x8000, 1

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise OSError where a call of libc failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """See mount(2). Raises OSError."""
    data = options.encode() or None
    result = libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data)
    check(result, f"mount {source} on {target}")


def make_read_only(path: str) -> None:
    """Make a mount and all below it read-only.

    Kernels before 5.12 lack this call: the mount then stays as writable as it is for any other process of this user.
    """
    attributes = (ctypes.c_uint64 * 4)(ATTRIBUTE_READ_ONLY, 0, 0, 0)
    libc.syscall(MOUNT_SETATTR, -100, path.encode(), AT_RECURSIVE, attributes, ctypes.c_size_t(32))


def make_target(source: str, target: str) -> None:
    """Make what ``source`` can be bound to: a directory, or an empty file."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o666))


def perform(operation: list[str], root: str) -> None:
    """Do one operation of a mount plan (see mounts.py) below ``root``. Raises OSError."""
    name, arguments = operation[0], operation[1:]
    if name == "dir":
        os.makedirs(root + arguments[0], exist_ok=True)
        if arguments[0] == "/tmp":
            os.chmod(root + arguments[0], 0o1777)
    elif name == "link":
        os.symlink(arguments[1], root + arguments[0])
    elif name == "bind":
        source, target, access = arguments
        make_target(source, root + target)
        mount(source, root + target, "", BIND | RECURSIVE)
        if access == "ro":
            make_read_only(root + target)
    else:
        target = root + arguments[0]
        os.makedirs(target, exist_ok=True)
        options = {"devpts": "newinstance,ptmxmode=0666,mode=620", "tmpfs": "mode=1777"}.get(name, "")
        mount(name, target, name, NO_SUID, options)


def make_root(root: str, operations: list[list[str]]) -> None:
    """Make the container's files at ``root`` and turn it into the root. Raises OSError."""
    mount("none", "/", "", RECURSIVE | PRIVATE)
    mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEV, "mode=755")
    for operation in operations:
        perform(operation, root)
    os.chdir(root)
    check(libc.syscall(PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount of the old root")
    os.chdir("/")


def enter(pid: int) -> None:
    """Move into the namespaces of a container's first process. Raises OSError."""
    for name in ("net", "uts", "ipc", "pid", "mnt"):
        descriptor = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        check(libc.setns(descriptor, 0), f"setns {name}")
        os.close(descriptor)


def become(argv: list[str], environment: dict[str, str], folder: str, terminal: bool) -> None:
    """Become the command. Raises OSError."""
    if folder:
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for descriptor in (SPECIFICATION, NETWORK):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    os.execvpe(argv[0], argv, environment)


def main() -> None:
    """Do what the specification says; never returns."""
    with open(SPECIFICATION, closefd=False) as file:
        specification = json.load(file)
    os.set_inheritable(REPORT, False)
    try:
        if "enter" in specification:
            enter(specification["enter"])
        else:
            check(libc.setns(NETWORK, NEW_NETWORK), "setns net")
            check(libc.unshare(NEW_MOUNTS | NEW_HOST_NAME | NEW_IPC | NEW_PIDS), "unshare")
        child = os.fork()
        if child:
            os.write(REPORT, f"{child}\n".encode())
            os._exit(0)
        os.setsid()
        if "enter" not in specification:
            name = specification["hostname"].encode()
            check(libc.sethostname(name, len(name)), "sethostname")
            make_root(specification["root"], specification["operations"])
        folder, terminal = specification.get("cwd", ""), specification.get("tty", False)
        become(specification["argv"], specification["env"], folder, terminal)
    except OSError as error:
        os.write(REPORT, f"error {specification['argv'][0]}: {error.strerror or error}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
