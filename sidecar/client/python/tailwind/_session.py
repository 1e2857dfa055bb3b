"""One connection to a sidecar, without I/O: requests become bytes to send, received bytes become answers.

Both clients hold one `Session` and do three things around it: send its `outbox`, `feed` it what they receive, and wait. What was
asked for is there once the number of the request is in `answers`, or once a `Reading` has an event; until then there is
nothing to do but wait, so that a call that ends early (a time-out, a cancelled task) leaves everything as it was.
"""

from __future__ import annotations

import collections
import json
import struct
from typing import Any, Deque, Dict, Iterable, Optional, Union

from . import _frames as frames
from ._arguments import to_bytes, to_number
from .errors import Disconnected, Error, ErrorCode, Mismatch, ProtocolError, Refused, TooLarge, WrongKind, refusal
from .types import CaughtUp, FollowEvent, Lag, PassedBarrier, Position, Role, Turn, Welcome

SEND_AT = 64 << 10
"""Bytes that gather before they must be sent: one system call for hundreds of small records."""
# Which response answers a request.
_REPLIES = {
    frames.HELLO: frames.WELCOME,
    frames.BARRIER: frames.PASSED,
    frames.TRIM: frames.TRIMMED,
    frames.STATUS: frames.REPORT,
    frames.POSITION: frames.LOG_POSITION,
    frames.SYNC: frames.SYNCED,
    frames.GET: frames.VALUE,
}


class Reading:
    """What has come of a read, tail or follow. It begins with `Session.start`."""

    def __init__(self, what: str, kind: int, body: bytes, first: int, history: int) -> None:
        self.what, self.kind, self.body = what, kind, body
        self.history = history  # of the records that have arrived
        self.next = first  # LSN of the next record to arrive; 0 until the first one has told
        self.request = 0  # 0: not asked for yet
        self.events: Deque[FollowEvent] = collections.deque()
        self.stopping = False  # the rest is dropped as it comes
        self.abandoned = False  # nobody refers to it any more: to be stopped with the next request
        self.ended = False
        self.error: Optional[Error] = None

    def ready(self) -> bool:
        """True if `take` has something to say."""
        return bool(self.events) or self.ended

    def take(self) -> Optional[FollowEvent]:
        """The next event; None at the end. Raises, once, why it ended early."""
        if self.events:
            return self.events.popleft()
        error, self.error = self.error, None
        if error:
            raise error
        return None

    def expect(self, lsn: int) -> None:
        """This LSN has to be the next one."""
        if self.next == 0:
            self.next = lsn
        if lsn != self.next:
            raise ValueError("LSN %d where LSN %d is next" % (lsn, self.next))


