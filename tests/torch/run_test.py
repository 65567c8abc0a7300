# SPDX-License-Identifier: Apache-2.0
"""`python -m weir run` and weir.enable() where there is no GPU: options, programs, settings, failures.

usage: run_test.py LIBRARY    (of the build: libweir_pluggable.so)
"""

import os
import pathlib
import sys
import unittest

import installed


class Run(installed.Installed):
    def test_the_programs_own_arguments_are_left_as_they_are(self):
        theirs = ["-m", "x", "--limit", "3", "--", "--help", "-h", "--record=y"]
        for how in (["program.py"], ["--", "program.py"], ["-m", "program"], ["-mprogram"],
                    ["--limit", "1GiB", "program.py"], ["--limit=1GiB", "-mprogram"]):
            with self.subTest(how):
                result = self.run_weir(*how, *theirs)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertEqual(result.stdout.strip(), str(theirs))

    def test_a_program_that_is_not_there_is_named(self):
        folder = pathlib.Path(self.folder.name)
        (folder / "without_main").mkdir(exist_ok=True)
        (folder / "without_main" / "__init__.py").write_text("")
        for how in (["gone.py"], ["-m", "gone"], ["-m", "gone.sub"], ["-m", "program.sub"],
                    ["-m", "without_main"], ["without_main"]):
            with self.subTest(how):
                result = self.run_weir(*how)
                self.assertEqual(result.returncode, 1)
                self.assertIn(how[-1].split(".")[0], result.stderr)
                self.assertNotIn("Traceback", result.stderr)

    def test_a_module_whose_own_imports_fail_says_which(self):
        folder = pathlib.Path(self.folder.name, "broken")
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text("import what_it_needs\n")
        (folder / "__main__.py").write_text("")
        result = self.run_weir("-m", "broken")
        self.assertIn("No module named 'what_it_needs'", result.stderr.splitlines()[-1])

    def test_the_program_is_main_from_beginning_to_end_as_without_weir(self):
        folder = pathlib.Path(self.folder.name)
        (folder / "packed").mkdir(exist_ok=True)
        (folder / "packed" / "__init__.py").write_text("")
        (folder / "packed" / "__main__.py").write_text(
            "import atexit, os, pickle, sys, threading, time\n"
            "class Thing: pass\n"
            "def ends(): print(type(pickle.loads(pickle.dumps(Thing()))))\n"
            "def late(): time.sleep(0.3); ends()\n"
            "atexit.register(ends)\n"
            "threading.Thread(target=late).start()\n"
            "print(__name__, __file__, __package__, __spec__ and __spec__.name,\n"
            "      [os.path.basename(sys.argv[0]), *sys.argv[1:]], sys.path[0])\n")
        (folder / "alone.py").write_text((folder / "packed" / "__main__.py").read_text())
        for how in (["alone.py", "a"], ["-m", "alone", "a"], ["-m", "packed"], ["packed"]):
            with self.subTest(how):
                without = self.python(*how, PYTHONPATH=self.folder.name)
                self.assertEqual((without.returncode, without.stderr), (0, ""))
                result = self.run_weir(*how)
                self.assertEqual((result.stdout, result.stderr), (without.stdout, ""))

    def test_exit_statuses_input_and_tracebacks_are_the_programs(self):
        folder = pathlib.Path(self.folder.name)
        for code, status in (("import sys; sys.exit(3)", 3), ("raise KeyError('mine')", 1),
                             ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15)):
            with self.subTest(code):
                (folder / "ends.py").write_text(code + "\n")
                for how in (["ends.py"], ["-m", "ends"]):
                    result = self.run_weir(*how)
                    self.assertEqual(result.returncode, status)
                    self.assertEqual("KeyError: 'mine'" in result.stderr, status == 1)

    def test_each_rank_of_a_job_records_into_a_file_of_its_own(self):
        folder = pathlib.Path(self.folder.name)
        (folder / "recorded.py").write_text("import os; print(os.environ['WEIR_RECORD'])\n")
        (folder / "a.b").mkdir(exist_ok=True)
        launchers = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
                     ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("WEIR_RANK", "WEIR_WORLD_SIZE"))
        for job, given, record in (
                ({"RANK": "1", "WORLD_SIZE": "2"}, "run.weir", "run-rank1.weir"),
                ({"RANK": "1", "WORLD_SIZE": "1"}, "a.weir", "a.weir"),
                ({"RANK": "1", "WORLD_SIZE": "2"}, "a.b/run", "a.b/run-rank1"),
                ({"RANK": "1", "WORLD_SIZE": "abc"}, "a.weir", "a.weir"),
                *(({rank: "3", ranks: "4"}, "run.weir", "run-rank3.weir") for rank, ranks in launchers)):
            for result in (self.run_weir("--record", given, "recorded.py", **job),
                           self.run_weir("recorded.py", WEIR_RECORD=given, **job)):
                self.assertEqual(result.stdout.strip(), record, result.stderr)

    def test_a_file_that_cannot_be_written_is_said_before_the_program_starts(self):
        for name, value in (("WEIR_RECORD", "none/run.weir"), ("WEIR_SNAPSHOT_ON_OOM", "none/oom.json"),
                            ("WEIR_RECORD", self.folder.name)):
            result = self.run_weir("program.py", **{name: value})
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn(f"weir: {name}={value}: ", result.stderr)
            self.assertNotIn("Traceback", result.stderr)

    def test_what_is_no_module_is_said(self):
        for module, says in (("program.py", "leave out .py (program)"), (".program", "is relative")):
            result = self.run_weir("-m", module)
            self.assertEqual(result.returncode, 1)
            self.assertIn(says, result.stderr)
            self.assertNotIn("Traceback", result.stderr)

    def test_a_misspelt_option_or_command_is_said_with_the_nearest(self):
        for arguments, says in (
                (("run", "--limt", "5GiB", "program.py"), "unknown option '--limt'; did you mean '--limit'?\n"),
                (("run", "--record-stack=cpp", "program.py"),
                 "unknown option '--record-stack'; did you mean '--record-stacks'?\n"),
                (("run", "--xyz", "1", "program.py"), "unknown option '--xyz'\n"),
                (("reprot", "file"), "unknown command 'reprot'; did you mean 'report'?\n"),
                (("bogus",), "unknown command 'bogus'\ncommands: run, info, look, replay, report, fit, diff, "
                             "timeline, convert, bench, comm\n"),
                (("info", "more"), "unrecognized arguments: more\n")):
            with self.subTest(arguments):
                result = self.python("-m", "weir", *arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn(f"python -m weir: error: {says}", result.stderr)

    def test_a_torch_that_fails_in_any_way_is_said(self):
        for error in ("raise OSError('libcublas.so.13: cannot open')", "raise ValueError('libcufile')",
                      "raise ImportError('typing_extensions')"):
            result = self.python("-m", "weir", "run", "program.py",
                                 PYTHONPATH=self.torch_package("2.11.0", error))
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn("weir: PyTorch can't be imported: ", result.stderr)
            self.assertNotIn("Traceback", result.stderr)
        result = self.python("-m", "weir", "run", "program.py",
                             PYTHONPATH=self.torch_package("2.11.0", "cuda = None"))
        self.assertIn("has no CUDA: install one that has", result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    def test_what_fails_to_be_turned_on_leaves_no_setting_behind(self):
        printed = self.run_code(
            "import os, weir\n"
            "before = dict(os.environ)\n"
            "for bad in (dict(limit='much'), dict(limti='1GiB')):\n"
            "    try:\n"
            "        weir.enable('pluggable', **bad)\n"
            "    except weir.Problem as problem:\n"
            "        print(problem)\n"
            "    assert dict(os.environ) == before, os.environ\n"
            "print(weir.enable('pluggable', limit=None, validate=False, log_file=None))\n"
            "assert os.environ.get('WEIR_VALIDATE') == '0' and 'WEIR_LIMIT' not in os.environ\n",
            PYTHONPATH=self.fake_torch(**self.PLUGGABLE), WEIR_DEVICE="sim")
        self.assertRegex(printed, "(?s)WEIR_LIMIT.*WEIR_LIMTI.*WEIR_LIMIT.*pluggable")

    def test_where_the_backend_loads_and_cant_be_turned_on_nothing_else_is_tried(self):
        result = self.python("-W", "error", "-c",
                             "import types, weir\n"
                             "from weir import _native\n"
                             "_native.backend = lambda: types.SimpleNamespace(\n"
                             "    weir_torch_enable=lambda: 1, weir_last_error=lambda: b'no driver')\n"
                             "weir.enable()\n",
                             PYTHONPATH=self.fake_torch(**self.PLUGGABLE), WEIR_DEVICE="sim")
        self.assertEqual(result.stderr.splitlines()[-1], "weir._native.Problem: no driver")

    def test_threads_that_turn_it_on_at_once_are_told_that_one_did(self):
        printed = self.run_code(
            "import threading, weir\n"
            "begin, said = threading.Barrier(8), []\n"
            "def turn_on():\n"
            "    begin.wait()\n"
            "    try:\n"
            "        said.append(weir.enable('pluggable'))\n"
            "    except weir.Problem as problem:\n"
            "        said.append(str(problem))\n"
            "threads = [threading.Thread(target=turn_on) for i in range(8)]\n"
            "for thread in threads: thread.start()\n"
            "for thread in threads: thread.join()\n"
            "print(said.count('pluggable'), said.count('Weir is on already (pluggable)'))\n",
            PYTHONPATH=self.fake_torch(**self.PLUGGABLE), WEIR_DEVICE="sim")
        self.assertEqual(printed, "1 7")

    # A PyTorch with memory pools, as far as Weir's Python touches them.
    POOLS = """
import contextlib, functools
class MemPool: id = (0, 7)
said = []
@contextlib.contextmanager
def use_mem_pool(pool, device):
    said.append(f'in {pool.id[1]} on {device}')
    yield
    said.append('out')
cuda.MemPool, cuda.use_mem_pool = MemPool, use_mem_pool
cuda.device = lambda number: contextlib.nullcontext()
_C = types.SimpleNamespace(_accelerator_setAllocatorSettings=said.append)
"""

    def with_pools(self, code):
        path = self.fake_torch(**self.PLUGGABLE)
        with open(pathlib.Path(path.split(os.pathsep)[0], "torch.py"), "a") as file:
            file.write(self.POOLS)
        return self.run_code(code, PYTHONPATH=path, WEIR_DEVICE="sim").splitlines()

    def test_plain_memory_is_one_pool_of_the_device_and_a_pool_that_is_used_cant_be_made_plain(self):
        said = self.with_pools(
            "import torch, weir\n"
            "weir.enable('pluggable')\n"
            "for _ in range(2):\n"
            "    with weir.plain_memory(): torch.said.append('work')\n"
            "print(torch.said)\n"
            "print(weir.plain_pool(0).id)\n")
        self.assertEqual(said, [str(["in 7 on 0", "work", "out"] * 2), "(0, 7)"])

    def test_expandable_segments_that_are_switched_off_are_plain_memory_until_they_are_on_again(self):
        said = self.with_pools(
            "import threading, torch, weir\n"
            "weir.enable('pluggable')\n"
            "from weir import _memory\n"
            "_memory.honour_expandable_segments(torch)\n"
            "torch.cuda.is_initialized = lambda: False\n"
            "tell = torch._C._accelerator_setAllocatorSettings\n"
            "tell('expandable_segments:False')\n"
            "torch.cuda.is_initialized = lambda: True\n"
            "tell('expandable_segments:True')\n"
            "tell('max_split_size_mb:64, expandable_segments: False')\n"
            "tell('expandable_segments:False')\n"
            "thread = threading.Thread(target=tell, args=('expandable_segments:True',))\n"
            "thread.start(); thread.join()\n"
            "torch.said.append('work')\n"
            "tell('expandable_segments:True')\n"
            "tell('garbage')\n"
            "print(*torch.said, sep='\\n')\n")
        self.assertEqual(said, [
            "expandable_segments:False", "expandable_segments:True",
            "max_split_size_mb:64, expandable_segments: False", "in 7 on 0",
            "expandable_segments:False", "expandable_segments:True", "work",
            "expandable_segments:True", "out", "garbage"])

    def test_expandable_segments_that_cant_be_plain_memory_are_a_warning(self):
        said = self.with_pools(
            "import torch, warnings, weir\n"
            "weir.enable('pluggable')\n"
            "from weir import _memory\n"
            "_memory.honour_expandable_segments(torch)\n"
            "torch.cuda.is_initialized = lambda: True\n"
            "def refused(pool, device): raise RuntimeError('no pools here')\n"
            "torch.cuda.use_mem_pool = refused\n"
            "with warnings.catch_warnings(record=True) as all:\n"
            "    warnings.simplefilter('always')\n"
            "    torch._C._accelerator_setAllocatorSettings('expandable_segments:False')\n"
            "    torch._C._accelerator_setAllocatorSettings('expandable_segments:True')\n"
            "print(torch.said, [str(each.message) for each in all])\n")
        self.assertEqual(said, ["['expandable_segments:False', 'expandable_segments:True'] "
                                "['Weir: expandable_segments:False, and memory stays as it is: "
                                "no pools here']"])

    # As Python starts where the package is installed.
    START = "import os, site, sys, warnings; site.addsitedir(os.getcwd())\n"

    def start(self, code, torch=None, **environment):
        settings = {"WEIR_ENABLE": "1", "WEIR_DEVICE": "sim", **environment}
        path = self.fake_torch(**self.PLUGGABLE) if torch is None else torch
        return self.python("-c", self.START + code, PYTHONPATH=path, **settings)

    def test_weir_enable_turns_it_on_once_pytorch_is_imported(self):
        code = ("print('weir._native' in sys.modules, 'torch' in sys.modules)\n"
                "import torch, weir\n"
                "print(weir.enabled(), type(torch.__spec__.loader).__name__)\n"
                "print(weir.enable())\n"
                "try: weir.enable()\n"
                "except weir.Problem as problem: print(problem)\n")
        said = self.start(code)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(said.stdout.splitlines(),
                         ["True False", "pluggable SourceFileLoader", "pluggable",
                          "Weir is on already (pluggable)"])

    def test_weir_enable_waits_for_the_import_that_succeeds(self):
        path, _, rest = self.fake_torch(**self.PLUGGABLE).partition(os.pathsep)
        code = ("import importlib, importlib.util, os, sys\n"
                "sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, 'torch'))]\n"
                "print(importlib.util.find_spec('torch'))\n"
                f"sys.path.insert(0, {path!r})\n"
                "spec = importlib.util.find_spec('torch')\n"
                "print(spec.name, spec.loader.get_filename() == spec.origin)\n"
                "os.environ['FAILS'] = '1'\n"
                "try: import torch\n"
                "except OSError as error: print(error)\n"
                "del os.environ['FAILS']\n"
                "import torch, weir\n"
                "print(weir.enabled(), importlib.reload(torch).__version__, weir.enabled())\n")
        file = pathlib.Path(path, "torch.py")
        file.write_text("import os\nif 'FAILS' in os.environ: raise OSError('not yet')\n" +
                        file.read_text())
        said = self.start(code, rest)
        self.assertEqual(said.stdout.splitlines(),
                         ["None", "torch True", "not yet", "pluggable 9.9 pluggable"], said.stderr)
        self.assertNotIn("stays off", said.stderr)

    def test_weir_enable_stands_two_environments_and_finders_that_ask_all_others(self):
        code = ("import importlib.util\n"
                "site.addsitedir(os.getcwd())\n"  # as a second environment's .pth
                "print(sum(type(each).__name__ == '_BehindTorch' for each in sys.meta_path))\n"
                "class AsksAll:\n"
                "    def find_spec(self, name, path=None, target=None):\n"
                "        if name != 'torch': return None\n"
                "        found = (each.find_spec(name, path, target) for each in sys.meta_path\n"
                "                 if each is not self)\n"
                "        return next((spec for spec in found if spec), None)\n"
                "sys.meta_path.insert(0, AsksAll())\n"
                "import torch, weir\n"
                "print(weir.enabled())\n")
        said = self.start(code)
        self.assertEqual(said.stdout.splitlines(), ["1", "pluggable"], said.stderr)

    def test_weir_enable_is_off_by_default_and_costs_no_import(self):
        for value in ("", "0"):
            said = self.start("import torch; print([name for name in sys.modules if 'weir' in name])",
                              WEIR_ENABLE=value)
            self.assertEqual((said.stdout.strip(), said.stderr), ("[]", ""))

    def test_weir_enable_that_is_neither_0_nor_1_is_said(self):
        said = self.start("import torch, weir; print(weir.enabled())", WEIR_ENABLE="yes")
        self.assertEqual(said.stdout.strip(), "None")
        self.assertIn("Weir stays off: WEIR_ENABLE is 'yes'; it takes 0 or 1", said.stderr)

    def test_weir_enable_and_settings_of_the_programs_own_are_refused(self):
        said = self.start("import torch, weir; weir.enable(limit='1GiB')")
        self.assertIn("Weir is on already (pluggable), by WEIR_ENABLE: give settings as WEIR_*",
                      said.stderr.splitlines()[-1])

    def test_weir_enable_where_weir_can_t_be_leaves_the_program_as_it_is(self):
        cpu_only = self.fake_torch(version="types.SimpleNamespace(cuda=None)")
        said = self.start("import torch, weir; print(weir.enabled(), torch.__version__)", cpu_only)
        self.assertEqual((said.returncode, said.stdout.strip()), (0, "None 9.9"))
        self.assertIn("WEIR_ENABLE=1, and Weir stays off in this process", said.stderr)
        broken = self.torch_package("2.11.0", "raise OSError('libcudart is gone')")
        said = self.start("import torch", broken)
        self.assertIn("OSError: libcudart is gone", said.stderr.splitlines()[-1])

    def test_weir_enable_leaves_run_and_enable_as_they_are(self):
        said = self.start("import weir\nweir.enable('pluggable', limit='1GiB'); print(weir.enabled())")
        self.assertEqual((said.stdout.strip(), said.stderr), ("pluggable", ""))

    def test_processes_that_weir_enable_turns_it_on_in_record_into_files_of_their_own(self):
        code = "import torch; print(os.getpid(), os.environ['WEIR_RECORD'])"
        for job, own in (({}, "all-{}.weir"), ({"RANK": "1", "WORLD_SIZE": "2"}, "all-rank1.weir")):
            pid, name = self.start(code, WEIR_RECORD="all.weir", **job).stdout.split()
            self.assertEqual(name, own.format(pid))
            root = name.removesuffix(".weir")  # a worker of that process has the name from it
            pid, name = self.start(code, WEIR_RECORD=name, **job).stdout.split()
            self.assertEqual(name, f"{root}-{pid}.weir")

    def test_the_commands_of_weir_work_too(self):
        program = pathlib.Path(self.folder.name, "weir", "bin", "weir")
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho \"$@\"; exit 3\n")
        program.chmod(0o755)
        table = (installed.SOURCE.parents[2] / "docs" / "command.md").read_text()
        commands = {line.split("`")[1].split()[0] for line in table.splitlines()
                    if line.startswith("| `") and line.count("|") == 6}
        self.assertIn("report", commands)
        for command in commands:
            result = self.python("-m", "weir", command, "a file", "--json")
            self.assertEqual((result.returncode, result.stdout, result.stderr),
                             (3, f"{command} a file --json\n", ""))

    def test_the_kind_of_memory_is_an_option(self):
        (pathlib.Path(self.folder.name) / "kind.py").write_text(
            "import os; print(os.environ['WEIR_MEMORY'])\n")
        self.assertEqual(self.run_weir("--memory", "plain", "kind.py").stdout, "plain\n")
        wrong = self.run_weir("--memory", "plane", "kind.py")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("WEIR_MEMORY", wrong.stderr)

    def test_arguments_that_mean_nothing_are_refused(self):
        printed = self.run_code(
            "import torch, weir\n"
            "weir.enable('pluggable')\n"
            "def record(path):\n"
            "    with weir.record(path): pass\n"
            "for call in (lambda: weir.trim(-1), lambda: weir.snapshot('a\\0b'),\n"
            "             lambda: record('a\\0b')):\n"
            "    try:\n"
            "        print(call())\n"
            "    except ValueError:\n"
            "        print('refused')\n",
            PYTHONPATH=self.fake_torch(**self.PLUGGABLE), WEIR_DEVICE="sim")
        self.assertEqual(printed.split(), ["refused"] * 3)


if __name__ == "__main__":
    installed.LIBRARY = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
