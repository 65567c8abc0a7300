# SPDX-License-Identifier: Apache-2.0
"""What tools/checks/mutants --self-test runs: sources with known changes, and each other part alone."""

import argparse
import contextlib
import dataclasses
import io
import pathlib
import shutil
import subprocess
import tempfile

from . import coverage, places
from .tree import Failed, Run, Tree, commands_in


def function(text):
    return "void f() {\n" + text + "\n}\n"


# A source, and the names of all changes that it has.
CASES = [
    # Comments, strings, characters, directives.
    ("// a < b && 1\n/* x == 2 */\n", []),
    ("#include <map>\n#define TWO 2\n#if A && \\\n  B > 1\n#endif\n", []),
    ("#ifdef X  /* 1\n 2 */\n#endif\n", []),
    ('const char* s = "a < b && 1" R"x(1 )" 2)x";\nchar c = \'1\';\n', []),
    ("  # define A 1\nint b;\n", []),
    # Brackets of templates are no comparisons, and a reference is no conjunction.
    ("template <typename T> void f(std::vector<std::map<T, int>>&& x, T* y);\n", []),
    ("bool operator<(const A& a, const A& b);\nbool operator==(const A& a, const A& b) = default;\n", []),
    ("struct A {\n  virtual void f() = 0;\n};\n", []),
    ("static_assert(sizeof(int) == 4 && true);\n[[deprecated(\"1\")]] int x;\n", []),
    (function("assert(a < 1);"), []),
    # Operators.
    ("bool b = x < y;\n", ["`<` to `<=`"]),
    ("bool b = x >= y || z != w;\n", ["`>=` to `>`", "`||` to `&&`", "`!=` to `==`"]),
    ("int b = x + y * z - w % v;\n", ["`+` to `-`", "`*` to `/`", "`-` to `+`", "`%` to `*`"]),
    ("int b = -x;\nint* p = &x;\nint c = *p;\n", []),
    ("bool b = !x &&\n         y;\n", ["`!` left out", "`&&` to `||`"]),
    (function("x += y;\nx -= y;"), ["`+=` to `-=`", "`-=` to `+=`"]),
    # Constants.
    ("int a = 9, b = 0x0f, c = 1'000, d = 2u;\nauto e = 64_MiB;\nbool f = true;\n",
     ["`9` to `10`", "`0x0f` to `0x10`", "`1'000` to `1001`", "`2u` to `3u`", "`64_MiB` to `65_MiB`", "`true` to `false`"]),
    ("double a = 0.5;\n", ["`0.5` to `1.5`"]),
    # Conditions.
    (function("if (a) b = c;"), ["`if (a)` to its contrary"]),
    (function("if (Status s = g(); !s) b = c;"), ["`if (!s)` to its contrary", "`!` left out"]),
    (function("if (const A* a = g()) b = c;\nif constexpr (kA) b = c;"), []),
    (function("while (a) b = c;"), ["`while (a)` to its contrary"]),
    # Calls, and what only looks like one.
    (function("g(x);"), ["`g(x);` left out"]),
    (function("a.b()->c<D>(e);\nstd::sort(a, b);\na[i].b();"),
     ["`a.b()->c<D>(e);` left out", "`std::sort(a, b);` left out", "`a[i].b();` left out"]),
    (function("if (a)\n  g(x);\nelse\n  h(x);"),
     ["`if (a)` to its contrary", "`g(x);` left out", "`h(x);` left out"]),
    (function("Lock lock(mutex_);\nstd::vector<int> a(b);\nconst A c(d);\nint e = g(x);\ndelete g(x);\nA& h(i);"), []),
    ("class A {\n  A();\n  ~A();\n  void g(int x);\n};\nnamespace n {\nvoid h();\n}\n", []),
    ("template <class T>\nvoid f() {\n  g(x);\n}\n", ["`g(x);` left out"]),
    ("A::A(int a) : a_(a), b_{a} {\n  g(x);\n}\n", ["`g(x);` left out"]),
    (function("switch (a) {\n  case kB:\n    g(x);\n    break;\n}"), ["`g(x);` left out"]),
    (function("auto a = [&](int b) {\n  g(x);\n};"), ["`g(x);` left out"]),
    # Returns: left out if the function goes on behind it, the contrary where it gives a bool.
    ("int f() {\n  if (a) return b;\n  return c;\n}\n", ["`if (a)` to its contrary", "`return b;` left out"]),
    ("int f() {\n  if (a) {\n    return b;\n  } else {\n    return c;\n  }\n}\n", ["`if (a)` to its contrary"]),
    ("int f() {\n  for (A& a : as) {\n    return b;\n  }\n  return c;\n}\n", ["`return b;` left out"]),
    ("bool A::f() const {\n  return a_;\n}\n", ["`return a_;` to its contrary"]),
    ("[[nodiscard]] static bool f() {\n  return true;\n}\n", ["`true` to `false`"]),
    ("explicit operator bool() const { return a_; }\n", ["`return a_;` to its contrary"]),
    ("int f() {\n  return g([](int a) { return h(a); });\n}\n", []),
    ("auto f = [](int a) -> bool { return h(a); };\n", ["`return h(a);` to its contrary"]),
]