class Session:
    """The state of one connection. `peer` names it in errors; its hello waits in the outbox from the start."""

    def __init__(self, peer: str, hold: bool) -> None:
        self.peer = peer
        self.outbox = bytearray()
        self.answers: Dict[int, Any] = {}  # results and Errors that nobody has taken, by request, as they came
        self.in_flight: Dict[int, int] = {}  # appends without an answer, in order, and their kinds
        self.acked: Optional[int] = None  # the last LSN that was acknowledged here
        self.reading: Optional[Reading] = None  # the one that the sidecar has not ended yet
        self.end: Optional[Disconnected] = None
        self.welcome: Optional[Welcome] = None
        self.role, self.epoch, self.primary = Role.STANDBY, 0, None  # type: Role, int, Optional[str]
        self._inbox = bytearray()
        self._number = 0
        self._asked: Dict[int, int] = {}  # requests other than appends and reads: what has to answer them
        self._forgotten: Dict[int, None] = {}  # those of them whose answers nobody waits for
        self.hello = self.ask(frames.HELLO, frames.hello(hold))

    # Requests. Before one that is not an append: `check`, and wait until `settled`.

    def record(self, record: object, what: str = "a record") -> bytes:
        """The bytes of a record that the sidecar would take."""
        data = record if type(record) is bytes else to_bytes(record, what)
        if len(data) > self.limits.record_size_max:
            size = (self.peer, what, len(data), self.limits.record_size_max)
            raise TooLarge("%s: %s of %d bytes: the limit is %d; split it" % size)
        return data

    def batch(self, records: Iterable[object]) -> bytes:
        """The body of a batch that the sidecar would take."""
        if isinstance(records, (bytes, bytearray, memoryview, str)):
            raise TypeError("a batch is a list of records, not %s" % type(records).__name__)
        data = [self.record(record, "record %d of a batch" % place) for place, record in enumerate(records)]
        if not data:
            raise ValueError("a batch without a record")
        limits = self.limits
        if len(data) > limits.batch_records_max:
            size = (self.peer, len(data), limits.batch_records_max)
            raise TooLarge("%s: batch of %d records: the limit is %d; split it" % size)
        log_size = limits.batch_size(map(len, data))
        if log_size > limits.batch_size_max:
            size = (self.peer, log_size, limits.batch_size_max)
            raise TooLarge("%s: batch takes %d bytes of log: the limit is %d; split it" % size)
        return frames.batch(data)

    @property
    def limits(self) -> Welcome:
        """The welcome."""
        if self.welcome is None:
            raise RuntimeError("this client is not connected: use it in `async with`, or await it first")
        return self.welcome

    def lsn(self, lsn: object) -> bytes:
        """The bytes of an LSN."""
        return frames.U64.pack(to_number("LSN", lsn))

    def may_submit(self) -> bool:
        """True if there is room for one more append. Raises if there never will be."""
        self.check()
        return (
            self.settled()
            and len(self.in_flight) < self.limits.inflight_max
            and len(self.outbox) < SEND_AT
        )

    def submit(self, kind: int, body: bytes) -> int:
        """Takes an `APPEND`, `BATCH` or `APPLY`; returns its number."""
        number = self._put(kind, body)
        self.in_flight[number] = kind
        return number

    def ask(self, kind: int, body: bytes = b"") -> int:
        """Takes a request that has one answer; returns its number."""
        number = self._put(kind, body)
        self._asked[number] = _REPLIES[kind]
        return number

    def forget(self, number: int) -> None:
        """Nobody waits for the answer to this request any more."""
        if number in self._asked:
            self._forgotten[number] = None
        else:
            self.answers.pop(number, None)

    def read(self, what: str, first: int, limit: int, flags: int, history: int) -> Reading:
        """A read or tail that can be started."""
        first, limit = to_number("LSN", first), to_number("limit", limit)
        if flags & frames.ANYWHERE:
            self.check_version("a read anywhere")
        else:
            first = max(first, 1)
        body = frames.read(first, limit, flags, self._to_name(history))
        return Reading(what, frames.READ, body, first, history)

    def follow(self, first: int, history: int) -> Reading:
        """A follow that can be started."""
        self.check_version("a follow")
        first = to_number("LSN", first)
        return Reading("follow", frames.FOLLOW, frames.follow(first, self._to_name(history)), first, history)

    def _to_name(self, history: int) -> int:
        """The history to name in a request: none to a sidecar that does not know them."""
        history = to_number("history", history)
        return history if self.limits.version >= frames.VERSION_HISTORY else 0

    def start(self, reading: Reading) -> None:
        """Asks for it."""
        reading.request = self._put(reading.kind, reading.body)
        self.reading = reading

    def stop(self, reading: Reading) -> None:
        """Ends it. What still comes of it is dropped; `settled` says when that is over."""
        reading.events.clear()
        reading.ended, reading.error = True, None
        if self.reading is reading and not reading.stopping:
            reading.stopping = True
            self._put(frames.STOP, b"", reading.request)

    def settled(self) -> bool:
        """True if no read runs: other requests are refused during one. Raises if it is one that the app still uses."""
        if self.reading is None:
            return True
        if self.reading.abandoned:
            self.stop(self.reading)
        if not self.reading.stopping:
            raise RuntimeError(
                "%s: a %s is running on this client, which can do nothing else until it ends: close() it, or use "
                "another client" % (self.peer, self.reading.what)
            )
        return False

    def check(self) -> None:
        """Raises if the connection is over."""
        if self.end:
            raise self.ended()

    def ended(self) -> Disconnected:
        """Why it is over, as a new exception for each caller."""
        assert self.end is not None
        return type(self.end)(str(self.end), self.end.code)

    def check_version(self, what: str, version: int = frames.VERSION_FOLLOW) -> None:
        """Refuses what a sidecar does not know that speaks an earlier version."""
        if self.limits.version < version:
            raise Refused(
                "%s: %s needs version %d of the append socket, and this sidecar speaks version %d: update it"
                % (self.peer, what, version, self.limits.version),
                ErrorCode.UNSUPPORTED_VERSION,
            )

    def check_table(self) -> None:
        """Refuses what only a table does at a group that keeps none."""
        self.check_version("a table", frames.VERSION_TABLE)
        if not self.limits.table:
            raise WrongKind("%s: this group keeps a log and no table: use a Client" % self.peer, ErrorCode.WRONG_KIND)

    def _put(self, kind: int, body: bytes, number: int = 0) -> int:
        if not number:
            self._number = number = self._number + 1
        self.outbox += frames.HEADER.pack(len(body), kind, 0, 0, number)
        self.outbox += body
        return number

    # Bytes.

    def feed(self, data: Union[bytes, memoryview]) -> None:
        """Takes in what the socket had."""
        inbox, place = self._inbox, 0
        inbox += data
        end = len(inbox)
        while end - place >= frames.HEADER_SIZE and not self.end:
            size, kind, flags, _, request = frames.HEADER.unpack_from(inbox, place)
            if size > frames.BODY_SIZE_MAX:
                return self._violated("a frame of %d bytes" % size)
            start = place + frames.HEADER_SIZE
            if end - start < size:
                break
            place = start + size
            try:
                if kind == frames.ACK and size == 8:
                    self._on_ack(request, frames.U64.unpack_from(inbox, start)[0])
                else:
                    with memoryview(inbox) as view:
                        body = bytes(view[start:place])
                    self._on_frame(kind, flags, request, body)
            except (struct.error, ValueError) as error:
                return self._violated("a frame of kind %d: %s" % (kind, error))
        del inbox[:place]

    def lose(self, end: Disconnected) -> None:
        """The connection is over."""
        if self.end:
            return
        self.end = end
        self.role = Role.STANDBY  # nobody tells any more whether it is primary
        if self.reading:
            self._end_reading(self.ended())
        for request in [*self.in_flight, *self._asked]:
            if request not in self._forgotten:
                self.answers[request] = self.ended()
        self.in_flight.clear()
        self._asked.clear()
        self._forgotten.clear()

    def disconnected(self, why: str) -> None:
        """The connection is over; the error says why."""
        self.lose(Disconnected("%s: %s" % (self.peer, why)))

    def _violated(self, how: str) -> None:
        self.lose(ProtocolError("%s: the sidecar does not keep to the protocol of the append socket: %s" % (self.peer, how)))

    # What the sidecar says.

    def _on_frame(self, kind: int, flags: int, request: int, body: bytes) -> None:
        if kind in (frames.RECORDS, frames.END, frames.LAG, frames.TURN, frames.HISTORY):
            self._on_reading(self._running(request), kind, flags, body)
        elif kind == frames.ERROR:
            self._on_error(request, frames.ParsedError(body))
        elif kind == frames.ROLE:
            role = frames.ParsedRole(body)
            self.role, self.epoch, self.primary = role.role, role.epoch, role.primary
        elif kind == frames.WELCOME:
            self.welcome = welcome = frames.parse_welcome(body)
            self.role, self.epoch, self.primary = welcome.role, welcome.epoch, welcome.primary
            self._on_reply(kind, request, welcome)
        elif kind == frames.PASSED:
            self._on_reply(kind, request, PassedBarrier(*frames.TWO_U64.unpack(body)))
        elif kind == frames.LOG_POSITION:
            self._on_reply(kind, request, Position(*frames.TWO_U64.unpack(body)))
        elif kind in (frames.TRIMMED, frames.SYNCED):
            self._on_reply(kind, request, frames.U64.unpack(body)[0])
        elif kind == frames.VALUE:
            self._on_reply(kind, request, frames.parse_value(body))
        elif kind == frames.MISMATCH:
            self._on_mismatch(request, *frames.parse_mismatch(body))
        elif kind == frames.REPORT:
            report = json.loads(body)
            if not isinstance(report, dict):
                raise ValueError("a report that is no JSON object")
            self._on_reply(kind, request, report)
        else:
            raise ValueError("unknown")

    def _on_ack(self, request: int, lsn: int) -> None:
        if request not in self.in_flight:
            raise ValueError("nothing was appended with number %d" % request)
        del self.in_flight[request]
        self.answers[request] = self.acked = lsn

    def _on_mismatch(self, request: int, operation: int, revision: Optional[int]) -> None:
        if self.in_flight.get(request) != frames.APPLY:
            raise ValueError("no request to a table has number %d" % request)
        del self.in_flight[request]
        now = "is absent" if revision is None else "has revision %d" % revision
        message = "%s: operation %d did not find its key as expected: it %s (nothing was done)" % (self.peer, operation, now)
        self.answers[request] = Mismatch(message, operation, revision)

    def _on_reply(self, kind: int, request: int, reply: object) -> None:
        if self._asked.get(request) != kind:
            raise ValueError("it does not answer request %d" % request)
        self._answer(request, reply)

    def _answer(self, request: int, answer: object) -> None:
        del self._asked[request]
        if request in self._forgotten:
            del self._forgotten[request]
        else:
            self.answers[request] = answer

    def _on_error(self, request: int, said: frames.ParsedError) -> None:
        error = refusal(self.peer, said.code, said.message, said.retry_after, self.primary)
        if request == 0 and self.hello in self._asked:
            request = self.hello  # it did not get so far as to read the hello
        if request in self.in_flight:
            del self.in_flight[request]
            self.answers[request] = error
        elif self.reading and request == self.reading.request:
            self._end_reading(error)
        elif request in self._asked:
            self._answer(request, error)
        if said.fatal:
            # The request that failed gets the reason by its class; for all others the connection is over.
            self.lose(Disconnected(str(error), said.code))

    def _running(self, request: int) -> Reading:
        if self.reading is None or self.reading.request != request:
            raise ValueError("no read with number %d is running" % request)
        return self.reading

    def _on_reading(self, reading: Reading, kind: int, flags: int, body: bytes) -> None:
        if kind == frames.RECORDS:
            if not reading.stopping:
                self._on_records(reading, body)
        elif kind == frames.HISTORY:
            reading.history = frames.U64.unpack(body)[0]
        elif kind == frames.LAG:
            acked, behind, is_stale = frames.LAG_BODY.unpack(body)
            if not reading.stopping:
                known = None if behind == frames.BEHIND_UNKNOWN else behind / 1000
                reading.events.append(Lag(acked, known, bool(is_stale & 1)))
        elif kind == frames.TURN:
            turn = Turn(*frames.TWO_U64.unpack(body))
            if not reading.stopping:
                reading.expect(turn.next)
                reading.events.append(turn)
            if self.epoch < turn.epoch:  # otherwise a later role is known already
                self.role, self.epoch, self.primary = Role.PRIMARY, turn.epoch, None
            self._end_reading(None)
        elif not flags & frames.CONTINUES:
            self._end_reading(None)
        elif not reading.stopping:
            reading.expect(frames.U64.unpack(body)[0])
            reading.events.append(CaughtUp(reading.next))

    @staticmethod
    def _on_records(reading: Reading, body: bytes) -> None:
        records = frames.parse_records(body)
        if records:
            reading.expect(records[0].lsn)
            reading.next = records[-1].lsn + 1
            reading.events.extend(records)

    def _end_reading(self, error: Optional[Error]) -> None:
        reading, self.reading = self.reading, None
        assert reading is not None
        if not reading.stopping:
            reading.ended, reading.error = True, error
