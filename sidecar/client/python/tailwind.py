"""Client of Tailwind's append socket (docs/append-socket.md), in one file without dependencies. Python 3.8 or later.

    with Client("/run/tailwind/append.sock") as client:
        lsn = client.append(b"one")                 # back once every current backup has it
        for n in range(100_000):
            client.submit(b"record %d" % n)         # pipelined
        client.flush()
        for lsn, record in client.read(lsn):        # acknowledged records only
            print(lsn, record)

A standby follows, and takes over without reading the log again:

    with Client("/run/tailwind/append.sock") as client:
        for event in client.follow(1):
            if isinstance(event, Turn):             # this sidecar is primary, and every record has been seen
                break
            if not isinstance(event, (CaughtUp, Lag)):
                print(*event)
        client.append(b"mine")
"""

import collections
import select
import socket
import struct

__all__ = ["Client", "Error", "NotPrimary", "UnknownOutcome", "TooLarge", "Retry", "Disconnected", "CaughtUp", "Lag", "Turn",
           "Position"]

VERSION_MIN, VERSION = 1, 2
PRIMARY, STANDBY, RECOVERING, READER = 1, 2, 3, 4
CODES = ("BadFrame UnsupportedVersion NotPrimary TooLarge Trimmed BeyondEnd NotAllowed UnknownOutcome Reading Busy "
         "ShuttingDown Unavailable").split()
HEADER = struct.Struct("<IBBHQ")  # length of the body, kind, flags, reserved, request
FRAME_BODY_MAX = 32 << 20
SEND_AT = 64 << 10  # bytes that submit gathers before it writes
OUTSTANDING_MAX = 1 << 20  # answers that may wait to be taken
HELLO, APPEND, BATCH, READ, BARRIER, TRIM, STATUS, STOP = range(1, 9)
WELCOME, ACK, ERROR, RECORDS, END, PASSED, TRIMMED, REPORT, ROLE = range(129, 138)
FOLLOW, POSITION, TURN, LAG, LOG_POSITION = 10, 11, 139, 140, 141
SYNC, SYNCED = 16, 143
TAIL, ANYWHERE = 1, 2  # flags of READ
BEHIND_UNKNOWN = (1 << 32) - 1

Welcome = collections.namedtuple(
    "Welcome", "version role record_size_max batch_size_max batch_records_max inflight_max record_cost batch_cost "
               "epoch first last primary")
Role = collections.namedtuple("Role", "role epoch last primary")
CaughtUp = collections.namedtuple("CaughtUp", "next")
Lag = collections.namedtuple("Lag", "acked behind stale")
Turn = collections.namedtuple("Turn", "epoch next")
Position = collections.namedtuple("Position", "epoch last")
PassedBarrier = collections.namedtuple("PassedBarrier", "epoch last")


class Error(Exception):
    """The sidecar refused. `code` is a name of CODES; `retry_after` is in seconds, 0 for no advice."""

    def __init__(self, code, message, retry_after=0.0):
        super().__init__("%s: %s" % (code, message))
        self.code, self.message, self.retry_after = code, message, retry_after


class NotPrimary(Error):
    """Nothing was appended or read: go to the primary (`client.role.primary`), or connect with hold."""


class UnknownOutcome(Error):
    """The append may or may not be in the log: read from the last acknowledged LSN + 1 to find out."""


class TooLarge(Error):
    """Nothing was appended: split the record or batch."""


class Retry(Error):
    """Not now: the same call may succeed later."""


class Disconnected(Error):
    """The connection is over. Appends in flight have an unknown outcome."""


CLASSES = {"NotPrimary": NotPrimary, "UnknownOutcome": UnknownOutcome, "TooLarge": TooLarge, "Busy": Retry,
           "Unavailable": Retry, "ShuttingDown": Disconnected}


class _Reading:
    """The events of a read, tail or follow as they come. A timeout leaves it as it was: call next() again."""

    def __init__(self, client, first, kind, body):
        self._client, self._first, self._kind, self._body = client, first, kind, body
        self._request, self._events = None, collections.deque()  # None: not asked yet; 0: it has ended

    def __iter__(self):
        return self

    def __next__(self):
        client, events = self._client, self._events
        if self._request == 0:
            raise StopIteration
        if self._request is None:
            client._settle()
            client._events, client._next = events, self._first
            self._request = client._reading = client._put(self._kind, self._body)
        client._until(lambda: events or client._reading != self._request)
        if not events:
            raise RuntimeError("this read was left half-way and then stopped by another call")
        event = events.popleft()
        if event is None or isinstance(event, Error):
            self._request = 0
        if event is None:
            raise StopIteration
        return client._taken(event)

    def close(self):
        """Stops it. The same happens when nobody refers to it any more."""
        if self._request and self._client._reading == self._request:
            self._client._stop()
        self._request = 0

    __del__ = close