class Checks:
    def __init__(self):
        self.right = self.wrong = 0

    def equal(self, what, found, expected):
        if found == expected:
            self.right += 1
        else:
            self.wrong += 1
            print(f"self-test: {what}: expected {expected!r}, found {found!r}")

    def fails(self, what, call, error=Failed):
        try:
            call()
        except error:
            self.right += 1
        else:
            self.wrong += 1
            print(f"self-test: {what}: nothing was said")


def check_places(checks):
    for text, expected in CASES:
        found = [change.name for changes in places.changes_of(text).values() for change in changes]
        checks.equal(repr(text), sorted(found), sorted(expected))


def check_mutants(checks, tool):
    text = "bool f() {\n  return a < b && c < d;\n}\n"
    by_place = tool.mutants_of("a.cc", text)
    names = [mutant.name for changes in by_place for mutant in changes]
    checks.equal("names", names, ["`return a < b && c < d;` to its contrary", "`<` to `<=`", "`&&` to `||`",
                                  "`<` to `<=` (number 2 of the line)"])
    last = by_place[-1][0]
    checks.equal("line", (last.line, last.before, last.after), (2, "  return a < b && c < d;", "  return a < b && c <= d;"))
    many = [mutant for _ in range(20) for mutant in by_place]
    checks.equal("same seed", tool.draw(many, 1), tool.draw(many, 1))
    checks.equal("other seed", tool.draw(many, 1) == tool.draw(many, 2), False)
    checks.equal("one change a place", len(tool.draw(many, 1)), len(many))

    checks.equal("arguments of cmake", tool.arguments_of(["--configure", "-DA=1", "--count", "2", "--configure=-DB=2"]).configure,
                 ["-DA=1", "-DB=2"])
    parts = [tool.part_of(text) for text in ("1/3", "2/3", "3/3")]
    checks.equal("parts", [[place for place in range(7) if tool.in_part(place, part)] for part in parts], [[0, 3, 6], [1, 4], [2, 5]])
    for text in ("0/3", "4/3", "1", "a/b"):
        checks.fails(f"part {text}", lambda: tool.part_of(text), argparse.ArgumentTypeError)

    mutants = [mutant for changes in by_place for mutant in changes]
    entry = "# Why.\n\nfile: a.cc\nline: return a < b && c < d;\nchange: `<` to `<=`\nbecause: a is never b\n"
    listed = tool.read_equivalent(entry, mutants)
    checks.equal("listed", [tool.reason_of(mutant, listed) for mutant in mutants], [None, "a is never b", None, None])
    checks.fails("an entry of another line", lambda: tool.read_equivalent(entry.replace("c < d", "c < e"), mutants))
    checks.fails("an entry of another change", lambda: tool.read_equivalent(entry.replace("`<=`", "`>`"), mutants))
    checks.fails("an entry without a reason", lambda: tool.read_equivalent(entry.replace("because: a is never b", ""), mutants))


def check_coverage(checks):
    covered = coverage.Coverage()
    covered.seconds = {"slow": 2.0, "fast": 1.0}
    files = {"a.cc": {"lines": [[2, 1], [4, 0], [12, 1]], "functions": [[2, 6], [11, 13]]}}
    covered.add("slow", files)
    files["a.cc"]["lines"][0][1] = 0
    covered.add("fast", files)
    checks.equal("a line that one runs", covered.covering("a.cc", 2), ["slow"])
    checks.equal("the rest of a statement", covered.covering("a.cc", 3), ["slow"])
    checks.equal("a line that none runs", covered.covering("a.cc", 4), [])
    checks.equal("fastest first", covered.covering("a.cc", 12), ["fast", "slow"])
    checks.equal("outside functions", covered.covering("a.cc", 8), ["fast", "slow"])
    checks.equal("another file", covered.covering("b.cc", 2), [])
    covered.add(None, {"b.cc": {"lines": [[1, 1]], "functions": []}})
    checks.equal("never run", covered.covering("b.cc", 1), [])


