#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of README.md, CONTRIBUTING.md and docs/: every line of a fenced block that is a command.

usage: tests/docs/commands.py --weir WEIR --program PROGRAM [--update | --list]
       tests/docs/commands.py --self-test

WEIR is the command; PROGRAM a program with an allocator, for `./program`. Each page's commands run in
a folder of their own, in the order in which they stand there, beside links to the sources and with
the names below; what one command wrote, later ones of the page find. A command must exit with 0.
Output that a block shows below `$ command` must be what the command prints; --update writes it there.

What can't run here stands in NOT_RUN, with the reason. An entry that fits no command is a failure, so
that the list stays true.
"""

import argparse
import itertools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LANGUAGES = ("", "sh", "bash", "console", "shell")
FIRST_WORDS = {"weir", "python", "python3", "pip", "cmake", "ctest", "torchrun", "mpirun", "mpiexec.hydra", "srun",
               "mkdir", "git", "cc", "for", "done;", "kill", "apt-get", "source"}
FIRST_FOLDERS = ("./", "build/", "tools/", "bench/", "tests/", "docs/", ".ci/")

# Page (a pattern; empty: all), command (a pattern), why it can't run here.
INSTALLS = "installs packages, or builds what CI builds in a step of its own"
BUILDS = "builds all of Weir; CI does in a step of its own"
NEEDS_GPU = "needs a GPU"
NEEDS_TORCH = "needs PyTorch with CUDA and a GPU"
NEEDS_RANKS = "needs a launcher of ranks, or GPUs; comm.processes starts ranks by torchrun's and others' variables"
LONG = "takes minutes; a test of its own runs it with bounds (docs/testing.md)"
OTHER_TARGET = "a program that this test does not build; a test of its own runs it"
NOT_RUN = [
    ("", r"^pip install", INSTALLS),
    ("", r"^apt-get ", INSTALLS),
    ("", r"^tools/docs", "builds the site, with packages that it installs; CI's check of links needs none of it"),
    ("", r"^tools/run ", BUILDS),
    ("", r"^tools/checks/(layers|paths|format|links|figures)", "checks the sources; CI runs it"),
    ("", r"^\.ci/run", BUILDS),
    ("building", r"^cc program.c ", "tests/install/pkg_config does it, with an installed Weir"),
    ("", r"^cmake ", BUILDS),
    ("", r"^ctest ", "runs tests within a test"),
    ("", r"^tools/checks/gpu", NEEDS_GPU),
    ("", r"^tools/checks/mutants", "takes hours; checks.mutants_self_test runs its own test"),
    ("", r"^tools/checks/soak", "builds Weir and takes minutes; soak.sim runs the program"),
    ("", r"--device cuda( |$)", NEEDS_GPU),
    ("", r"^(build/release/bin/)?weir look ", "opens a browser; unit_look_command_test runs it with --no-open"),
    ("", r"gtest_filter='\*Cuda\*'", NEEDS_GPU),
    ("", r"^([A-Z_]+=\S+ )*python3? ", NEEDS_TORCH),
    ("", r"^torchrun |^mpirun |^mpiexec|^srun ", NEEDS_RANKS),
    (r"comm", r"\./step|^for |^done", NEEDS_RANKS),
    ("replay", r"build/peers/", "needs PyTorch; bench.peers.suite runs it where that is built"),
    ("", r"^bench/(instructions|walk)/check", LONG),
    ("performance", r"^bench/fragmentation/run --(ablation|without)", "takes minutes; bench.fragmentation.without runs a part"),
    ("", r"^build/release/bin/weir_micro", OTHER_TARGET),
    ("", r"^build/\S+/(tests|fuzz)/", OTHER_TARGET),
    ("comm", r"^weir comm check$", "its output is of the machine; the synopsis above is run"),
]
# Words in a synopsis that stand for something: what the test puts there.
STANDS_FOR = {"FILE": "trace.gz", "BEFORE": "trace.gz", "AFTER": "trace.gz", "TRACE": "trace.gz", "TIME": "peak-live",
              "NAME": "all_reduce", "SCENARIO": "long-lived-inputs", "SIZE": "32M", "N": "2", "FOLDER": ".", "OUT": "out"}


class Command:
    def __init__(self, page, line, text, output=None):
        self.page, self.line, self.text, self.output = page, line, text, output

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.text}"


def pages():
    found = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others",
                            "--exclude-standard", "--", "README.md", "CONTRIBUTING.md", "docs/*.md"],
                           cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in found if (ROOT / name).is_file()]


def blocks(text):
    """Fenced blocks: their language, the number of their first line, their lines."""
    inside = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"^(`{3,}|~{3,})\s*(\S*)", line)
        if inside is None and fence:
            inside = (fence[1], fence[2], number + 1, [])
        elif inside is not None and line.startswith(inside[0]):
            yield inside[1:]
            inside = None
        elif inside is not None:
            inside[3].append(line)


def is_command(line):
    words = line.split()
    while words and re.fullmatch(r"[A-Z][A-Z0-9_]*=\S*", words[0]):
        words.pop(0)
    return bool(words) and (words[0] in FIRST_WORDS or words[0].startswith(FIRST_FOLDERS))


def commands_of(page, text):
    for language, first, lines in blocks(text):
        if language not in LANGUAGES:
            continue
        prompts = any(line.startswith("$ ") for line in lines)
        if not prompts and not (lines and is_command(lines[0])):
            continue
        numbered = list(enumerate(lines, first))
        while numbered:
            number, line = numbered.pop(0)
            if prompts and not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
            while line.endswith("\\") and numbered:
                line = line[:-1] + numbered.pop(0)[1].strip()
            line = re.sub(r"\s+#.*$", "", line).strip()
            if not line or line.startswith("#"):
                continue
            output = None
            if prompts:
                output = []
                while numbered and not numbered[0][1].startswith("$ "):
                    output.append(numbered.pop(0)[1].rstrip())
            elif not is_command(line):
                raise SystemExit(f"{page}:{number}: not known as a command: {line}\n"
                                 "begin commands with `$ `, or name the block's language (text)")
            yield Command(page, number, line, output)


def why_not(command):
    """The entry of NOT_RUN that fits first, or nothing."""
    for entry in NOT_RUN:
        if re.search(entry[0], command.page.stem) and re.search(entry[1], command.text):
            return entry
    return None


def expanded(text):
    """What a synopsis allows: `a|b` is one of them each, CAPITALS stand for something, and of the [options] none, and
    each alone."""
    text = re.sub(r"(--\w+)\[=(\w+)\]", r"\1 | \1=\2", text)
    plain = re.sub(r" (\[[^\]]*\]|\.\.\.)", "", text)
    optional = [option[1:-1] for option in re.findall(r"\[[^\]]*\]", text)]
    lines = [plain] + [f"{plain} {option}" for options in optional for option in options.split(" | ")]
    results = []
    for line in lines:
        # There may be no GPU.
        choices = [[one for one in word.split("|") if one != "cuda"] if re.fullmatch(r"[\w.|-]+", word) else [word]
                   for word in line.split(" ")]
        for words in itertools.product(*choices):
            words = [re.sub("=FILE$", "=out.json", word) for word in words]
            words = ["out.json" if word == "FILE" and before in ("--json", "-o") else STANDS_FOR.get(word, word)
                     for before, word in zip(("", *words), words)]
            if "--to" in words and "out" in words:
                words[words.index("out")] = "out." + words[words.index("--to") + 1]
            results.append(" ".join(words))
    return list(dict.fromkeys(results))


def prepare(folder, weir, program):
    """The folder that a page's commands run in."""
    for name in ("bench", "docs", "tools", "tests", "allocator"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "build" / "release").mkdir(parents=True)
    (folder / "build" / "release" / "bin").symlink_to(weir.parent)
    shutil.copy(ROOT / "bench" / "traces" / "graph_serve.trace.gz", folder / "trace.gz")
    (folder / "program").symlink_to(program)
    environment = {**{name: value for name, value in os.environ.items() if not name.startswith("WEIR_")},
                   "PATH": f"{weir.parent}:{os.environ['PATH']}", "WEIR_DEVICE": "sim", "COLUMNS": "100"}
    run = lambda command, **more: subprocess.run(command, cwd=folder, check=True, capture_output=True,  # noqa: E731
                                                 env={**environment, **more})
    for name in ("run.weir", "before.weir", "after.weir"):
        run(["./program"], WEIR_RECORD=name)
    run(["weir", "timeline", "trace.gz", "--to", "memory_viz", "-o", "snapshot.pickle"])
    (folder / "program.pickle").symlink_to("snapshot.pickle")
    return environment


