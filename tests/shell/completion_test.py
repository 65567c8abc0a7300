# SPDX-License-Identifier: Apache-2.0
"""The completions of the weir command, as shells run them.

usage: completion_test.py PROGRAM GENERATOR    (weir, and tools/shell/completions)
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, GENERATOR = "", ""


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run([sys.executable, GENERATOR, PROGRAM, cls.folder.name], check=True)
        pathlib.Path(cls.folder.name, "run.weir").touch()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def bash(self, line):
        """What bash offers at the end of the line."""
        # As readline does, `=` is a word of its own.
        words = [each for each in re.split(r"(=)|\s", line) if each is not None]
        words = [each for each in words if each] + ([""] if line[-1] == " " else [])
        script = ('source ./weir.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weir; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        result = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True,
                                text=True, cwd=self.folder.name)
        self.assertEqual(result.stderr, "")
        return set(result.stdout.split())

    def help(self, *command):
        return subprocess.run([PROGRAM, *command, "--help"], check=True, capture_output=True,
                              text=True).stdout

    def subcommands(self, *command):
        text = self.help(*command).split("ubcommands:")[1]
        return set(re.findall(r"^  ([a-z]\S*) ", text, re.MULTILINE))

    def test_commands(self):
        self.assertEqual(self.bash("weir "), self.subcommands() | {"help", "version"})
        self.assertEqual(self.bash("weir rep"), {"replay", "report"})
        self.assertEqual(self.bash("weir comm "), self.subcommands("comm"))
        self.assertEqual(self.bash("weir help comm sc"), {"scenario"})

    def test_every_option_that_help_lists(self):
        for command in [*((each,) for each in self.subcommands()),
                        *(("comm", each) for each in self.subcommands("comm"))]:
            with self.subTest(command):
                listed = re.findall(r"^  (-\S+)", self.help(*command), re.MULTILINE)
                names = {name for each in listed
                         for name in re.findall(r"(?:^|,)(--?[A-Za-z][\w-]*)", each)}
                self.assertGreater(len(names), 1)
                self.assertEqual(self.bash(f"weir {' '.join(command)} -"), names)

    def test_values_and_files(self):
        self.assertEqual(self.bash("weir comm scenario --device "), {"auto", "sim", "cuda"})
        self.assertEqual(self.bash("weir comm scenario --device=s"), {"sim"})
        self.assertIn("run.weir", self.bash("weir report r"))
        self.assertIn("run.weir", self.bash("weir report -o r"))
        for command in ("report", "timeline"):
            self.assertEqual(self.bash(f"weir {command} --at p"), {"peak-live", "peak-reserved"})
        self.assertEqual(self.bash("weir report --top r"), set())  # a number, and no file

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish_offers_the_same(self):
        def fish(line):
            done = subprocess.run(["fish", "--no-config", "-c", f"source weir.fish; complete -C '{line}'"],
                                  capture_output=True, text=True, cwd=self.folder.name,
                                  env={**os.environ, "HOME": self.folder.name})
            self.assertEqual(done.stderr, "")
            return {each.split("\t")[0] for each in done.stdout.splitlines()}
        self.assertEqual(fish("weir rep"), {"replay", "report"})
        self.assertEqual(fish("weir comm "), self.subcommands("comm"))
        self.assertEqual(fish("weir comm scenario --device "), {"auto", "sim", "cuda"})
        self.assertIn("--top", fish("weir report --t"))

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_offers_the_same(self):
        def zsh(*words):
            # Outside of line editing the built-in refuses; a function shows what it would be given.
            script = ('compadd() { shift; print -l -- "$@" }; _files() { print FILES }; '
                      'words=("$@"); CURRENT=$#; source ./_weir')
            done = subprocess.run(["zsh", "-f", "-c", script, "zsh", *words], capture_output=True,
                                  text=True, cwd=self.folder.name)
            self.assertEqual(done.stderr, "")
            return set(done.stdout.split())
        self.assertEqual(zsh("weir", ""), self.subcommands() | {"help", "version"})
        self.assertEqual(zsh("weir", "comm", ""), self.subcommands("comm"))
        self.assertEqual(zsh("weir", "comm", "scenario", "--device", ""), {"auto", "sim", "cuda"})
        self.assertIn("--top", zsh("weir", "report", "-"))
        self.assertEqual(zsh("weir", "report", ""), {"FILES"})
        self.assertEqual(zsh("weir", "report", "--top", ""), set())


if __name__ == "__main__":
    PROGRAM, GENERATOR = (os.path.abspath(each) for each in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1])
