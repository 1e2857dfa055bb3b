#!/usr/bin/env python3
"""Runs the test programs that cargo has built, several beside each other, and prints what each printed. Called by ./check.

    cargo test --no-run --message-format=json ... >PROGRAMS
    scripts/run_tests.py PROGRAMS [--only NAME]... [--without NAME]... [--filter TEST]... [--skip-of NAME TEST]...
        [--first NAME TEST]... [--doc-tests COMMAND...]

NAME is that of a test program. What follows --skip-of is part of the names of tests of this one that do not run; the test that
follows --first runs all the same, and begins before all others.

cargo itself runs one program after the other, and most of what whole groups of processes do is waiting. A program counts as
failed if it ends otherwise than with 0 and names no failed test. Ends with 1 if anything failed.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

# Programs beside each other, and tests beside each other in each: the tests of whole groups wait most of their time, so more run
# than there are processors.
PROGRAMS = 4
THREADS = 2
# What takes longest begins first; by the names of cargo's targets.
LONGEST = ["processes", "life", "model", "budget", "sidecar", "client"]
THREADS_OF = {"processes": 6}
# So many programs are named with the processor time that they took: where to look when the tests become slow.
LONGEST_SHOWN = 12
# Their threads poll for each other: beside programs that compute, each of a hundred thousand hand-overs waits for its turn, and
# 17 s become five minutes.
ALONE = ["fabric"]


def programs(path):
    """Each test program of cargo's messages: its name, the file, and the folder of its package, where cargo runs it."""
    for line in Path(path).read_text().splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        yield message["target"]["name"], message["executable"], str(Path(message["manifest_path"]).parent)


def check_names(found, named):
    """Stops where a name is that of no test: after a test has been renamed it would run nowhere, or twice."""
    for name, test in named:
        for _, executable, _ in filter(lambda program: program[0] == name, found):
            listed = subprocess.run([executable, "--list", test], capture_output=True, text=True, check=True).stdout
            if ": test" not in listed:
                sys.exit(f"{name} has no test whose name contains {test}")


class Tests:
    def __init__(self, filters, skipped, first):
        self.filters = filters
        self.skipped = skipped
        self.first = first
        self.lock = threading.Lock()
        self.failed = []
        self.done = 0
        self.processor = {}
        shown_on = os.environ.get("PROGRESS")
        self.progress = os.fdopen(int(shown_on), "w") if shown_on and os.isatty(int(shown_on)) else None
        self.show("\x1b7")

    def run(self, name, command, folder, variables):
        environment = dict(os.environ, **variables)
        with tempfile.TemporaryFile() as log:
            begun = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
            # With what the program itself has waited for.
            _, status, usage = os.wait4(begun.pid, 0)
            code = begun.returncode = os.waitstatus_to_exitcode(status)
            log.seek(0)
            output = log.read().decode(errors="replace")
        with self.lock:
            print(f"     Running {name} ({' '.join(command)})\n{output}", flush=True)
            self.processor[name] = self.processor.get(name, 0) + usage.ru_utime + usage.ru_stime
            self.done += sum(line.startswith("test ") and line.endswith(" ok") for line in output.splitlines())
            if code != 0:
                self.failed.append(name)
                if "test result: FAILED" not in output:
                    print(f"{name} died: it ended with {code}", flush=True)
            self.show(f"\x1b8\x1b[K{self.done} passed, {len(self.failed)} programs failed")

    def show(self, text):
        """How far it is, at the end of the line on which the terminal's cursor was."""
        if self.progress:
            self.progress.write(text)
            self.progress.flush()

    def run_all(self, found, doc_tests):
        def rank(program):
            return LONGEST.index(program[0]) if program[0] in LONGEST else len(LONGEST)

        def arguments(program, threads, *chosen):
            name, executable, folder = program
            return name, [executable, f"--test-threads={threads}", *chosen], folder, {"CARGO_MANIFEST_DIR": folder}

        def first_ones(program):
            return arguments(program, THREADS, "--exact", *(test for of, test in self.first if of == program[0]))

        def others(program):
            skipped = [f"--skip={test}" for of, test in self.skipped if of == program[0]]
            return arguments(program, THREADS_OF.get(program[0], THREADS), *self.filters, *skipped)

        for program in found:
            if program[0] in ALONE:
                self.run(*others(program))
        with concurrent.futures.ThreadPoolExecutor(PROGRAMS) as pool:
            beside = [program for program in sorted(found, key=rank) if program[0] not in ALONE]
            begin_first = {name for name, _ in self.first}
            runs = [pool.submit(self.run, *first_ones(program)) for program in beside if program[0] in begin_first]
            runs += [pool.submit(self.run, *others(program)) for program in beside]
            if doc_tests:
                # Cargo itself must not have it: ring's build script would run again, and all that depends on it be compiled again.
                runs.append(pool.submit(self.run, "doc tests", doc_tests, os.getcwd(), {}))
            for run in runs:
                run.result()
        self.show("\x1b8\x1b[K")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--filter", action="append", default=[])
    parser.add_argument("--skip-of", nargs=2, action="append", default=[])
    parser.add_argument("--first", nargs=2, action="append", default=[])
    parser.add_argument("--doc-tests", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()
    found = [
        program
        for program in programs(options.programs)
        if (not options.only or program[0] in options.only) and program[0] not in options.without
    ]
    if not found:
        sys.exit(f"{options.programs} names no such test program")
    check_names(found, options.skip_of)
    tests = Tests(options.filter, options.skip_of, options.first)
    tests.run_all(found, options.doc_tests)
    print("seconds of processor time:")
    for name, seconds in sorted(tests.processor.items(), key=lambda of: -of[1])[:LONGEST_SHOWN]:
        print(f"{seconds:8.0f} {name}")
    if tests.failed:
        print(f"failed: {', '.join(sorted(tests.failed))}")
        sys.exit(1)


main()
