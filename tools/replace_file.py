# SPDX-License-Identifier: Apache-2.0
"""Writes a file that takes the place of another one only when it is whole: what every tool that writes a large file shares.

    with replace_file(path, inputs=[source]) as file:
        file.write(...)
"""
import contextlib
import os
import pathlib
import secrets
import signal
import stat
import threading

KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISLNK, "a symbolic link"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISCHR, "a device"),
         (stat.S_ISBLK, "a device"), (stat.S_ISSOCK, "a socket"))  # fmt: skip
ENDING = (signal.SIGTERM, signal.SIGHUP)  # SIGINT is KeyboardInterrupt


class CannotReplace(Exception):
    """The path is one that may not be replaced: nothing has changed."""


def check_replaceable(path, inputs=()):
    """Returns what os.lstat says of the regular file at `path`, or None if nothing is there. Refuses everything else, and the inputs."""
    if not str(path):
        raise CannotReplace(f"{path} cannot be written: a file has a name")
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as failed:
        raise CannotReplace(f"{path} cannot be written: {failed.strerror}") from None
    for is_kind, kind in KINDS:
        if is_kind(there.st_mode):
            raise CannotReplace(f"{path} cannot be written: it is {kind}")
    for one in inputs:
        if os.path.exists(one) and os.path.samestat(os.stat(one), there):
            raise CannotReplace(f"{path} cannot be written: this run reads it, as {one}")
    return there


@contextlib.contextmanager
def removed_by_signals(path):
    """Signals that would end the process without a word to Python remove the file first."""

    def end(number, _):
        path.unlink(missing_ok=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING if main and signal.getsignal(number) == signal.SIG_DFL}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def replace_file(path, inputs=()):
    """A binary file under a temporary name beside `path`, whose place it takes at the end of the block, with the mode of the file that it
    replaces. An exception leaves what was there. Raises CannotReplace for what may not be replaced, OSError if writing fails."""
    path = pathlib.Path(path) if str(path) else path
    old = check_replaceable(path, inputs)
    name = path.name if len(os.fsencode(path.name)) <= 200 else "kvpolicy"
    temporary = path.with_name(f"{name}.{secrets.token_hex(8)}.unfinished")
    with removed_by_signals(temporary):
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600 if old else 0o666)
        except OSError as failed:
            raise CannotReplace(f"{path} cannot be written: {failed.strerror}") from None
        try:
            with os.fdopen(descriptor, "wb") as file:
                if old:
                    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
                yield file
                file.flush()
                os.fsync(descriptor)
            check_replaceable(path, inputs)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
