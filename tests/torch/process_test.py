# SPDX-License-Identifier: Apache-2.0
"""Python's stacks in recordings, and how processes end, on the simulated device: neither a GPU nor
PyTorch is needed.

usage: process_test.py LIBRARY PROBE TOOL   (libweir_pluggable.so, the library of
process_probe.c, the command weir)
"""

import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

LIBRARY = PROBE = TOOL = ""

# What every program begins with. `allocate` lets go of Python's lock, as PyTorch's functions do;
# `allocate_locked` keeps it.
PRELUDE = """
import atexit, ctypes, gc, os, sys, threading
LIBRARY, PROBE, FILE = sys.argv[1:]
library = ctypes.CDLL(LIBRARY)
locked = ctypes.PyDLL(LIBRARY)
probe = ctypes.PyDLL(PROBE)
def check(status):
    assert status == 0, ctypes.string_at(library.weir_last_error())
for each in (library, locked):
    each.weir_torch_malloc.restype = ctypes.c_void_p
    each.weir_torch_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    each.weir_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    each.weir_torch_free.restype = None
library.weir_last_error.restype = ctypes.c_void_p
library.weir_torch_allocator.restype = ctypes.c_void_p
handle = ctypes.c_void_p(library.weir_torch_allocator())
atexit.register(library.weir_python_ends)
stream = ctypes.c_void_p()
check(library.weir_sim_new_stream(handle, 0, ctypes.byref(stream)))
def allocate(size=4096):
    return library.weir_torch_malloc(size, 0, stream)
def allocate_locked(size=4096):
    return locked.weir_torch_malloc(size, 0, stream)
def free(block, size=4096):
    library.weir_torch_free(block, size, 0, stream)
def start(stacks=b"python"):
    check(library.weir_record_start_with(handle, FILE.encode(), stacks))
def stop():
    check(library.weir_record_stop(handle))
probe.probe_with_pending_exception.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
probe.probe_in_foreign_thread.restype = ctypes.c_void_p
probe.probe_in_foreign_thread.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
probe.probe_counts.restype = ctypes.c_long
probe.probe_counts.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
malloc = ctypes.cast(library.weir_torch_malloc, ctypes.c_void_p)
# ---
"""


class Programs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.recording = os.path.join(self.folder.name, "run.weir")
        self.program = os.path.join(self.folder.name, "program.py")

    def run_program(self, code, **environment):
        """Silent and 0, or the test fails. Returns what it printed."""
        pathlib.Path(self.program).write_text(PRELUDE + textwrap.dedent(code))
        environment.setdefault("WEIR_DEVICE", "sim")
        result = subprocess.run(
            [sys.executable, self.program, LIBRARY, PROBE, self.recording], capture_output=True,
            text=True, timeout=60, env={"PATH": os.environ["PATH"], **environment})
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def stacks(self):
        """Of each block in the recording, in order of allocation."""
        out = os.path.join(self.folder.name, "run.csv")
        subprocess.run([TOOL, "timeline", self.recording, "--paths", "full", "--to", "csv", "-o", out], check=True,
                       capture_output=True)
        with open(out, newline="") as file:
            return [row["stack"] for row in csv.DictReader(file)]

    def line_of(self, text):
        lines = pathlib.Path(self.program).read_text().splitlines()
        return next(i for i, line in enumerate(lines, 1) if text in line and i > PRELUDE.count("\n"))