def check_tree(checks, folder):
    root = folder / "root"
    root.mkdir()
    if shutil.which("git"):
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    (root / "a.cc").write_text("int a;\n")
    (root / "b.cc").write_text("int b;\n")
    tree = Tree(root, folder / "tree", 1, [])
    with tree.locked():
        checks.fails("two runs in one folder", lambda: Tree(root, folder / "tree", 1, []).locked().__enter__())
        tree.synchronise()
        tree.change("a.cc", 4, 5, "c")
        tree.change("b.cc", 4, 5, "d")
        checks.equal("one change at a time", [(tree.source / n).read_text() for n in ("a.cc", "b.cc")], ["int a;\n", "int d;\n"])
        checks.equal("the caller's sources", (root / "b.cc").read_text(), "int b;\n")
    (root / "a.cc").unlink()
    after = Tree(root, folder / "tree", 1, [])  # as after a kill
    with after.locked():
        after.synchronise()
        checks.equal("a change that was left", (after.source / "b.cc").read_text(), "int b;\n")
        checks.equal("a file that is gone", (after.source / "a.cc").exists(), False)

    def run(script, limit=20):
        program = after.build / "tests" / "program"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n" + script)
        program.chmod(0o755)
        return after.run("program", limit, folder / "counters")

    after.build.mkdir(parents=True)
    (after.build / "CTestTestfile.cmake").write_text(
        f'add_test([=[a.run]=] "python" "a \\"b\\"" "{after.build}/bin/a")\n'
        'set_tests_properties([=[a.run]=] PROPERTIES  ENVIRONMENT "A=1;B=c=d" LABELS "x" WORKING_DIRECTORY "/w" _B "y")\n'
        f'add_test([=[after.a]=] "{after.build}/bin/a")\n'
        'set_tests_properties([=[after.a]=] PROPERTIES  FIXTURES_REQUIRED "x")\n'
        f'add_test([=[b]=] "{after.build}/bin/b")\nadd_test([=[script]=] "{after.build}/other")\n')
    commands = {name: (c.arguments, c.targets, c.folder, c.environment) for name, c in commands_in(after.build, {"bin/a", "bin/b"}).items()}
    checks.equal("ctest's commands", commands, {
        "a.run": (["python", 'a "b"', f"{after.build}/bin/a"], ["bin/a"], "/w", {"A": "1", "B": "c=d"}),
        "b": ([f"{after.build}/bin/b"], ["bin/b"], str(after.build), {})})
    checks.equal("a pass", run("exit 0").ok, True)
    failed = run("echo '[  FAILED  ] A.B (1 ms)'; exit 1")
    checks.equal("a failure", (failed.ok, failed.hung, failed.test), (False, False, "A.B"))
    several = run("echo '[  FAILED  ] A.B (1 ms)'; echo '[  FAILED  ] 1 test, listed below:'; exit 1")
    checks.equal("its name alone", several.failed, ["A.B"])
    crashed = run("echo '[ RUN      ] A.C'; kill -SEGV $$")
    checks.equal("a crash", (crashed.ok, crashed.hung, crashed.test), (False, False, "A.C"))
    hung = run("sleep 60", 0.2)
    checks.equal("a hang", (hung.ok, hung.hung), (False, True))


class PlannedTree(Tree):
    """Builds and runs nothing: each build and run ends as planned."""

    def __init__(self, root, folder, builds, runs):
        super().__init__(root, folder, 1, [])
        self.builds, self.runs, self.ran = builds, runs, []

    def commands(self):
        return {"a.cc": "a.cc.o"}, {"a.cc"}

    def including(self):
        return {"a.h": {"two", "another"}}

    def make(self, targets):
        return targets[0] not in self.builds

    def run(self, program, *_, **__):
        self.ran.append(program)
        return self.runs.get(program, Run(0, False, "", 1))


