"""A tally of words that survives its process, its sidecar and its host: an app to copy, with the Python client.

    PYTHONPATH=sidecar/client/python python3 examples/tally/tally.py /run/tailwind/default.sock

Reads words from its input, one in a line, and prints each word's count once the word is replicated. On a standby it follows the
log until it is its turn, and knows every count then. Its state is what the log says and nothing else, so it can be killed at
any time.
"""

import collections
import sys
import time

from tailwind import CannotConnect, Client, Disconnected, NotPrimary, ProtocolError, Record, Retry, Turn, UnknownOutcome


def connect(socket):
    """Waits until this sidecar is there, primary or not."""
    while True:
        try:
            return Client(socket)
        except ProtocolError:
            raise  # another program listens there
        except (CannotConnect, Disconnected, Retry):
            time.sleep(0.1)


class Tally:
    def __init__(self, socket):
        self.socket, self.log = socket, connect(socket)
        self.run = b"%d" % time.time_ns()  # begins the records of this run: what nobody else writes
        self.own = 0  # how many of them are in the log
        self.next = 1  # the first record that has not been counted
        self.history = 0  # of those that have: after an accepted loss there is another one, and the follow fails
        self.counts = collections.Counter()
        self.catch_up()

    def add(self, word):
        """Appends a word. Where the outcome is unknown, the log tells whether it is there."""
        wanted = self.own + 1
        while self.own < wanted:
            try:
                self.log.append(b"%s %s" % (self.run, word))
            except Retry as error:
                time.sleep(error.retry_after)
            except ProtocolError:
                raise
            except (NotPrimary, UnknownOutcome, Disconnected):
                self.reconnect()
            self.catch_up()

    def catch_up(self):
        """Follows the log until it is this app's turn, through any failover: at once if its sidecar is primary already. Then
        every record that is in the log has been counted."""
        while True:
            try:
                follow = self.log.follow(self.next, self.history)
                for event in follow:
                    self.history = follow.history
                    if isinstance(event, Turn):
                        return
                    if isinstance(event, Record):
                        self.count(event.lsn, event.payload)
            except Retry as error:
                time.sleep(error.retry_after)
            except ProtocolError:
                raise
            except Disconnected:
                self.reconnect()

    def count(self, lsn, record):
        self.next = lsn + 1
        run, _, word = record.partition(b" ")
        self.own += run == self.run
        self.counts[word] += 1

    def reconnect(self):
        self.log.close()
        self.log = connect(self.socket)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: tally.py SOCKET")
    tally = Tally(sys.argv[1])
    for line in sys.stdin.buffer:
        word = line.rstrip(b"\n")
        tally.add(word)
        print(word.decode(errors="replace"), tally.counts[word], flush=True)


if __name__ == "__main__":
    main()
