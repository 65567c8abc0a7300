# SPDX-License-Identifier: Apache-2.0
"""A copy of the sources in a folder of its own, built with coverage, and the runs of its test programs."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SUFFIXES = {".cc", ".h", ".c", ".cu", ".cuh", ".cmake", ".in"}
# A mutant that allocates or writes without end takes no more than this from the machine.
MEMORY, FILE_SIZE = 8 << 30, 1 << 30


class Failed(Exception):
    """What the caller has to see to, in one line."""


def project_files(root):
    """The project's files, new ones included. (Sources that came without git: all but build folders.)"""
    if not (root / ".git").exists() or not shutil.which("git"):
        found = [file.relative_to(root) for file in root.rglob("*") if file.is_file()]
        return sorted(name.as_posix() for name in found if not name.parts[0].startswith(("build", ".git")))
    listed = subprocess.run(["git", "-c", f"safe.directory={root}", "ls-files", "-z", "--cached", "--others",
                             "--exclude-standard"], cwd=root, capture_output=True, check=True).stdout.decode()
    return sorted(name for name in listed.split("\0") if name and (root / name).is_file())


def digest_of(root, names):
    result = hashlib.sha256()
    for name in names:
        result.update(name.encode() + b"\0" + hashlib.sha256((root / name).read_bytes()).digest())
    return result.hexdigest()


def is_built(name):
    """Whether the file has a part in what is built or how."""
    return pathlib.PurePath(name).suffix in SUFFIXES or name.endswith(("CMakeLists.txt", "CMakePresets.json"))


@dataclasses.dataclass
class Command:
    """A test of ctest's that is no GoogleTest program: its command line, what is built for it, and where it runs."""
    arguments: list
    targets: list
    folder: str
    environment: dict


def commands_in(build, built):
    """{name: Command} of ctest's files below `build`, whether or not their programs, of `built`, are there."""
    def quoted(text):
        return [re.sub(r"\\(.)", r"\1", each) for each in re.findall(r'"((?:[^"\\]|\\.)*)"', text)]
    found = {}
    for file in sorted(build.rglob("CTestTestfile.cmake")):
        text = file.read_text()
        properties = dict(re.findall(r"^set_tests_properties\(\[=\[(.*?)\]=\] PROPERTIES(.*)\)$", text, re.MULTILINE))
        for name, line in re.findall(r"^add_test\(\[=\[(.*?)\]=\] (.*)\)$", text, re.MULTILINE):
            arguments, about = quoted(line), properties.get(name, "")
            inside = {os.path.relpath(argument, build) for argument in arguments if os.path.isabs(argument)}
            if not inside & built or "FIXTURES_" in about:
                continue
            environment = re.search(r' ENVIRONMENT ("(?:[^"\\]|\\.)*")', about)
            folder = re.search(r' WORKING_DIRECTORY "([^"]*)"', about)
            found[name] = Command(arguments, sorted(inside & built), folder[1] if folder else str(file.parent),
                                  dict(each.partition("=")[::2] for each in quoted(environment[1])[0].split(";")) if environment else {})
    return found


class Run:
    """How one run of a program ended: `ok`, `hung`, or neither, and then what it said failed."""

    def __init__(self, status, hung, output, seconds):
        self.hung, self.seconds = hung, seconds
        self.ok = status == 0 and not hung
        failed = re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/.]+)", output, re.MULTILINE)
        started = re.findall(r"^\[ RUN      \] ([\w/.]+)", output, re.MULTILINE)
        self.failed = sorted(set(failed))
        self.test = failed[0] if failed else started[-1] if started else None