@unittest.skipIf(sys.version_info < (3, 9), "this Python's frames can't be walked")
class PythonStacks(Programs):
    def test_functions_files_and_lines_are_recorded_innermost_first(self):
        for call in ("allocate", "allocate_locked"):
            with self.subTest(call):
                self.run_program(f"""
                    class Layer:
                        def forward(self):
                            return {call}()  # here
                    def train():
                        return Layer().forward()  # there
                    start()
                    train()
                    stop()
                    """)
                [stack] = self.stacks()
                frames = stack.split(" < ")
                qualified = "Layer.forward" if sys.version_info >= (3, 11) else "forward"
                self.assertTrue(frames[0].startswith(f"{call} ({self.program}:"), frames)
                self.assertEqual(frames[1:3], [
                    f"{qualified} ({self.program}:{self.line_of('# here')})",
                    f"train ({self.program}:{self.line_of('# there')})"])
                self.assertTrue(frames[3].startswith(f"<module> ({self.program}:"), frames)
                self.assertEqual(len(frames), 4)

    def test_the_setting_records_them_from_the_beginning(self):
        self.run_program("""
            def begin():
                allocate()
            begin()
            """, WEIR_RECORD=self.recording, WEIR_RECORD_STACKS="python")
        [stack] = self.stacks()
        self.assertIn(f" < begin ({self.program}:", stack)

    def test_none_asks_nobody_and_a_wrong_kind_is_named(self):
        printed = self.run_program("""
            start(b"none")
            allocate()
            stop()
            assert library.weir_record_start_with(handle, FILE.encode(), b"perl") != 0
            print(ctypes.string_at(library.weir_last_error()).decode())
            """, WEIR_RECORD_STACKS="python")
        self.assertEqual(self.stacks(), [""])
        self.assertIn('"python", and not "perl"', printed)

    def test_lines_of_one_function_are_told_apart(self):
        self.run_program("""
            def twice():
                allocate()  # first
                allocate()  # second
            start()
            for i in range(50):
                twice()
            stop()
            """)
        found = [stack.split(" < ")[1] for stack in self.stacks()]
        expected = [f"twice ({self.program}:{self.line_of(mark)})" for mark in ("# first", "# second")]
        self.assertEqual(found, expected * 50)

    def test_code_that_is_gone_lends_its_name_to_no_other(self):
        self.run_program("""
            start()
            for i in range(300):
                names = {"allocate": allocate}
                exec(compile(f"def made_{i}():\\n  allocate()\\n", "made", "exec"), names)
                names[f"made_{i}"]()
                del names
                gc.collect(0)
            stop()
            """)
        self.assertEqual([stack.split(" < ")[1] for stack in self.stacks()],
                         [f"made_{i} (made:2)" for i in range(300)])

    def test_deep_stacks_keep_what_is_innermost(self):
        self.run_program("""
            def deep(n):
                return deep(n - 1) if n else allocate()
            start()
            deep(500)
            stop()
            """)
        [stack] = self.stacks()
        self.assertEqual(len(stack.split(" < ")), 128)
        self.assertTrue(stack.startswith("allocate ("))

    def test_names_that_are_no_unicode_are_escaped(self):
        self.run_program("""
            start()
            exec(compile("allocate()", "odd\\udc80.py", "exec"))
            stop()
            """)
        self.assertIn("odd\\udc80.py", self.stacks()[0])

    def test_a_pending_exception_stays_pending(self):
        self.run_program("""
            start()
            for i in range(2):  # what is seen first is named, what is known is not
                try:
                    probe.probe_with_pending_exception(malloc, stream)
                except ValueError as error:
                    assert str(error) == "pending"
                else:
                    raise AssertionError("the exception is lost")
            stop()
            """)
        self.assertEqual([stack.startswith("<module> (") for stack in self.stacks()], [True, True])

    def test_no_python_code_runs_meanwhile(self):
        self.run_program("""
            finalized = (ctypes.c_long * 1)()
            class Garbage:
                def __init__(self):
                    self.me = self
                def __del__(self):
                    finalized[0] += 1
            def deep(n):
                if n:
                    return deep(n - 1)
                for i in range(20):
                    Garbage()
                return probe.probe_counts(malloc, stream, finalized)
            start()
            gc.disable()
            for i in range(10):
                gc.set_threshold(1, 1, 1)
                ran = deep(100 + i)
                assert ran == 0, ran
            assert not gc.isenabled()
            gc.enable()
            gc.set_threshold(25, 10, 10)
            ran = [deep(100 + i) for i in range(50)]
            assert ran == [0] * 50, ran
            assert gc.isenabled()
            gc.collect()
            assert finalized[0] == 60 * 20
            stop()
            """)

    def test_a_thread_without_python_has_cpp_stacks_and_needs_no_lock(self):
        self.run_program("""
            start()
            assert probe.probe_in_foreign_thread(malloc, stream)
            stop()
            """)
        [stack] = self.stacks()
        self.assertNotIn(self.program, stack)
        self.assertIn("weir_torch_malloc", stack)

    def test_threads_record_their_own_stacks(self):
        self.run_program("""
            def worker(call):
                for i in range(300):
                    free(call())
            def one(): worker(allocate)
            def two(): worker(allocate_locked)
            start()
            threads = [threading.Thread(target=each) for each in (one, two) * 2]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            stop()
            """)
        stacks = self.stacks()
        self.assertEqual(len(stacks), 1200)
        self.assertEqual(sum("< worker" in each and "< one (" in each for each in stacks), 600)
        self.assertEqual(sum("< worker" in each and "< two (" in each for each in stacks), 600)

    def test_once_python_ends_its_lock_is_not_taken(self):
        self.run_program("""
            start()
            library.weir_python_ends()
            allocate()
            allocate_locked()  # whoever has the lock need not wait for it
            stop()
            """)
        without, with_lock = self.stacks()
        self.assertNotIn(self.program, without)
        self.assertIn(self.program, with_lock)

    def test_the_interpreter_ends_while_threads_record(self):
        for call in ("allocate", "allocate_locked"):
            with self.subTest(call):
                self.run_program(f"""
                    begun = threading.Barrier(5)
                    def worker():
                        begun.wait()
                        while True:
                            free({call}())
                    start()
                    for i in range(4):
                        threading.Thread(target=worker, daemon=True).start()
                    begun.wait()
                    """)

    def test_a_child_of_fork_ends_while_the_parent_records(self):
        self.run_program("""
            def worker():
                while not over:
                    free(allocate())
            over = []
            start()
            threads = [threading.Thread(target=worker) for i in range(3)]
            for thread in threads: thread.start()
            import warnings; warnings.simplefilter("ignore")
            children = []
            for i in range(10):
                child = os.fork()
                if child == 0:
                    os._exit(0)
                children.append(os.waitpid(child, 0)[1])
            over.append(True)
            for thread in threads: thread.join()
            child = os.fork()
            if child == 0:
                sys.exit(0)  # as a child that knows nothing of Weir ends
            children.append(os.waitpid(child, 0)[1])
            assert children == [0] * 11, children
            allocate()
            stop()
            """)
        self.assertIn("<module>", self.stacks()[-1])