def run(command, folder, environment, update=False):
    """What is wrong with it; nothing: all is well."""
    words = shlex.split(command.text)
    synopsis = words[:1] == ["weir"] and command.output is None
    for text in expanded(command.text) if synopsis else [command.text]:
        done = subprocess.run(["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True,
                              timeout=60, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            return f"{text}\nexit {done.returncode}: {done.stderr.strip()[-500:]}"
        if command.output:
            printed = [line.rstrip() for line in done.stdout.rstrip("\n").split("\n")]
            shown = command.output
            if update and shown != printed:
                text = command.page.read_text()
                command.page.write_text(text.replace("\n".join(shown), "\n".join(printed)))
                return None
            for one, other in itertools.zip_longest(shown, printed, fillvalue="(nothing)"):
                if one != other:
                    return f"the page shows   {one}\nit prints        {other}"
    return None


def self_test():
    text = "```\nweir replay x  # a remark\nweir timeline FILE --to a|b [--at TIME] -o OUT\n```\n```\n$ weir a\nb\n```\n"
    found = list(commands_of(ROOT / "docs" / "x.md", text))
    assert [one.text for one in found] == ["weir replay x", "weir timeline FILE --to a|b [--at TIME] -o OUT", "weir a"]
    assert found[2].output == ["b"], found[2].output
    assert expanded(found[1].text) == ["weir timeline trace.gz --to a -o out.a", "weir timeline trace.gz --to b -o out.b",
                                       "weir timeline trace.gz --to a -o out.a --at peak-live",
                                       "weir timeline trace.gz --to b -o out.b --at peak-live"], expanded(found[1].text)
    with tempfile.TemporaryDirectory() as folder:
        page = ROOT / "docs" / "x.md"
        assert run(Command(page, 1, "false"), folder, dict(os.environ)), "a command that fails is found"
        assert run(Command(page, 1, "echo a", ["b"]), folder, dict(os.environ)), "other output is found"
        assert not run(Command(page, 1, "echo a", ["a"]), folder, dict(os.environ))
    try:
        list(commands_of(page, "```\nweir a\nsudo rm x\n```\n"))
        raise AssertionError("a line that is no command is found")
    except SystemExit:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weir", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path)
    parser.add_argument("--update", action="store_true", help="write what commands print into the pages")
    parser.add_argument("--list", action="store_true", help="print each command, and why it is not run")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
        return 0
    failures, ran, used = [], 0, set()
    for page in pages():
        found = list(commands_of(page, page.read_text()))
        if not found:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            environment = None
            for command in found:
                reason = why_not(command)
                if arguments.list:
                    print(f"{command}{f'   ({reason[2]})' if reason else ''}")
                if reason:
                    used.add(reason)
                    continue
                if arguments.list:
                    continue
                environment = environment or prepare(folder, arguments.weir.resolve(), arguments.program.resolve())
                ran += 1
                if wrong := run(command, folder, environment, arguments.update):
                    failures.append(f"{command}\n{wrong}")
    failures += [f"NOT_RUN: no page has {entry[:2]} any more" for entry in NOT_RUN if entry not in used]
    for failure in failures:
        print(failure, end="\n\n")
    print(f"{ran} commands of README and docs ran, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
