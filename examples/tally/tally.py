"""A tally of words that survives its process, its sidecar and its host: an app to copy, with the Python client.

    PYTHONPATH=sidecar/client/python python3 examples/tally/tally.py /run/tailwind/append.sock

Reads words from its input, one in a line, and prints each word's count once the word is replicated. On a standby it waits for
its turn. Its state is what the log says and nothing else, so it can be killed at any time.
"""

import collections
import sys
import time

from tailwind import Client, Disconnected, NotPrimary, Retry, UnknownOutcome


def connect(socket):
    """Waits until this sidecar is there, and primary."""
    while True:
        try:
            return Client(socket, hold=True)
        except (OSError, Disconnected, Retry):
            time.sleep(0.1)


class Tally:
    def __init__(self, socket):
        self.socket, self.log = socket, connect(socket)
        self.run = b"%d" % time.time_ns()  # begins the records of this run: what nobody else writes
        self.own = 0  # how many of them are in the log
        self.next = self.log.welcome.first  # the first record that has not been read
        self.counts = collections.Counter()
        self.catch_up()

    def add(self, word):
        """Appends a word. Where the outcome is unknown, the log tells whether it is there."""
        wanted = self.own + 1
        while self.own < wanted:
            try:
                self.log.append(b"%s %s" % (self.run, word))
            except Retry as error:
                time.sleep(error.retry_after or 0.1)
            except (NotPrimary, UnknownOutcome, Disconnected, OSError):
                self.reconnect()
            self.catch_up()

    def catch_up(self):
        """Reads on to the end, through changes of the primary. What has been read stays, whatever dies."""
        while True:
            try:
                for lsn, record in self.log.read(self.next):
                    self.next = lsn + 1
                    run, _, word = record.partition(b" ")
                    self.own += run == self.run
                    self.counts[word] += 1
                return
            except Retry as error:
                time.sleep(error.retry_after or 0.1)
            except (NotPrimary, Disconnected, OSError):
                self.reconnect()

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
