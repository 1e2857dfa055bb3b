"""Gets of a Python table against a real group whose backups keep mirrors; argv: blocking or asyncio, the sockets of the primary, a
standby and a reader."""

import os
import sys

from tailwind import Entry, Got

# The asyncio tables, called as the blocking ones are.
sys.path.append(os.path.join(os.path.dirname(__file__), "../../../sidecar/client/python/tests"))
from driven import TABLES

kind, primary, standby, reader = sys.argv[1:]
Table = TABLES[{"blocking": 0, "asyncio": 1}[kind]]

with Table(primary) as writer:
    others = [Table(path) for path in (standby, reader)]
    for number in range(100):
        value = b"%d" % number
        revision = writer.put(b"key", value)
        assert writer.get(b"key") == Entry(value, revision)
        for table in others:
            got = table.get_with(b"key", least=revision, older=True)
            assert got.entry == Entry(value, revision) and got.as_of >= revision and got.older is None, got
            assert table.get(b"key") == Entry(value, revision)
            assert table.get(b"key", fresh=True, no_value=True) == Entry(b"", revision)
    deleted = writer.delete(b"key")
    for table in others:
        got = table.get_with(b"key", least=deleted)
        assert isinstance(got, Got) and got.entry is None and got.as_of >= deleted, got
        table.close()
print("ok")
