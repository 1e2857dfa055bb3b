"""What both clients are: a socket and the session that it carries. How they wait is their own."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import weakref
from typing import Optional, Union

from ._session import Session
from .errors import CannotConnect, NotAllowed
from .types import Role, Welcome

Path = Union[str, "os.PathLike[str]"]
RECEIVE_SIZE = 256 << 10
PATH_SIZE_MAX = 107
"""Bytes of a Unix socket's path, as the kernel has it."""


class Connection:
    """One connection to a sidecar."""

    _socket: socket.socket

    def __init__(self, path: Path, hold: bool) -> None:
        self._session = Session(os.fspath(path), hold)

    def _open(self) -> None:
        self._socket = connect(self._session.peer)
        _connections.add(self)

    @property
    def welcome(self) -> Welcome:
        """What the sidecar said when the client connected."""
        return self._session.limits

    @property
    def role(self) -> Role:
        """The sidecar's role, by the last frame that came; STANDBY once the connection has ended."""
        return self._session.role

    @property
    def epoch(self) -> int:
        """The epoch that goes with `role`; 0 if unknown."""
        return self._session.epoch

    @property
    def primary(self) -> Optional[str]:
        """Name of the primary's sidecar, by the last frame that named it."""
        return self._session.primary

    @property
    def acked(self) -> Optional[int]:
        """The last LSN that was acknowledged to this client. Where the outcome of an append is unknown, read from the next one."""
        return self._session.acked

    @property
    def in_flight(self) -> int:
        """Appends that are submitted and not answered."""
        return len(self._session.in_flight)

    def _transmit(self) -> bool:
        """Sends what goes without waiting; True if something went."""
        outbox = self._session.outbox
        if not outbox:
            return False
        try:
            sent = self._socket.send(outbox, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            outbox.clear()  # what the sidecar said last may still be readable: that tells why
            with contextlib.suppress(OSError):  # a request without its end will have no answer: the sidecar ends the connection
                self._socket.shutdown(socket.SHUT_WR)
            return False
        del outbox[:sent]
        return True

    def _receive(self) -> None:
        """Takes in what has come."""
        try:
            data = self._socket.recv(RECEIVE_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            return self._session.disconnected("the connection failed: %s" % error.strerror)
        if data:
            self._session.feed(data)
        else:
            self._session.disconnected("the sidecar closed the connection")

    def _abandon(self) -> None:
        # A child that kept the socket would hold the connection open after its parent's death, and the sidecar would wait for it.
        self._socket.close()
        self._session.disconnected("this connection belongs to the parent process: open a client in each process")


_connections: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _abandon_all() -> None:
    for connection in list(_connections):
        connection._abandon()
    _connections.clear()


os.register_at_fork(after_in_child=_abandon_all)


def connect(path: str) -> socket.socket:
    """A connected socket that never blocks."""
    size = len(os.fsencode(path))
    if not 0 < size <= PATH_SIZE_MAX:
        raise ValueError("%r: a socket's path has 1 to %d bytes, and this has %d" % (path, PATH_SIZE_MAX, size))
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        connected.connect(path)
    except OSError as error:
        connected.close()
        raise _cannot_connect(path, error) from error
    except BaseException:
        connected.close()
        raise
    return connected


def _cannot_connect(path: str, error: OSError) -> Exception:
    number = error.errno
    if number in (errno.EACCES, errno.EPERM):
        return NotAllowed(
            "%s: permission denied for user %d: run the app as the sidecar's user, or list the user with --allow-uid; "
            "the folder must be reachable too" % (path, os.geteuid())
        )
    if number in (errno.ENOENT, errno.ENOTDIR):
        why = "no such socket: is the sidecar running, and is this its --socket?"
    elif number in (errno.ECONNREFUSED, errno.ENOTSOCK):
        if _is_something_else(path):
            return ValueError("%s: not a socket: give the path that the sidecar has as --socket" % path)
        why = "no sidecar listens on this socket: it has ended, or is just starting"
    elif number == errno.EAGAIN:
        why = "too many connections wait for the sidecar"
    else:
        why = "cannot connect: %s" % error.strerror
    refused = CannotConnect("%s: %s" % (path, why))
    refused.errno = number
    return refused


def _is_something_else(path: str) -> bool:
    try:
        return not stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False  # gone since