class Tree:
    def __init__(self, root, folder, jobs, options):
        self.root, self.folder, self.jobs = root, folder, jobs
        self.source = folder / "source"
        self.build = self.source / "build" / "release"
        self.options = options
        self.changed = None  # the one file of the copy that is changed, and its own text
        self.others = {}     # {name: Command}
        self.running = set()  # processes, each the leader of a group

    @contextlib.contextmanager
    def locked(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Failed(f"another run uses {self.folder}")
            yield

    def synchronise(self):
        """Makes the copy equal to the caller's sources, whatever an earlier run left in it."""
        names = project_files(self.root)
        self.source.mkdir(parents=True, exist_ok=True)
        for name in names:
            original, copy = self.root / name, self.source / name
            if not copy.is_file() or copy.read_bytes() != original.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(original, copy)
            copy.chmod(original.stat().st_mode)
        known = set(names)
        for folder, folders, files in os.walk(self.source):
            inside = pathlib.Path(folder).relative_to(self.source)
            folders[:] = [f for f in folders if not (inside == pathlib.Path() and f == "build")]
            for file in files:
                if (inside / file).as_posix() not in known:
                    (pathlib.Path(folder) / file).unlink()
        return names

    def environment(self, **more):
        return {**os.environ, "CCACHE_BASEDIR": str(self.source), **more}

    def configure(self):
        own = self.source / HERE.relative_to(self.root)
        arguments = ["cmake", "--preset", "release", "-G", "Ninja", "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=16",
                     "-DWEIR_TESTS=ON", "-DWEIR_BENCHMARKS=ON", "-DWEIR_SHARED=OFF", f"-DWEIR_MUTATING={own.as_posix()}",
                     f"-DCMAKE_PROJECT_INCLUDE={(own / 'instrument.cmake').as_posix()}", *self.options]
        done = subprocess.run(arguments, cwd=self.source, capture_output=True, text=True, env=self.environment())
        if done.returncode != 0:
            (self.folder / "configure.log").write_text(done.stdout + done.stderr)
            raise Failed(f"the build can't be configured: see {self.folder / 'configure.log'}")

    def programs(self):
        return (self.build / "test_programs.txt").read_text().split()

    def find_others(self):
        """The tests that run programs of this build and are no GoogleTest programs; none that needs another test."""
        said = subprocess.run(["ninja", "-C", str(self.build), "-t", "targets", "all"], capture_output=True, text=True).stdout
        self.others = commands_in(self.build, {line.rpartition(": ")[0] for line in said.splitlines()})

    def targets(self, program):
        """What is built for a test, as ninja names it."""
        return self.others[program].targets if program in self.others else [program]

    def binaries(self, program):
        """The files that a test runs."""
        return [self.build / target for target in self.others[program].targets] if program in self.others else [
            self.build / "tests" / program, self.build / "bin" / "weir"]

    def commands(self):
        """The object of each source that has one of its own, and the sources that are built."""
        objects, built = {}, set()
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            file = pathlib.Path(entry["file"])
            if file.is_relative_to(self.source) and not file.is_relative_to(self.build):
                name = file.relative_to(self.source).as_posix()
                built.add(name)
                output = entry.get("output") or re.search(r" -o (\S+)", entry["command"])[1]
                output = os.path.relpath(self.build / output, self.build)  # newer CMakes give the whole path
                if not output.startswith("tests/"):
                    objects.setdefault(name, output)
        return objects, built

    def including(self):
        """{header: the test programs with an object of their own that includes it}."""
        said = subprocess.run(["ninja", "-C", str(self.build), "-t", "deps"], capture_output=True, text=True).stdout
        result, programs, program = {}, set(self.programs()), None
        for line in said.splitlines():
            owner = re.match(r"\S*CMakeFiles/(\w+)\.dir/\S+: #deps", line)
            if not line.startswith(" "):
                program = owner[1] if owner and owner[1] in programs else None
            elif program:
                path = pathlib.Path(os.path.normpath(self.build / line.strip()))
                if path.suffix == ".h" and path.is_relative_to(self.source):
                    result.setdefault(path.relative_to(self.source).as_posix(), set()).add(program)
        return result

    def make(self, targets):
        """Builds, and says whether that went well."""
        with open(self.folder / "build.log", "w") as output:
            command = ["ninja", "-C", str(self.build), "-j", str(self.jobs), *targets]
            return self._wait(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=self.environment(),
                                               start_new_session=True), None) == (0, False)

    def change(self, name, begin, end, text):
        """Replaces a part of one file of the copy; the file that was changed before gets its own text back."""
        self.restore()
        own = (self.source / name).read_text()
        self.changed = name, own
        (self.source / name).write_text(own[:begin] + text + own[end:])

    def restore(self):
        if self.changed is not None:
            name, own = self.changed
            (self.source / name).write_text(own)
            self.changed = None

    def run(self, program, limit, counters, tests="", fail_fast=True, report=None, place=None):
        """Runs a test in the copy; of a GoogleTest program these `tests`, as --gtest_filter takes them. Its
        counters go below `counters`; its output and what it writes below `place`, which no other run may use."""
        place = place or self.folder
        log = place / "run.log"
        scratch = place / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        other = self.others.get(program)
        arguments = list(other.arguments) if other else [str(self.build / "tests" / program)]
        if tests:
            arguments.append("--gtest_filter=" + tests)
        environment = self.environment(GCOV_PREFIX=str(counters), TMPDIR=str(scratch), **(other.environment if other else {}))
        if fail_fast:
            environment["GTEST_FAIL_FAST"] = "1"
        if report:
            environment["GTEST_OUTPUT"] = f"json:{report}"
        begin = time.monotonic()
        with open(log, "wb") as output:
            process = subprocess.Popen(arguments, cwd=other.folder if other else self.source, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env=environment, start_new_session=True)
            _limit(process.pid)
            status, hung = self._wait(process, limit)
        seconds = time.monotonic() - begin
        shutil.rmtree(scratch, ignore_errors=True)
        return Run(status, hung, log.read_text(errors="replace"), seconds)

    def _wait(self, process, limit):
        """Its status, and whether it had to be ended. Nothing that it started is left."""
        self.running.add(process)
        try:
            return process.wait(limit), False
        except subprocess.TimeoutExpired:
            return None, True
        finally:
            self.running.discard(process)
            _end(process)
            process.wait()

    def end_all(self):
        """For a caller that was interrupted while other threads run tests."""
        for process in list(self.running):
            _end(process)


def _end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _limit(process):
    with contextlib.suppress(ProcessLookupError):
        for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, MEMORY), (resource.RLIMIT_FSIZE, FILE_SIZE)):
            resource.prlimit(process, kind, (most, most))


def say(text):
    print(text, flush=True)


def note(text):
    print(text, file=sys.stderr, flush=True)
