# SPDX-License-Identifier: Apache-2.0
"""Which test program runs which line: one run of each program, kept while the sources stay the same."""

import collections
import hashlib
import json
import os
import pathlib
import shutil
import subprocess

from .tree import Failed, digest_of, is_built, note

VERSION = 1  # of the files that are kept


class Coverage:
    """seconds: of each program's run. excluded: its tests that fail unchanged. lines: {file: {line:
    programs}}, an empty set where the line has code that none runs. branches: {file: {branch: taken}}.
    functions: {file: [(first line, last line)]}."""

    def __init__(self):
        self.seconds, self.excluded, self.lines, self.branches = {}, {}, {}, {}
        self.functions = collections.defaultdict(set)

    def add(self, program, files):
        for name, file in files.items():
            self.functions[name].update((begin, end) for begin, end in file["functions"])
            lines = self.lines.setdefault(name, {})
            for line, count in file["lines"]:
                programs = lines.setdefault(line, set())
                if count and program:
                    programs.add(program)
            branches = self.branches.setdefault(name, {})
            for *branch, count in file["branches"]:
                branches[tuple(branch)] = branches.get(tuple(branch), False) or count > 0

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

    def figures(self, folder):
        """[(file, lines run, lines, branches taken, branches)] of the sources below the folder."""
        result = []
        for name in sorted(self.lines):
            if name.startswith(folder + "/") and name.endswith(".cc") and self.lines[name]:
                lines, branches = self.lines[name], self.branches[name]
                result.append((name, sum(map(bool, lines.values())), len(lines), sum(branches.values()), len(branches)))
        return result


def linked(counters):
    """The counters of one run, each with the compiler's notes beside it, where gcov looks for them."""
    data = sorted(counters.rglob("*.gcda"))
    for file in data:
        notes = pathlib.Path("/") / file.relative_to(counters).with_suffix(".gcno")
        if notes.is_file() and not file.with_suffix(".gcno").exists():
            file.with_suffix(".gcno").symlink_to(notes)
    return data


def read_gcov(tree, folders, objects):
    """What gcov says of these .gcda or .gcno files: {file: lines, branches, functions}, of `folders`."""
    files = {}
    for begin in range(0, len(objects), 40):
        done = subprocess.run(["gcov", "--json-format", "--stdout", "--branch-probabilities", *map(str, objects[begin:begin + 40])],
                              cwd=tree.build, capture_output=True, text=True)
        for document in done.stdout.splitlines():
            if document.startswith("{"):
                _merge(tree, folders, json.loads(document), files)
    return {name: {"lines": sorted(f["lines"].items()), "functions": sorted(f["functions"]),
                   "branches": [[*branch, count] for branch, count in sorted(f["branches"].items())]} for name, f in files.items()}


def _merge(tree, folders, document, files):
    for file in document["files"]:
        path = pathlib.Path(os.path.normpath(tree.build / file["file"]))
        name = path.relative_to(tree.source).as_posix() if path.is_relative_to(tree.source) else ""
        if not name.startswith(folders):
            continue
        found = files.setdefault(name, {"lines": {}, "branches": {}, "functions": set()})
        found["functions"].update((f["start_line"], f["end_line"]) for f in file["functions"])
        for line in file["lines"]:
            number = line["line_number"]
            found["lines"][number] = found["lines"].get(number, 0) + line["count"]
            branches = [b for b in line.get("branches", ()) if not b["throw"]]
            for index, branch in enumerate(branches):
                key = (number, len(branches), index)
                found["branches"][key] = found["branches"].get(key, 0) + branch["count"]


def _run(tree, program, folders):
    """One program's run, from its last one where the program is the same."""
    kept = tree.folder / "coverage" / f"{program}.json"
    key = hashlib.sha256()
    for file in (tree.build / "tests" / program, tree.build / "bin" / "weir"):
        if file.is_file():
            key.update(file.read_bytes())
    key = f"{VERSION} {key.hexdigest()}"
    if kept.is_file():
        before = json.loads(kept.read_text())
        if before["key"] == key:
            return before
    counters = tree.folder / "counters"
    shutil.rmtree(counters, ignore_errors=True)
    excluded = []
    run = tree.run(program, 1800, counters, fail_fast=False)
    if not run.ok:
        # A test that fails unchanged says nothing of a change. Without it the others must pass.
        if run.hung or not run.failed:
            raise Failed(f"{program} fails without any change: see {tree.folder / 'run.log'}")
        excluded = run.failed
        note(f"mutants: {program}: left out, since they fail without any change: {', '.join(excluded)}")
        shutil.rmtree(counters, ignore_errors=True)
        run = tree.run(program, 1800, counters, excluded, fail_fast=False)
        if not run.ok:
            raise Failed(f"{program} fails without any change: see {tree.folder / 'run.log'}")
    files = read_gcov(tree, folders, linked(counters))
    shutil.rmtree(counters, ignore_errors=True)
    result = {"key": key, "seconds": run.seconds, "excluded": excluded, "files": files}
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(result))
    return result


def measure(tree, folders, only):
    """The coverage of the tree's sources, built and run where it is not known yet."""
    names = tree.synchronise()
    folders = tuple(folder + "/" for folder in folders)
    digest = digest_of(tree.source, [name for name in names if is_built(name)]) + json.dumps([VERSION, tree.options, only.pattern])
    stamp = tree.folder / "coverage" / "complete"
    known = stamp.is_file() and stamp.read_text() == digest
    if not known or not (tree.build / "build.ninja").is_file():
        tree.configure()
    programs = [program for program in tree.programs() if only.search(program)]
    if not programs:
        raise Failed("no test program has such a name")
    if not known:
        note(f"mutants: builds {len(programs)} test programs in {tree.build}")
        if not tree.make(programs):
            raise Failed(f"the test programs don't build: see {tree.folder / 'build.log'}")
    result = Coverage()
    for number, program in enumerate(programs, 1):
        if not known:
            note(f"mutants: coverage, {number} of {len(programs)}: {program}")
        run = _kept(tree, program) if known else _run(tree, program, folders)
        result.seconds[program], result.excluded[program] = run["seconds"], run["excluded"]
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