def check_states(checks, tool, folder):
    root = folder / "planned"
    (root / "copy" / "source").mkdir(parents=True)
    text = "bool f() {\n  return a < b;\n}\n"
    mutant = tool.mutants_of("a.cc", text)[1][0]
    covered = coverage.Coverage()
    covered.seconds = {"one": 1, "two": 2, "long": 70}
    covered.parts = {name: coverage.parts_of(name, seconds, [], {}) for name, seconds in covered.seconds.items()}
    lines = {"functions": [[1, 3]], "lines": [[2, 1]]}
    for program in covered.seconds:
        covered.add(program, {"a.cc": lines})
    fails, hangs = Run(1, False, "[  FAILED  ] A.B", 1), Run(None, True, "", 1)
    for what, builds, runs, expected, ran in [
            ("caught", [], {"one": fails}, ("caught", "one: A.B"), ["one"]),
            ("caught later", [], {"two": fails}, ("caught", "two: A.B"), ["one", "two"]),
            ("hung", [], {"one": hangs}, ("hung", "one"), ["one"]),
            ("no object", ["a.cc.o"], {}, ("does not compile", ""), []),
            ("no program", ["two"], {}, ("does not compile", ""), ["one"]),
            ("survived", [], {}, ("survived", "not run, since they take long: long"), ["one", "two"])]:
        (root / "copy" / "source" / "a.cc").write_text(text)
        tree = PlannedTree(root, root / "copy", builds, runs)
        checks.equal(what, (tool.Test(tree, covered, 60).of(mutant), tree.ran), (expected, ran))
        checks.equal(what + ": the copy", (tree.source / "a.cc").read_text(), text.replace("<", "<="))
        tree.restore()
        checks.equal(what + ": restored", (tree.source / "a.cc").read_text(), text)
    def names(of):
        return [part.name for part in of.parts(mutant)]

    test = tool.Test(tree, covered, 60)
    test.learn("other/b.cc", "caught", "long: A.B")
    checks.equal("fastest first", names(test), ["one", "two", "long"])
    for state in ("caught", "survived", "hung"):
        test.learn("b.cc", state, "two: A.B")
    checks.equal("what caught others of the folder first", names(test), ["two", "one", "long"])
    header = dataclasses.replace(mutant, file="a.h")
    checks.equal("a header of a test", [part.name for part in tool.Test(tree, covered, 60).parts(header)], ["two"])
    slow = [(part.name, part.seconds, part.tests) for part in coverage.parts_of("one", 30, ["A.B"], {"A.C": 20, "D.E": 4})]
    checks.equal("slow tests", slow, [("one", 6, "-A.B:A.C:D.E"), ("one+slow", 24, "A.C:D.E")])
    checks.equal("no slow tests", [part.tests for part in coverage.parts_of("one", 30, [], {})], [""])
    report = folder / "report.json"
    report.write_text('{"testsuites": [{"name": "A", "testsuite": [{"name": "B", "time": "0.9s"}, {"name": "C/1", "time": "12s"}]}]}')
    checks.equal("a report", coverage.slow_tests(report), {"A.C/1": 12.0})
    covered.lines["a.cc"][2] = set()
    tree = PlannedTree(root, root / "copy", [], {})
    checks.equal("not covered", tool.Test(tree, covered, 60).of(mutant), ("not covered", ""))

    results = tool.Results(root / "results.json", ["about"])
    results.add(mutant, "caught", "one", 1.0, None)
    results.add(mutant, "survived", "", 1.0, "reason")
    results.add(mutant, "does not compile", "", 1.0, None)
    again = tool.Results(root / "results.json", ["about"])
    again.load()
    checks.equal("resumed", (again.entries, again.caught_percent()), (results.entries, 50.0))
    checks.fails("resumed with other sources", tool.Results(root / "results.json", ["other"]).load)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        tool.summary(again, 3, 1)
    checks.equal("summary", [part for part in ("2 of 3 tested: 1 caught (0 of them hung), 1 survived (0 of them not covered, 1 listed",
                                               "50.0 % caught", "mutants: 1 more did not compile", "  +   return a <= b;",
                                               "equivalent: reason") if part not in said.getvalue()], [])


def check_gcov(checks, folder):
    """One program, with a line that runs and one that does not, and an end by abort()."""
    if not shutil.which("g++") or not shutil.which("gcov"):
        return
    tree = Tree(folder, folder / "gcov", 1, [])
    source, program = tree.source / "comm" / "a.cc", tree.build / "tests" / "a"
    source.parent.mkdir(parents=True)
    program.parent.mkdir(parents=True)
    source.write_text("#include <cstdlib>\nint main(int n, char**) {\n  if (n > 1)\n    return 1;\n  std::abort();\n}\n")
    dump = pathlib.Path(__file__).with_name("dump_on_abort.cc")
    subprocess.run(["g++", "--coverage", str(source), str(dump), "-o", str(program)], check=True, cwd=program.parent)
    counters = folder / "gcov" / "counters"
    checks.equal("aborts", tree.run("a", 20, counters).ok, False)
    files = coverage.read_gcov(tree, ("comm/",), coverage.linked(counters))
    checks.equal("gcov", {name: [line for line, count in file["lines"] if count] for name, file in files.items()},
                 {"comm/a.cc": [2, 3, 5]})


def run(tool):
    checks = Checks()
    check_places(checks)
    check_mutants(checks, tool)
    check_coverage(checks)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        check_tree(checks, folder)
        check_states(checks, tool, folder)
        check_gcov(checks, folder)
    print(f"mutants: self-test, {checks.right} of {checks.right + checks.wrong} cases right")
    return 1 if checks.wrong else 0
