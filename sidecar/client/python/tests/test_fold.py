"""The content that is folded from a table's log, against tables that are written, cleaned and followed at random."""

import random
import unittest

from fake import DELETE, PUT, keyed
from tailwind import CaughtUp, Deleted, Entry, Put, Record, Turn
from tailwind._fold import Fold

KEYS = [b"in/%d" % n for n in range(5)] + [b"out/%d" % n for n in range(3)]
PREFIX = b"in/"


class Log:
    """The log of a table, of which the oldest records are moved and trimmed, and the table that it makes."""

    def __init__(self, dice):
        self.dice, self.records, self.next = dice, [], 1
        self.table, self.place = {}, {}  # the place is the LSN of a key's last record

    def append(self, payload):
        self.records.append(Record(self.next, payload))
        self.next += 1

    def request(self):
        keys = self.dice.sample(KEYS, self.dice.randint(1, 4))
        for place, key in enumerate(keys, 1):
            more = place < len(keys)
            if self.dice.random() < 0.4:
                self.table.pop(key, None)
                self.append(keyed(DELETE, key, more=more))
            else:
                value = b"%d" % self.dice.randrange(3)
                self.table[key], self.place[key] = Entry(value, self.next), self.next
                self.append(keyed(PUT, key, value, more=more))

    def clean(self):
        """Moves and trims whole requests."""
        count = self.dice.randint(0, len(self.records))
        while 0 < count < len(self.records) and self.records[count - 1].payload[5]:
            count += 1
        trimmed, self.records = self.records[:count], self.records[count:]
        lsns = {record.lsn for record in trimmed}
        for key, (value, revision) in self.table.items():
            if self.place[key] in lsns:
                self.place[key] = self.next
                self.append(keyed(PUT, key, value, revision))

    def first(self):
        return self.records[0].lsn if self.records else self.next


class Folds(unittest.TestCase):
    def test_the_content_and_its_changes_are_the_tables(self):
        for seed in range(300):
            with self.subTest(seed=seed):
                self.follow(random.Random(seed))

    def follow(self, dice):
        log, fold, told = Log(dice), Fold(PREFIX), {}
        for _ in range(80):
            choice = dice.random()
            if choice < 0.4:
                log.request()
            elif choice < 0.5:
                log.clean()
            elif choice < 0.9:
                self.read(dice, log, fold, dice.randint(1, 6))
            else:
                self.read(dice, log, fold, len(log.records) + 1)
                fold.take(dice.choice([CaughtUp(log.next), Turn(1, log.next)]))
                table = {key: entry for key, entry in log.table.items() if key.startswith(PREFIX)}
                self.assertEqual((fold.content, fold.seen, fold.next), (table, log.next - 1, log.next))
            self.take(fold, told)

    def read(self, dice, log, fold, count):
        """The next records, as a sidecar sends them; some of them twice, as after an interrupted call."""
        if fold.next and fold.next < log.first():
            fold.begin_again()
        for record in [record for record in log.records if record.lsn >= fold.next][:count]:
            for _ in range(2 if dice.random() < 0.1 else 1):
                fold.take(record)
                self.assertEqual(fold.next, record.lsn + 1)

    def take(self, fold, told):
        """What is told makes the same content."""
        while fold.changes:
            change = fold.changes.popleft()
            if isinstance(change, Put):
                self.assertNotEqual(told.get(change.key), Entry(change.value, change.revision))
                told[change.key] = Entry(change.value, change.revision)
            elif isinstance(change, Deleted):
                del told[change.key]
        self.assertEqual(told, fold.content)


if __name__ == "__main__":
    unittest.main()
