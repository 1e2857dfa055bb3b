"""A service on SQLite, as plain as they come. Started by sqlite.rs under tailwind-exec.

    sqlite_service.py DATABASE PORT JOURNAL_MODE SYNCHRONOUS

Each client has a connection of its own to the database and tables of its own. A request is a line of JSON, [name, arguments...],
and so is its reply, {"answer": ...} or {"error": ...}. A write is answered when its transaction is committed.
"""

import json
import os
import signal
import socketserver
import sqlite3
import sys
import threading

FILE, PORT, JOURNAL_MODE, SYNCHRONOUS = sys.argv[1:]
# A client's rows of so many tables are kept, so many rows in each; the oldest table is dropped for each new one.
TABLES = 8
ROWS = 20
# SQLite lets one write at a time, and a writer that finds it busy sleeps for long.
TURN = threading.Lock()


def connect():
    database = sqlite3.connect(FILE, timeout=60, isolation_level=None, check_same_thread=False)
    (mode,) = database.execute(f"PRAGMA journal_mode={JOURNAL_MODE}").fetchone()
    assert mode.upper() == JOURNAL_MODE, mode
    database.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
    # So that checkpoints are frequent.
    database.execute("PRAGMA wal_autocheckpoint=50")
    return database


def table_of(client, number):
    return f"{client}_{number // ROWS % TABLES}"


def text_of(client, number, size):
    return (f"{client} {number}. " * (size // 10 + 1))[:size]


def write(database, client, number, size):
    """A row more, in a transaction that also says that it is the client's last. Once, if it is asked for twice."""
    table = table_of(client, number)
    database.execute("BEGIN IMMEDIATE")
    last = last_of(database, client)
    assert last in (number - 1, number), f"row {number} of {client} cannot follow row {last}"
    database.execute("UPDATE fence SET number = number + 1")
    if last < number:
        if number == 1 or number % ROWS == 0:
            database.execute(f"DROP TABLE IF EXISTS {table}")
            database.execute(f"CREATE TABLE {table} (number INTEGER, size INTEGER, text TEXT)")
            database.execute(f"CREATE INDEX {table}_by_text ON {table} (text, number)")
        database.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", (number, size, text_of(client, number, size)))
        database.execute("INSERT OR REPLACE INTO last VALUES (?, ?)", (client, number))
    database.execute("COMMIT")
    return number


def last_of(database, client):
    last = database.execute("SELECT number FROM last WHERE client = ?", (client,)).fetchone()
    return last[0] if last else 0


def rows(database, client):
    """The last row that the client has, and the numbers of all; together with a write, so that it is what the log has."""
    database.execute("BEGIN IMMEDIATE")
    database.execute("UPDATE fence SET number = number + 1")
    numbers = []
    for (table,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB ?", (f"{client}_*",)):
        for number, size, text in database.execute(f"SELECT number, size, text FROM {table}"):
            assert text == text_of(client, number, size), f"row {number} of {table} is {text!r}"
            numbers.append(number)
    last = last_of(database, client)
    database.execute("COMMIT")
    return {"last": last, "numbers": sorted(numbers)}


def fence(database):
    """A write of no consequence."""
    database.execute("UPDATE fence SET number = number + 1")


def pragma(database, text):
    return [list(row) for row in database.execute(f"PRAGMA {text}")]


def vacuum(database):
    database.execute("VACUUM")


COMMANDS = {"write": write, "rows": rows, "fence": fence, "pragma": pragma, "vacuum": vacuum}


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        database = connect()
        try:
            for line in self.rfile:
                name, *arguments = json.loads(line)
                try:
                    with TURN:
                        reply = {"answer": COMMANDS[name](database, *arguments)}
                except (sqlite3.Error, AssertionError) as error:
                    database.rollback()
                    reply = {"error": f"{type(error).__name__}: {error}"}
                self.wfile.write(json.dumps(reply).encode() + b"\n")
        except OSError:
            # The client has gone.
            pass
        finally:
            database.close()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


# Ends with 0 in the middle of everything.
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
first = connect()
first.execute("CREATE TABLE IF NOT EXISTS last (client TEXT PRIMARY KEY, number INTEGER)")
first.execute("CREATE TABLE IF NOT EXISTS fence (number INTEGER)")
first.execute("INSERT INTO fence SELECT 0 WHERE NOT EXISTS (SELECT * FROM fence)")
first.close()
Server(("127.0.0.1", int(PORT)), Handler).serve_forever()
