# SPDX-License-Identifier: Apache-2.0
"""bench/scenarios/run where there is no GPU, and often no PyTorch: errors, tables."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE, SCENARIOS = ROOT / "allocator" / "torch", ROOT / "bench" / "scenarios"
RUN = os.fspath(SCENARIOS / "run")
sys.path[:0] = [os.fspath(PACKAGE), os.fspath(SCENARIOS)]
sys.dont_write_bytecode = True

_loader = importlib.machinery.SourceFileLoader("run", RUN)
scenarios = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", _loader))
_loader.exec_module(scenarios)

# As far as the tests need it: enough for weir.enable() to look for the backend.
TORCH = """\
import types
version = types.SimpleNamespace(cuda="13.0")
__version__ = "9.9"
cuda = types.SimpleNamespace(is_initialized=lambda: False)
"""


def rows_of(name, **figures):
    """A row for each case of a scenario, all with the same figures."""
    return [{**case, **figures} for case in scenarios.SCENARIOS[name].CASES]


class Command(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def with_torch(self):
        (pathlib.Path(self.folder.name) / "torch.py").write_text(TORCH)

    def python(self, *arguments):
        """With the package, no GPU, and the PyTorch of the test's folder, if there is one."""
        path = os.pathsep.join([self.folder.name, os.fspath(PACKAGE)])
        return subprocess.run(
            [sys.executable, "-S", *arguments], capture_output=True, text=True, timeout=60,
            cwd=self.folder.name, env={"PATH": os.environ["PATH"], "PYTHONPATH": path,
                                       "CUDA_VISIBLE_DEVICES": "-1",
                                       "PYTHONDONTWRITEBYTECODE": "1"})

    def test_without_torch_it_says_what_to_install(self):
        result = self.python(RUN, "b")
        self.assertEqual(result.returncode, 1)
        self.assertIn("weir: scenario B compares PyTorch's allocator with Weir", result.stderr)
        self.assertIn("pip install torch", result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    def test_without_a_gpu_it_says_so_with_the_remedy(self):
        self.with_torch()
        for name in scenarios.SCENARIOS:
            result = self.python(RUN, name)
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"scenario {name} needs a GPU", result.stderr)
            self.assertIn("weir replay", result.stderr)
            self.assertNotIn("Traceback", result.stderr)

    def test_a_case_that_fails_is_a_row_and_fails_the_command_if_it_is_weirs(self):
        self.with_torch()
        result = self.python("-c", "import runpy, sys\n"
                             f"sys.path.insert(0, {os.fspath(SCENARIOS)!r})\n"
                             f"scenarios = runpy.run_path({RUN!r})\n"
                             "scenarios['run'].__globals__['gpus'] = lambda: 1\n"
                             "sys.exit(scenarios['run']('B', 'rows.json'))\n")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("FAILED Weir, no warm-up: weir: this Weir has no backend for PyTorch",
                      result.stdout)
        self.assertIn("FAILED native, no warm-up: ", result.stdout)
        report = json.loads((pathlib.Path(self.folder.name) / "rows.json").read_text())
        self.assertEqual((report["scenario"], report["gpus"]), ("B", 1))
        self.assertEqual([row["warm_up"] for row in report["rows"]],
                         ["none", "none", "capture", "capture", "current", "current"])
        self.assertTrue(all("error" in row for row in report["rows"]))


class Report(unittest.TestCase):
    def test_a_file_that_cannot_be_written_is_said_before_anything_runs(self):
        with unittest.mock.patch.object(scenarios, "require", lambda name: 1), \
                unittest.mock.patch.object(scenarios, "run_case") as run_case:
            with self.assertRaisesRegex(scenarios.Problem, "--json=/none/x: there is no folder /none"):
                scenarios.run("B", "/none/x")
        run_case.assert_not_called()

    def test_b_names_a_replay_that_was_not_exact(self):
        rows = rows_of("B", own_peak=1, pool_bytes=1, ratio=1.0, exact=5, replays=5)
        rows[1].update(exact=4)
        self.assertIn("WRONG DATA: Weir, no warm-up", scenarios.report("B", rows))

    def test_c_says_that_the_sides_have_different_data(self):
        rows = rows_of("C", beyond_bytes=1, ms=7.0, pictures_alike=True, data_alike=True, ranks=2,
                       data="abcd")
        rows[0].update(data="no all-reduce")
        self.assertFalse(any("WRONG" in line for line in scenarios.report("C", rows)))
        rows[4].update(data="other")
        self.assertIn("WRONG DATA: the cases with all-reduces do not agree",
                      scenarios.report("C", rows))

if __name__ == "__main__":
    unittest.main(verbosity=2)
