# SPDX-License-Identifier: Apache-2.0
"""Which test program runs which line: one run of each program, kept while the sources stay the same."""

import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import subprocess

from .tree import Failed, digest_of, is_built, note

VERSION = 4  # of the files that are kept

# A test that takes longer is a part of its own, so that the others of its program need not wait for it.
SLOW = 1.0


class Part:
    """What is run at a time: a test that is no GoogleTest program, or of a program the quick tests or the slow ones."""

    def __init__(self, program, seconds, tests, is_slow):
        self.program, self.seconds, self.tests, self.is_slow = program, seconds, tests, is_slow
        self.name = program + ("+slow" if is_slow else "")


def parts_of(program, seconds, excluded, slow):
    """A program's parts: it takes so many seconds, `slow` {test: seconds} of them; `excluded` tests fail unchanged."""
    quick = max(seconds - sum(slow.values()), 0.1)
    left_out = [*excluded, *slow]
    parts = [Part(program, quick, "-" + ":".join(left_out) if left_out else "", False)]
    if slow:
        parts.append(Part(program, sum(slow.values()), ":".join(slow), True))
    return parts


class Coverage:
    """seconds: of each program's run. parts: of each program. lines: {file: {line:
    programs}}, an empty set where the line has code that none runs.
    functions: {file: [(first line, last line)]}."""

    def __init__(self):
        self.seconds, self.parts, self.lines = {}, {}, {}
        self.functions = collections.defaultdict(set)

    def add(self, program, files):
        for name, file in files.items():
            self.functions[name].update((begin, end) for begin, end in file["functions"])
            lines = self.lines.setdefault(name, {})
            for line, count in file["lines"]:
                programs = lines.setdefault(line, set())
                if count and program:
                    programs.add(program)

    def covering(self, name, line):
        """The programs that run the line, fastest first. A line without code of its own (the rest of a
        statement) goes with the code before it in its function; outside functions (a table, a
        member's first value) any program counts that runs something of the file."""
        lines = self.lines.get(name, {})
        found = lines.get(line)
        if found is None:
            around = [f for f in self.functions.get(name, ()) if f[0] <= line <= f[1]]
            if around:
                first = max(begin for begin, _ in around)
                before = [n for n in lines if first <= n < line]
                found = lines[max(before)] if before else set()
            else:
                found = set().union(*lines.values()) if lines else set()
        return sorted(found, key=lambda program: (self.seconds[program], program))


def linked(counters):
    """The counters of one run, each with the compiler's notes beside it, where gcov looks for them."""
    data = sorted(counters.rglob("*.gcda"))
    for file in data:
        notes = pathlib.Path("/") / file.relative_to(counters).with_suffix(".gcno")
        if notes.is_file() and not file.with_suffix(".gcno").exists():
            file.with_suffix(".gcno").symlink_to(notes)
    return data


def read_gcov(tree, folders, objects):
    """What gcov says of these .gcda or .gcno files: {file: lines, functions}, of `folders`."""
    files = {}
    for begin in range(0, len(objects), 40):
        done = subprocess.run(["gcov", "--json-format", "--stdout", *map(str, objects[begin:begin + 40])],
                              cwd=tree.build, capture_output=True, text=True)
        for document in done.stdout.splitlines():
            if document.startswith("{"):
                _merge(tree, folders, json.loads(document), files)
    return {name: {"lines": sorted(f["lines"].items()), "functions": sorted(f["functions"])} for name, f in files.items()}


def _merge(tree, folders, document, files):
    for file in document["files"]:
        path = pathlib.Path(os.path.normpath(tree.build / file["file"]))
        name = path.relative_to(tree.source).as_posix() if path.is_relative_to(tree.source) else ""
        if not name.startswith(folders):
            continue
        found = files.setdefault(name, {"lines": {}, "functions": set()})
        found["functions"].update((f["start_line"], f["end_line"]) for f in file["functions"])
        for line in file["lines"]:
            number = line["line_number"]
            found["lines"][number] = found["lines"].get(number, 0) + line["count"]


def slow_tests(report):
    """{test: seconds}, of a report of GoogleTest's."""
    if not report.is_file():
        return {}
    tests = [(f"{suite['name']}.{test['name']}", float(test["time"].rstrip("s")))
             for suite in json.loads(report.read_text())["testsuites"] for test in suite["testsuite"]]
    return {name: seconds for name, seconds in tests if seconds > SLOW}


