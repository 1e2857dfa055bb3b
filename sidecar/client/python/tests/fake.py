"""The other end of the socket: a sidecar that a test scripts frame by frame, with an encoder of its own."""

import os
import socket
import struct
import tempfile
import threading

DEADLINE = 30
HEADER = struct.Struct("<IBBHQ")
HELLO, APPEND, BATCH, READ, BARRIER, TRIM, STATUS, STOP = range(1, 9)
FOLLOW, POSITION, APPLY, GET, SYNC = 10, 11, 12, 13, 16
WELCOME, ACK, ERROR, RECORDS, END, PASSED, TRIMMED, REPORT, ROLE = range(129, 138)
TURN, LAG, LOG_POSITION, HISTORY, SYNCED, MISMATCH, VALUE = range(139, 146)
(BAD_FRAME, UNSUPPORTED_VERSION, NOT_PRIMARY, TOO_LARGE, GONE, BEYOND_END, NOT_ALLOWED, UNKNOWN_OUTCOME, READING, BUSY,
 SHUTTING_DOWN, UNAVAILABLE, TABLE_FULL, WRONG_KIND) = range(1, 15)
PRIMARY, STANDBY, RECOVERING, READER = range(1, 5)
PUT, DELETE, COPY, REQUIRE = 1, 2, 3, 4


class Sidecar:
    """A listening socket in a folder of its own, and the script that answers its connections: `script(peer)`.

    Left without an exception, it waits for the end of the script, whose assertions count."""

    def __init__(self, script):
        self._folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._folder.name, "append.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(DEADLINE)
        self._listener.bind(self.path)
        self._listener.listen()
        self._failure = None
        self._thread = threading.Thread(target=self._run, args=(script,), daemon=True)
        self._thread.start()

    def _run(self, script):
        try:
            with self._listener:
                peer = Peer(self._listener)
                try:
                    script(peer)
                finally:
                    peer.close()
        except BaseException as failure:
            self._failure = failure

    def __enter__(self):
        return self

    def wait(self):
        """Until the script has ended, and its last connection with it."""
        self._thread.join(DEADLINE)

    def __exit__(self, kind, *_):
        if kind is None or self._failure:
            self.wait()
            if self._failure:
                raise self._failure
            assert not self._thread.is_alive(), "the script waits for more"
        self._folder.cleanup()


class Peer:
    """One connection, from the sidecar's side. Every wait has a deadline."""

    def __init__(self, listener):
        self._listener, self._stream, self._socket = listener, None, None
        self.accept()

    def accept(self):
        """Takes the client's next connection."""
        self.close()
        self._socket, _ = self._listener.accept()
        self._socket.settimeout(DEADLINE)
        self._stream = self._socket.makefile("rb")
        return self

    def close(self):
        """Ends the connection."""
        if self._socket:
            self._stream.close()
            self._socket.close()

    def next(self):
        """Kind, body and number of the next request; None once the client has gone."""
        header = self._stream.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        size, kind, flags, reserved, request = HEADER.unpack(header)
        assert flags == reserved == 0, header
        return kind, self._stream.read(size), request

    def expect(self, kind, body=None):
        """Takes a request of this kind, and of this body unless None; returns its number."""
        request = self.next()
        assert request is not None, "the client has gone"
        assert request[0] == kind and body in (None, request[1]), request
        return request[2]

    def expect_end(self):
        """The client has closed the connection."""
        request = self.next()
        assert request is None, request

    def send(self, kind, request, body=b"", flags=0):
        self.send_bytes(frame(kind, request, body, flags))

    def send_bytes(self, data):
        self._socket.sendall(data)

    def welcome(self, hold=False, **fields):
        """Takes the hello and sends the welcome."""
        request = self.expect(HELLO, b"TWAPPEND" + struct.pack("<HHI", 1, 4, hold))
        self.send(WELCOME, request, welcome(**fields))
        return self

    def ack(self, request, lsn):
        self.send(ACK, request, struct.pack("<Q", lsn))

    def error(self, request, code, message="why", fatal=False, retry_after_ms=0):
        self.send(ERROR, request, struct.pack("<HBBI", code, fatal, 0, retry_after_ms) + message.encode())

    def records(self, request, first, *records):
        body = struct.pack("<QII", first, len(records), 0)
        self.send(RECORDS, request, body + b"".join(struct.pack("<I", len(r)) + r for r in records))

    def caught_up(self, request, lsn):
        self.send(END, request, struct.pack("<Q", lsn), flags=1)

    def end(self, request, lsn):
        self.send(END, request, struct.pack("<Q", lsn))

    def lag(self, request, acked, behind_ms, stale):
        self.send(LAG, request, struct.pack("<QII", acked, behind_ms, stale))

    def turn(self, request, epoch, lsn):
        self.send(TURN, request, struct.pack("<QQ", epoch, lsn))

    def history(self, request, history):
        self.send(HISTORY, request, struct.pack("<Q", history))

    def mismatch(self, request, operation, revision):
        self.send(MISMATCH, request, struct.pack("<H6xQ", operation, revision))

    def value(self, request, revision, as_of, value=b"", older=False, stale=False):
        self.send(VALUE, request, struct.pack("<BB6xQQ", 2 if older else revision != 0, stale, revision, as_of) + value)

    def role(self, role, primary, epoch=4, last=9):
        self.send(ROLE, 0, struct.pack("<B7xQQ", role, epoch, last) + primary.encode())


def frame(kind, request, body=b"", flags=0):
    return HEADER.pack(len(body), kind, flags, 0, request) + body


def welcome(version=4, role=PRIMARY, record_size_max=1 << 20, batch_size_max=4 << 20, batch_records_max=65_536,
            inflight_max=1000, epoch=3, first=1, last=9, primary="db-0", table=False):
    limits = record_size_max, batch_size_max, batch_records_max, inflight_max, 32, 8
    return struct.pack("<HBBIIIIHHQQQ", version, role, 2 * table, *limits, epoch, first, last) + primary.encode()


def read(first, limit=0, flags=0, history=None):
    """Body of a `Read`."""
    return struct.pack("<QQII", first, limit, flags, 0) + (b"" if history is None else struct.pack("<Q", history))


def follow(first, history=0):
    """Body of a `Follow`."""
    return struct.pack("<QQ", first, history)


def get(key, least=0, flags=0):
    """Body of a `Get`."""
    return struct.pack("<HHIQ", flags, len(key), 0, least) + key


def apply(*operations):
    """Body of an `Apply`. Each operation: kind, key, value, and the revision of a condition (0: absent), None without one."""
    body = struct.pack("<H6x", len(operations))
    for kind, key, value, revision in operations:
        only_if = kind != REQUIRE and revision is not None
        body += struct.pack("<BBHIQ", kind, only_if, len(key), len(value), revision or 0) + key + value
    return body


def keyed(kind, key, value=b"", revision=0, more=False):
    """Payload of a keyed record."""
    return b"TWK1" + struct.pack("<BBHQ", kind, more, len(key), revision) + key + value