class Client:
    """One connection to a sidecar; not for several threads at once.

    `hold`: return only once the sidecar is primary. `timeout`: longest wait in seconds without a word from the sidecar,
    then socket.timeout; nothing is lost by it, appends in flight stay in flight. `welcome` is what the sidecar said
    first, `role` who it is now.
    """

    def __init__(self, path, hold=False, timeout=None):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._timeout, self._outbox, self._inbox = timeout, bytearray(), bytearray()
        self._request, self._in_flight, self._answers = 0, collections.OrderedDict(), collections.OrderedDict()
        self._asked, self._reply, self._reading, self._stopping, self._next = 0, None, 0, False, 1
        self._events, self._end, self.welcome, self.role = collections.deque(), None, None, None
        try:
            self._socket.connect(path)
            self._socket.setblocking(False)
            self.welcome = self._ask(HELLO, struct.pack("<8sHHI", b"TWAPPEND", VERSION_MIN, VERSION, int(hold)))
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes the connection. Appends that were sent may still be replicated."""
        self._socket.close()
        self._end = self._end or Disconnected("Closed", "this client was closed")

    # Appending.

    def append(self, record):
        """Appends one record; returns its LSN once every current backup has it."""
        return self.wait(self.submit(record))

    def append_batch(self, records):
        """Appends several records, of which all or none survive; returns the last one's LSN."""
        return self.wait(self.submit_batch(records))

    def submit(self, record):
        """Takes one record without waiting for its ack; returns a ticket. Small records gather until 64 KiB have come
        together or a call waits. Waits while `inflight_max` are in flight."""
        if len(record) > self.welcome.record_size_max:
            raise TooLarge("TooLarge", "record of %d bytes: the limit is %d" % (len(record), self.welcome.record_size_max))
        return self._submit(APPEND, record)

    def submit_batch(self, records):
        """Takes a batch without waiting for its ack; returns a ticket."""
        records = list(records)
        if not records:
            raise ValueError("a batch without a record")
        limits, size = self.welcome, self.batch_size(map(len, records))
        if (size > limits.batch_size_max or len(records) > limits.batch_records_max
                or max(map(len, records)) > limits.record_size_max):
            raise TooLarge("TooLarge", "batch of %d records takes %d bytes of log: the limits are %d, %d, and %d bytes "
                           "for a record; split it" % (len(records), size, limits.batch_records_max,
                                                       limits.batch_size_max, limits.record_size_max))
        body = struct.pack("<II", len(records), 0) + b"".join(struct.pack("<I", len(r)) + r for r in records)
        return self._submit(BATCH, body)

    def batch_size(self, lengths):
        """Bytes of log that a batch of records of these lengths takes: no more than `welcome.batch_size_max` will do."""
        return self.welcome.batch_cost + sum(self.welcome.record_cost + (length + 7) // 8 * 8 for length in lengths)

    def wait(self, ticket):
        """The LSN of one submitted append, or its error. Answers to others are kept."""
        if ticket not in self._in_flight and ticket not in self._answers:
            raise ValueError("no answer for this ticket: it has been taken")
        self._until(lambda: ticket in self._answers)
        return self._taken(self._answers.pop(ticket))

    def acks(self, wait=False):
        """Yields (ticket, LSN or Error) of answers not yet taken: those received or, with `wait`, all in flight."""
        while self._answers or (wait and self._in_flight):
            self._until(lambda: self._answers)
            yield self._answers.popitem(last=False)

    def flush(self):
        """Waits until nothing is in flight and takes all answers; returns the last LSN. Raises the first error met;
        call again for the rest."""
        last = None
        for _, answer in self.acks(wait=True):
            last = self._taken(answer)
        return last

    def in_flight(self):
        """Appends submitted and not answered."""
        return len(self._in_flight)

    # Reading and the rest.

    def read(self, first, limit=0):
        """Yields (LSN, record) of acknowledged records from `first` on. Left half-way, the rest is dropped."""
        return self._read(first, limit, 0)

    def read_anywhere(self, first, limit=0):
        """As `read`, in any role of the sidecar. Off the primary, what was acknowledged last may be missing."""
        self._check_follow("a read anywhere")
        return self._read(first, limit, ANYWHERE)

    def tail(self, first):
        """As `read`, then goes on with new records; yields CaughtUp(next) whenever it has caught up. `break` or
        `close()` it to stop."""
        return self._read(first, 0, TAIL)

    def follow(self, first):
        """As `tail`, in any role of the sidecar; with 0 from the first record that can be read. Yields (LSN, record) and CaughtUp(next); unasked, Lag(acked, behind, stale):
        the last acknowledged record known here, everything acknowledged `behind` seconds ago has been yielded (None:
        unknown), and whether that is unknown or more than 0.3; and as its last event Turn(epoch, next): every record has
        been yielded, and this sidecar is primary. Append then."""
        self._check_follow("a follow")
        return self._read(first, 0, None)

    def position(self):
        """Position(epoch, last) of the primary's log, taken after the call began and asked through any sidecar: all that was
        acknowledged before is at or before `last`. Not during a follow: use another client for it."""
        self._check_follow("a position")
        return self._ask(POSITION)

    def barrier(self):
        """Returns once it is proved that this sidecar was still primary after the call began."""
        return self._ask(BARRIER)

    def sync(self):
        """Returns once everything that was appended before the call is on disk at every member, whatever the group's
        durability; the LSN of the last record of which that is true."""
        return self._ask(SYNC)

    def trim(self, below):
        """Lets go of records below an LSN, in whole segments; returns the first that can still be read."""
        return self._ask(TRIM, struct.pack("<Q", below))

    def status(self):
        """The sidecar's report, a JSON document."""
        return self._ask(STATUS)

    # Requests.

    def _put(self, kind, body=b"", request=None):
        if request is None:
            self._request = request = self._request + 1
        self._outbox += HEADER.pack(len(body), kind, 0, 0, request)
        self._outbox += body
        return request

    def _submit(self, kind, body):
        self._settle()
        self._until(lambda: len(self._in_flight) < self.welcome.inflight_max)
        self._until(lambda: len(self._outbox) < SEND_AT)
        self._check_end()
        if len(self._answers) >= OUTSTANDING_MAX:
            raise ValueError("too many answers wait to be taken: call acks, wait or flush")
        ticket = self._put(kind, body)
        self._in_flight[ticket] = True
        return ticket

    def _ask(self, kind, body=b""):
        self._settle()
        self._asked, self._reply = self._put(kind, body), None
        self._until(lambda: self._reply is not None)
        return self._taken(self._reply)

    def _check_follow(self, what):
        if self.welcome.version < 2:
            raise Error("UnsupportedVersion", "%s needs version 2 of the append socket, and this sidecar speaks version %d: "
                        "update it" % (what, self.welcome.version))

    def _read(self, first, limit, flags):
        if flags is None:
            return _Reading(self, first, FOLLOW, struct.pack("<QQ", first, 0))
        # 0: the first record that there is, where that may be unknown.
        first = first if flags == ANYWHERE else max(first, 1)
        return _Reading(self, first, READ, struct.pack("<QQII", first, limit, flags, 0))

    def _check_end(self):
        """Says once why the connection is over, and from then on that it is."""
        if self._end:
            end, self._end = self._end, Disconnected(self._end.code, self._end.message)
            raise end

    def _stop(self):
        if self._reading and not self._stopping:
            self._stopping = True
            self._events.clear()
            self._put(STOP, request=self._reading)

    def _settle(self):
        """Stops a read that was left half-way: other requests are refused during one."""
        self._stop()
        self._until(lambda: not self._reading)

    @staticmethod
    def _taken(answer):
        if isinstance(answer, Error):
            raise answer
        return answer

    # Bytes.

    def _until(self, done):
        """Exchanges bytes until `done()`. Never blocks in one direction alone: a sidecar whose acks are not read
        stops reading."""
        while not done():
            self._check_end()
            poll = select.poll()
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._outbox else 0))
            ready = poll.poll(None if self._timeout is None else self._timeout * 1000)
            if not ready:
                raise socket.timeout("no answer within %s s" % self._timeout)
            if ready[0][1] & select.POLLOUT:
                try:
                    del self._outbox[:self._socket.send(self._outbox)]
                except BlockingIOError:
                    pass
                except OSError:
                    self._outbox.clear()  # What the sidecar last said may still be readable.
            if ready[0][1] & ~select.POLLOUT:
                self._receive()

    def _receive(self):
        try:
            received = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            received, why = b"", str(error)
        else:
            why = "the sidecar closed the connection"
        if not received:
            self._end = self._end or Disconnected("Disconnected", why)
            return
        self._inbox += received
        place = 0
        while len(self._inbox) - place >= HEADER.size:
            length, kind, flags, _, request = HEADER.unpack_from(self._inbox, place)
            if length > FRAME_BODY_MAX:
                self._end = Disconnected("BadFrame", "frame of %d bytes from the sidecar" % length)
                return
            if len(self._inbox) - place - HEADER.size < length:
                break
            place += HEADER.size
            try:
                self._on_frame(kind, flags, request, bytes(self._inbox[place:place + length]))
            except (struct.error, ValueError) as error:
                self._end = Disconnected("BadFrame", "frame of kind %d from the sidecar: %s" % (kind, error))
                return
            place += length
        del self._inbox[:place]

    def _on_frame(self, kind, flags, request, body):
        if kind == ACK:
            self._answer(request, struct.unpack("<Q", body)[0])
        elif kind == ERROR:
            self._on_error(request, body)
        elif kind == RECORDS:
            if request == self._reading and not self._stopping:
                self._on_records(body)
        elif kind == END:
            if request == self._reading and flags & 1 and not self._stopping:
                self._check_next(struct.unpack("<Q", body)[0])
                self._events.append(CaughtUp(self._next))
            elif request == self._reading and not flags & 1:
                self._end_read(None)
        elif kind == LAG:
            if request == self._reading and not self._stopping:
                acked, behind, stale = struct.unpack("<QII", body)
                self._events.append(Lag(acked, None if behind == BEHIND_UNKNOWN else behind / 1000, bool(stale & 1)))
        elif kind == TURN:
            if request == self._reading:
                self._on_turn(Turn(*struct.unpack("<QQ", body)))
        elif kind == ROLE:
            self.role = Role(*struct.unpack_from("<B7xQQ", body), body[24:].decode())
        elif kind == WELCOME:
            welcome = Welcome(*struct.unpack_from("<HBxIIIIHHQQQ", body), body[48:].decode())
            if not VERSION_MIN <= welcome.version <= VERSION:
                raise ValueError("a welcome in version %d, which was not offered" % welcome.version)
            self.role = Role(welcome.role, welcome.epoch, welcome.last, welcome.primary)
            self._on_reply(request, welcome)
        elif kind == PASSED:
            self._on_reply(request, PassedBarrier(*struct.unpack("<QQ", body)))
        elif kind == LOG_POSITION:
            self._on_reply(request, Position(*struct.unpack("<QQ", body)))
        elif kind in (TRIMMED, SYNCED):
            self._on_reply(request, struct.unpack("<Q", body)[0])
        elif kind == REPORT:
            self._on_reply(request, body.decode())
        else:
            self._end = Disconnected("BadFrame", "frame of unknown kind %d from the sidecar" % kind)

    def _on_error(self, request, body):
        code, fatal, retry_after_ms = struct.unpack_from("<HBxI", body)
        name = CODES[code - 1] if 0 < code <= len(CODES) else "Code%d" % code
        error = CLASSES.get(name, Error)(name, body[8:].decode(), retry_after_ms / 1000)
        if fatal:
            self._end = self._end or error
        if request in self._in_flight:
            self._answer(request, error)
        elif request == self._reading:
            self._end_read(error)
        elif request == self._asked:
            self._on_reply(request, error)
        else:
            return
        if fatal and self._end is error:
            # Whoever waits gets the reason; for later calls the connection is over, whatever it was.
            self._end = Disconnected(name, error.message)

    def _on_records(self, body):
        first, count = struct.unpack_from("<QI", body)
        self._check_next(first)
        self._next, place = first + count, 16
        for lsn in range(first, first + count):
            length = struct.unpack_from("<I", body, place)[0]
            self._events.append((lsn, body[place + 4:place + 4 + length]))
            place += 4 + length

    def _on_turn(self, turn):
        if not self._stopping:
            self._check_next(turn.next)
            self._events.append(turn)
        if self.role.epoch < turn.epoch:  # otherwise a later role is known already
            self.role = Role(PRIMARY, turn.epoch, turn.next - 1, "")
        self._end_read(None)

    def _check_next(self, lsn):
        if self._next == 0:
            self._next = lsn
        if lsn != self._next:
            raise ValueError("LSN %d where LSN %d is next" % (lsn, self._next))

    def _end_read(self, event):
        if not self._stopping:
            self._events.append(event)
        self._reading, self._stopping = 0, False

    def _on_reply(self, request, reply):
        if request == self._asked:
            self._reply = reply

    def _answer(self, request, answer):
        if self._in_flight.pop(request, None):
            self._answers[request] = answer