def _run(tree, program, folders, most):
    """One test's run, from its last one where what it runs is the same. `most`: seconds that a test may take that
    is no GoogleTest program. One that takes longer, or fails unchanged, says nothing of a change: no seconds."""
    kept = tree.folder / "coverage" / f"{program}.json"
    key = hashlib.sha256()
    for file in tree.binaries(program):
        if file.is_file():
            key.update(file.read_bytes())
    other = program in tree.others
    key = f"{VERSION} {most if other else ''} {key.hexdigest()}"
    if kept.is_file():
        before = json.loads(kept.read_text())
        if before["key"] == key:
            return before
    place = tree.folder / "runs" / program
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    counters, report = place / "counters", place / "report.json"
    excluded = []
    run = tree.run(program, most if other else 1800, counters, fail_fast=False, report=report, place=place)
    if not run.ok and other:
        note(f"mutants: {program}: left out, since it {'takes too long' if run.hung else 'fails without any change'}")
        run.seconds = None
    elif not run.ok:
        # A test that fails unchanged says nothing of a change. Without it the others must pass.
        if run.hung or not run.failed:
            raise Failed(f"{program} fails without any change: see {place / 'run.log'}")
        excluded = run.failed
        note(f"mutants: {program}: left out, since they fail without any change: {', '.join(excluded)}")
        shutil.rmtree(counters, ignore_errors=True)
        run = tree.run(program, 1800, counters, "-" + ":".join(excluded), fail_fast=False, report=report, place=place)
        if not run.ok:
            raise Failed(f"{program} fails without any change: see {place / 'run.log'}")
    files = read_gcov(tree, folders, linked(counters))
    result = {"key": key, "seconds": run.seconds, "excluded": excluded, "slow": slow_tests(report), "files": files}
    shutil.rmtree(place, ignore_errors=True)
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(result))
    return result


def measure(tree, folders, only, most):
    """The coverage of the tree's sources, built and run where it is not known yet. `most`: see _run()."""
    names = tree.synchronise()
    folders = tuple(folder + "/" for folder in folders)
    digest = digest_of(tree.source, [name for name in names if is_built(name)]) + json.dumps([VERSION, tree.options, only.pattern, most])
    stamp = tree.folder / "coverage" / "complete"
    known = stamp.is_file() and stamp.read_text() == digest
    if not known or not (tree.build / "build.ninja").is_file():
        tree.configure()
    tree.find_others()
    programs = [program for program in [*tree.programs(), *tree.others] if only.search(program)]
    if not programs:
        raise Failed("no test program has such a name")
    if not known:
        note(f"mutants: builds what {len(programs)} tests run in {tree.build}")
        if not tree.make(sorted({target for program in programs for target in tree.targets(program)})):
            raise Failed(f"the test programs don't build: see {tree.folder / 'build.log'}")
    result = Coverage()
    numbered = {program: number for number, program in enumerate(programs, 1)}

    def covered(program):
        if known:
            return _kept(tree, program)
        note(f"mutants: coverage, {numbered[program]} of {len(programs)}: {program}")
        return _run(tree, program, folders, most)

    # A processor and a half for each: their times are to be those of a program that runs alone.
    several = concurrent.futures.ThreadPoolExecutor(max(1, tree.jobs * 2 // 3))
    try:
        runs = dict(zip(programs, several.map(covered, programs)))
    finally:
        several.shutdown(wait=False, cancel_futures=True)
        tree.end_all()
    for program, run in runs.items():
        if run["seconds"] is None:
            continue
        result.seconds[program] = run["seconds"]
        result.parts[program] = parts_of(program, run["seconds"], run["excluded"], run["slow"])
        result.add(program, run["files"])
    empty = tree.folder / "coverage" / "unrun.json"
    if not known:
        objects = [tree.build / output for name, output in sorted(tree.commands()[0].items()) if name.startswith(folders)]
        notes = [file for file in (file.with_suffix(".gcno") for file in objects) if file.is_file()]
        empty.write_text(json.dumps(read_gcov(tree, folders, notes)))
        stamp.write_text(digest)
    result.add(None, json.loads(empty.read_text()))
    return result


def _kept(tree, program):
    return json.loads((tree.folder / "coverage" / f"{program}.json").read_text())