class Ends(Programs):
    """Of a process, and of its children, while memory is in use."""

    def test_a_process_that_ends_with_live_blocks_is_silent(self):
        self.run_program("""
            class Tensor:
                def __init__(self): self.block = allocate()
                def __del__(self): library.weir_torch_free(self.block, 4096, 0, stream)
            kept = [Tensor() for i in range(100)]
            library.kept = Tensor()
            threading.local().kept = Tensor()
            """)

    def test_what_is_freed_by_exit_handlers_is_passed_over(self):
        # The handler was there before Weir used memory, and so runs when Weir has ended. What is no
        # block would be an error otherwise, and not silent.
        self.run_program("""
            probe.probe_at_exit.argtypes = [ctypes.c_void_p] * 3
            probe.probe_at_exit(ctypes.cast(library.weir_torch_free, ctypes.c_void_p), 4096, stream)
            allocate()
            """)

    def test_children_free_what_they_inherit_whatever_threads_held_at_the_fork(self):
        self.run_program("""
            import signal, warnings
            warnings.simplefilter("ignore")
            over = []
            def worker():
                while not over:
                    for block in [allocate(size) for size in (4096, 1 << 20, 5 << 20)]:
                        free(block)
            inherited = [allocate() for i in range(10)]
            threads = [threading.Thread(target=worker) for i in range(3)]
            for thread in threads: thread.start()
            ended = []
            for i in range(100):
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    for block in inherited:
                        free(block)
                    os._exit(0)
                ended.append(os.waitpid(child, 0)[1])
            over.append(True)
            for thread in threads: thread.join()
            assert ended == [0] * 100, ended
            """)

    def test_children_do_nothing_else_either_and_are_refused_new_memory(self):
        self.run_program("""
            import signal, warnings
            warnings.simplefilter("ignore")
            class PoolId(ctypes.Structure):
                _fields_ = [("first", ctypes.c_ulonglong), ("second", ctypes.c_ulonglong)]
            pool = PoolId(0, 7)
            library.weir_torch_base_allocation.restype = ctypes.c_void_p
            library.weir_torch_memory_fraction.argtypes = [ctypes.c_double, ctypes.c_int]
            over = []
            def worker():
                while not over:
                    block = allocate(5 << 20)
                    library.weir_torch_record_stream(ctypes.c_void_p(block), None)
                    free(block, 5 << 20)
            block = ctypes.c_void_p(allocate())
            threads = [threading.Thread(target=worker) for i in range(3)]
            for thread in threads: thread.start()
            ended = []
            for i in range(60):
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    library.weir_torch_record_stream(block, stream)
                    library.weir_torch_base_allocation(block, None)
                    library.weir_torch_end_allocate_to_pool(0, pool)
                    library.weir_torch_release_pool(0, pool)
                    library.weir_torch_memory_fraction(0.5, 0)
                    library.weir_torch_reset()
                    library.weir_torch_init(1)
                    os._exit(0)
                ended.append(os.waitpid(child, 0)[1])
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                allocate()  # throws what ctypes can't pass on
                os._exit(0)
            refused = os.waitpid(child, 0)[1]
            over.append(True)
            for thread in threads: thread.join()
            assert ended == [0] * 60, ended
            assert os.WIFSIGNALED(refused) and os.WTERMSIG(refused) == signal.SIGABRT, refused
            """)

    def test_a_child_ends_though_its_parent_was_opening_a_recording(self):
        os.mkfifo(self.recording)  # opening it blocks until somebody reads
        self.run_program("""
            import signal, time, warnings
            warnings.simplefilter("ignore")
            block = allocate()
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.3)
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                sys.exit(0)  # through all exit handlers
            ended = os.waitpid(child, 0)[1]
            os._exit(0 if ended == 0 else 1)  # its own would wait for the fifo
            """, WEIR_RECORD=self.recording, WEIR_RECORD_SIGNAL="USR1")

    def test_a_child_of_a_parent_that_used_no_memory_uses_it(self):
        self.run_program("""
            child = os.fork()
            if child == 0:
                numbers = (ctypes.c_uint64 * 32)()
                numbers[0] = ctypes.sizeof(numbers)
                block = allocate(1 << 20)
                check(library.weir_statistics(handle, 0, numbers))
                assert numbers[3] == 1 << 20, list(numbers)
                free(block, 1 << 20)
                check(library.weir_statistics(handle, 0, numbers))
                assert numbers[3] == 0, list(numbers)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            """)


if __name__ == "__main__":
    LIBRARY, PROBE, TOOL = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
    unittest.main(verbosity=2)
