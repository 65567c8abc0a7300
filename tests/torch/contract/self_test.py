# SPDX-License-Identifier: Apache-2.0
"""The random programs' own tests: what is drawn, whether it is allowed, what becomes of failures.

Needs neither PyTorch nor a GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import generate  # noqa: E402
import program  # noqa: E402
import random_programs  # noqa: E402
import run_programs  # noqa: E402
import shrink  # noqa: E402

PROGRAMS = 200  # of each kind


KINDS = ({}, {"peers": True}, {"collectives": "L1"}, {"collectives": "F"})


def digest(count):
    text = json.dumps([generate.random_program(seed, **kind)
                       for kind in KINDS for seed in range(count)])
    return hashlib.sha256(text.encode()).hexdigest()


def steps_of(text):
    """A program from lines as format_step prints them."""
    steps = []
    for line in filter(None, map(str.strip, text.splitlines())):
        op, *fields = line.split()
        step = {"op": op}
        for field in fields:
            name, _, value = field.partition("=")
            step[name] = int(value) if value.isdigit() else {"True": True, "False": False}.get(value,
                                                                                              value)
        steps.append(step)
    return steps


class Drawing(unittest.TestCase):
    def test_a_seed_draws_one_program(self):
        code = "import self_test; print(self_test.digest(100))"
        found = {subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True,
                                check=True, env={**os.environ, "PYTHONHASHSEED": salt}).stdout
                 for salt in ("1", "2")}
        self.assertEqual(found, {digest(100) + "\n"})

    def test_programs_survive_json(self):
        for seed in range(200):
            drawn = generate.random_program(seed)
            self.assertEqual(json.loads(json.dumps(drawn)), drawn)

    def test_all_programs_are_allowed(self):
        for peers in (False, True):
            for each in generate.short_programs(peers=peers):
                self.assertIsNone(program.check(each["steps"]), each["name"])
        for kind in KINDS:
            for seed in range(PROGRAMS):
                steps = generate.random_program(seed, **kind)["steps"]
                self.assertIsNone(program.check(steps, kind.get("collectives", "L1")), (seed, kind))
                self.assertLessEqual(program.needs_peer(steps), "peers" in kind)

    def test_short_programs_have_every_kind(self):
        names = [each["name"].split("/") for each in generate.short_programs()]
        self.assertGreater(len(names), 1000)
        for at, kinds in ((0, generate.CREATORS), (1, generate.USERS), (4, generate.DISTURBERS),
                          (3, generate.DROPPERS + generate.GRAPH_DROPPERS)):
            self.assertEqual({name[at] for name in names}, set(kinds))

    def test_random_programs_have_every_step(self):
        found = {step["op"] for seed in range(500)
                 for step in generate.random_program(seed)["steps"]}
        of_collectives = {"collective", "work_wait", "work_drop"}
        self.assertEqual(found, set(program.OPS) - of_collectives - {"peer_read"})
        found = {step["op"] for seed in range(500)
                 for step in generate.random_program(seed, peers=True)["steps"]}
        self.assertEqual(found, set(program.OPS) - of_collectives)
        found = [step for seed in range(500)
                 for step in generate.random_program(seed, collectives="F")["steps"]]
        self.assertEqual({step["op"] for step in found}, set(program.OPS) - {"peer_read"})
        for field, values in (("kind", set(program.COLLECTIVES)), ("how", {None, "thread", "future"})):
            self.assertEqual({step.get(field) for step in found if step["op"] == (
                "collective" if field == "kind" else "work_wait")}, values)


# Parts of the programs below.
READ_LATE = """
    alloc tensor=x stream=s0 bytes=4096 value=1
    wait stream=main other=s0
    host_sync stream=s0
    spin stream=main ms=6
    read tensor=x stream=main
"""
GATHERED = """
    alloc tensor=x stream=s0 bytes=4096 value=1
    alloc tensor=y stream=s0 bytes=4096 value=2
    wait stream=main other=s0
    spin stream=main ms=6
    collective kind=all_gather stream=main output=y input=x work=w
"""
ASKED = """
    alloc tensor=z stream=s0 bytes=4096 value=3
"""
READ_BY_PEER = READ_LATE.replace("read", "peer_read").replace("main", "p0") + "drop tensor=x \n "
EXTERNAL = "stream_new stream=e0" + READ_LATE.replace("s0", "e0") + """drop tensor=x
    stream_destroy stream=e0
    stream_new stream=e1
"""
FAILED = """
    capture_begin graph=g stream=s0 synchronize=True
    alloc tensor=x stream=s0 bytes=4096 value=1
    capture_fail graph=g how=item
"""
RAW = "alloc tensor=x stream=s0 bytes=4096 value=1 raw=True \n "
JOINED = "wait stream=s0 other=s1 \n "
OF_S2 = JOINED + "alloc tensor=z stream=s2 bytes=4096 value=3 \n read tensor=z stream=s2"


def captured(early="", late=""):
    return f"""
    capture_begin graph=g stream=s0 synchronize=True
    alloc tensor=x stream=s0 bytes=4096 value=1
    collective kind=all_reduce stream=s0 output=x work=v
    drop tensor=x
    {early}
    alloc tensor=y stream=s0 bytes=4096 value=2
    collective kind=all_reduce stream=s0 output=y work=w
    {late}
    capture_end graph=g
"""


def paused(meanwhile="", joined=JOINED, after=""):
    return f"""
    capture_begin graph=g stream=s0 synchronize=True named=True
    wait stream=s1 other=s0
    alloc tensor=x stream=s1 bytes=4096 value=1
    drop tensor=x
    pool_pause graph=g
    {meanwhile}
    pool_resume graph=g
    alloc tensor=y stream=s0 bytes=4096 value=2
    {joined}
    capture_end graph=g
    {after}
"""


def shared(wait="", again=""):
    return f"""
    capture_begin graph=g stream=s0 synchronize=True
    alloc tensor=x stream=s0 bytes=4096 value=1
    capture_end graph=g
    capture_begin graph=h stream=s0 synchronize=True pool=graph:g
    alloc tensor=y stream=s0 bytes=4096 value=2
    capture_end graph=h
    replay graph=g stream=main
    {wait}
    replay graph=h stream=s1
    read tensor=x stream=s1
    read tensor=y stream=s1
    {again}
"""


LENDS = "pool_new pool=p" + paused("alloc tensor=z stream=s0 bytes=4096 value=3 pool=p")
CAPTURED = """
    capture_begin graph=g stream=s0 synchronize=True
    alloc tensor=x stream=s0 bytes=4096 value=1
    capture_end graph=g
"""
INPUT = """
    alloc tensor=x stream=s1 bytes=4096 value=1
    capture_begin graph=g stream=s0 synchronize=True
    read tensor=x stream=s0
    capture_end graph=g
    write tensor=x stream=s1 value=1
"""
DRAWN = """
    capture_begin graph=h stream=s0 synchronize=True
    dropout tensor=d stream=s0 bytes=4096
    capture_end graph=h
    reference graph=h
"""
DROPOUT = CAPTURED + DRAWN + "replay graph=g stream=s1 \n "


def forked(between, after=""):
    return f"""
    capture_begin graph=g stream=s0 synchronize=True
    wait stream=s1 other=s0
    alloc tensor=x stream=s0 bytes=4096 value=1
    {between}
    read tensor=x stream=s1
    drop tensor=x
    {after}
    alloc tensor=y stream=s0 bytes=4096 value=2
    {JOINED}
    capture_end graph=g
"""


WAIT_W = "work_wait work=w stream=s0"
ORDERED = "wait stream=s1 other=main"

# What a program shows, the level that it needs (None: no level allows it), the program.
CASES = (
    ("waiting before the drop is documented", "L0", READ_LATE + "wait stream=s0 other=main \n drop tensor=x"),
    ("so is recording", "L0", READ_LATE + "record_stream tensor=x stream=main \n drop tensor=x" + ASKED + "empty_cache"),
    ("waiting after the drop is safe with expandable segments", "L2", READ_LATE + """drop tensor=x
        alloc tensor=y stream=s1 bytes=4096 value=2
        wait stream=s0 other=main""" + ASKED),
    ("cudaFree waits in PyTorch's own allocator alone", "L1", READ_LATE + "drop tensor=x \n empty_cache"),
    ("allocating again without a wait is a race", None, READ_LATE + "drop tensor=x" + ASKED),
    ("a pool is apart", "L2", "pool_new pool=p" + READ_LATE + """drop tensor=x
        alloc tensor=y stream=s0 bytes=4096 value=2 pool=p"""),
    ("an external stream may have the handle of an old one", None,
     EXTERNAL + "alloc tensor=y stream=e1 bytes=4096 value=2"),
    ("and waits then", "L1",
     EXTERNAL + "wait stream=e1 other=main \n alloc tensor=y stream=e1 bytes=4096 value=2"),
    ("a write comes after a read elsewhere", None, READ_LATE + "write tensor=x stream=s0 value=2"),
    ("in order", "L0", READ_LATE + "wait stream=s0 other=main \n write tensor=x stream=s0 value=2"),
    ("memory that is not cached has no records", "L2",
     "caching on=False" + READ_LATE + "record_stream tensor=x stream=main \n drop tensor=x"),
    ("a stream is destroyed while it works", None, "stream_new stream=e0 \n spin stream=e0 ms=6 \n stream_destroy stream=e0"),
    # Collectives.
    ("a collective comes after the writes", None, GATHERED.replace("wait stream=main other=s0", "")),
    ("PyTorch keeps tensors of a collective that nobody waits for", "L0",
     GATHERED + "drop tensor=x \n drop tensor=y \n work_drop work=w" + ASKED),
    ("a wait on the tensors' stream is documented", "L0",
     GATHERED + "work_wait work=w stream=s0 \n drop tensor=x" + ASKED),
    ("a wait on another stream needs fences: PyTorch #188655", "F",
     GATHERED + "work_wait work=w stream=main \n drop tensor=x \n drop tensor=y" + ASKED),
    ("and after the drop", "F", GATHERED + "drop tensor=x \n work_wait work=w stream=main" + ASKED),
    ("and by a thread", "F", GATHERED + "drop tensor=x \n work_wait work=w stream=main how=thread" + ASKED),
    ("a future keeps the tensors", "L0",
     GATHERED + "work_wait work=w stream=main how=future \n drop tensor=x" + ASKED),
    ("an output is read after a wait", None, GATHERED + "read tensor=y stream=main"),
    ("that is one", "L0", GATHERED + "work_wait work=w stream=main \n read tensor=y stream=main"),
    ("a capture waits for its last collective", None, captured()),
    ("there", "L0", captured(late=WAIT_W)),
    ("what PyTorch has let go of in it may serve again", "F", captured("work_drop work=v", WAIT_W)),
    ("a Work that is dropped was not waited for", None, captured(late="work_drop work=w")),
    ("one that was may be dropped", "L0", captured("work_wait work=v stream=s0 \n work_drop work=v", WAIT_W)),
    ("a captured collective is waited for in its capture", None, captured(late=WAIT_W) + WAIT_W),
    # Captures.
    ("a pool is paused", "L0", paused(after="replay graph=g stream=main \n read tensor=y stream=main")),
    ("a forked stream joins", None, paused(joined="")),
    ("a paused pool serves nobody", None, paused("alloc tensor=z stream=s0 bytes=4096 value=3")),
    ("a pool is paused at the end of no capture", None, paused(joined=JOINED + "pool_pause graph=g")),
    ("a pool needs more", None, paused(after="pool_holds graph=g most=4096")),
    ("this is enough", "L0", paused(after=f"pool_holds graph=g most={2 * (3 * 4096 + (24 << 20))}")),
    ("a resumed pool serves the thread's other streams", "L0", paused(joined=OF_S2)),
    ("which are not captured with it then", None, paused(
        joined=OF_S2, after="capture_begin graph=h stream=s2 synchronize=True pool=graph:g \n " +
        ASKED.replace("=s0", "=s2").replace("=z", "=q") + "capture_end graph=h")),
    ("a MemPool lends to a capture", "L0", LENDS + "replay graph=g stream=main"),
    ("what is live when that is replayed", None, LENDS + "drop tensor=z \n replay graph=g stream=main"),
    ("a recorded stream is captured in no pause", None, """alloc tensor=r stream=s2 bytes=4096 value=9
        record_stream tensor=r stream=s1""" + paused()),
    ("nor is the captured stream itself", None, """alloc tensor=r stream=s2 bytes=4096 value=9
        record_stream tensor=r stream=s0""" + paused()),
    ("a forked stream waits for what it reads", None, forked("", JOINED)),
    ("and its reads are waited for before memory is used again", None, forked("wait stream=s1 other=s0")),
    ("both", "L0", forked("wait stream=s1 other=s0", JOINED)),
    ("a failed capture leaves its tensors", "L0", FAILED + "write tensor=x stream=s0 value=2 \n read tensor=x stream=s0"),
    ("which nobody has written", None, FAILED + "read tensor=x stream=s0"),
    ("it is not replayed", None, FAILED + "replay graph=g stream=s0"),
    ("nor ended", None, FAILED + "capture_end graph=g"),
    ("its tensors are dropped", "L0", FAILED + "drop tensor=x"),
    ("its pool is captured into no more", None, FAILED + "capture_begin graph=h stream=s0 synchronize=True pool=graph:g"),
    ("nor is a pool that it shared", None, CAPTURED + FAILED.replace("graph=g", "graph=h").replace("=x", "=y").replace(
        "synchronize=True", "synchronize=True pool=graph:g") + CAPTURED.replace("graph=g", "graph=i").replace("=x", "=z").replace(
        "synchronize=True", "synchronize=True pool=graph:g")),
    ("the default stream is not captured", "L0", "capture_refused graph=g stream=main how=default"),
    ("another one is", None, "capture_refused graph=g stream=s0 how=default"),
    ("no random numbers are replayed then", None, DRAWN + "capture_refused graph=r stream=main how=default \n replay graph=h stream=main"),
    ("nor is a reference made", None, DRAWN.replace("reference graph=h", "") +
     "capture_refused graph=r stream=main how=default \n reference graph=h"),
    ("until another capture has ended", "L0", DRAWN + "capture_refused graph=r stream=main how=default" +
     CAPTURED.replace("graph=g", "graph=i") + "replay graph=h stream=s0"),
    ("no library captures", None, "capture_refused graph=g stream=s0 how=raw"),
    ("no capture has the pool", None, "capture_refused graph=g stream=s1 how=pool"),
    ("one has", "L0", paused(joined=JOINED + "capture_refused graph=h stream=s2 how=pool")),
    *((f"beside a library's capture: {between}", level, f"raw_begin stream=s0 \n {between} \n raw_end stream=s0")
      for between, level in (
          ("spin stream=s0 ms=1", "L0"), ("host_sync stream=s0", None), ("wait stream=main other=s0", None),
          ("empty_cache", None), ("alloc tensor=x stream=s0 bytes=4096 value=1", None),
          ("alloc tensor=x stream=s1 bytes=4096 value=1", "L0"), ("capture_refused graph=g stream=s0 how=raw", "L0"))),
    ("replays of a graph are in order", None, CAPTURED + "replay graph=g stream=main \n replay graph=g stream=s1"),
    ("and after the write of what they read", None, INPUT + "replay graph=g stream=main"),
    ("once it is waited for", "L0", INPUT + "wait stream=main other=s1 \n replay graph=g stream=main"),
    ("and, with dropout, after those that write the seed", None, DROPOUT + "replay graph=h stream=s2"),
    ("all of them", "L0", DROPOUT + "wait stream=s2 other=s1 \n replay graph=h stream=s2"),
    ("replays that share a pool are in order", None, shared()),
    ("then", "L0", shared(ORDERED)),
    ("the first graph may use the second one's output", None,
     shared(ORDERED, "replay graph=g stream=s1 \n read tensor=y stream=s1")),
    # Others.
    ("raw memory is dropped", "L0", RAW + "drop tensor=x"),
    ("and recorded on no stream", None, RAW + "record_stream tensor=x stream=s1"),
    ("another GPU's copy is no matter for others", "L2", READ_BY_PEER + ASKED.replace("s0", "s1")),
    ("it is waited for before the memory serves again", None, READ_BY_PEER + ASKED),
    ("and before it is unmapped", None, READ_BY_PEER + "empty_cache"),
    ("in order", "L2", READ_BY_PEER + "wait stream=s0 other=p0 \n empty_cache"),
)


class Rules(unittest.TestCase):
    def test_a_program_needs_its_level(self):
        for what, level, text in CASES:
            with self.subTest(what):
                self.assertEqual(program.needed_level(steps_of(text)), level)


class Shrinking(unittest.TestCase):
    @staticmethod
    def fails(steps):
        """A made-up fault: the cache is emptied after a drop of what another stream read."""
        made, read, dropped = {}, set(), False
        for step in steps:
            if step["op"] == "alloc":
                made[step["tensor"]] = step["stream"]
            elif step["op"] == "read" and made.get(step["tensor"], step["stream"]) != step["stream"]:
                read.add(step["tensor"])
            elif step["op"] == "drop":
                dropped = dropped or step["tensor"] in read
            elif step["op"] == "empty_cache" and dropped:
                return True
        return False

    @staticmethod
    def fails_with_collectives(steps):
        """Another one: a tensor of a collective is dropped, and then the cache is emptied."""
        used, dropped = set(), False
        for step in steps:
            used |= {step[name] for name in ("input", "output") if name in step}
            dropped = dropped or step["op"] == "drop" and step["tensor"] in used
            if dropped and step["op"] == "empty_cache":
                return True
        return False

    def test_what_is_left_fails_and_is_allowed_and_short(self):
        for fails, level, collectives, count, most in ((self.fails, "L1", None, 20, 9),
                                                       (self.fails_with_collectives, "F", "F", 15, 10)):
            def first_failing(candidates):
                self.assertLessEqual(len(candidates), 4)
                for each in candidates:
                    self.assertIsNone(program.check(each, level))
                return next((at for at, each in enumerate(candidates) if fails(each)), None)

            drawn = (generate.random_program(seed, collectives=collectives)["steps"] for seed in range(400))
            found = list(itertools.islice(filter(fails, drawn), count))
            self.assertEqual(len(found), count)
            for steps in found:
                short, _ = shrink.shrink(steps, first_failing, 20, level=level)
                self.assertTrue(fails(short))
                self.assertIsNone(program.check(short, level))
                self.assertLessEqual(len(short), most, program.format_program({"name": "", "steps": short}))


# A child that finds the fault of Shrinking.fails: as wrong data, as a crash, or by hanging.
CHILD = """
import json, os, sys, time
sys.path.insert(0, {here!r})
import self_test
how, fails = {how!r}, self_test.Shrinking.fails
print("READY {{}}", flush=True)
for line in open(sys.argv[1]):
    one = json.loads(line)
    print("BEGIN " + json.dumps({{"name": one["name"]}}), flush=True)
    outcome = "right"
    if fails(one["steps"]) and not os.environ.get("NATIVE"):
        if how == "crash":
            os.abort()
        if how == "hang":
            time.sleep(100)
        outcome = "wrong"
    print("END " + json.dumps({{"name": one["name"], "outcome": outcome, "message": "m"}}), flush=True)
print("DONE {{}}", flush=True)
"""


class Driving(unittest.TestCase):
    def search(self, how, count):
        with tempfile.TemporaryDirectory() as folder:
            child = pathlib.Path(folder, "child.py")
            child.write_text(CHILD.format(here=str(HERE), how=how))
            options = types.SimpleNamespace(
                seconds=300, way="weir", settings={}, batch=20, jobs=2, failures=1, shrink_seconds=200,
                shrink_jobs=4, json=pathlib.Path(folder, "found.json"), world=1, collectives=None)

            def command(way, arguments):
                return [sys.executable, "-u", *arguments]

            def environment(way, extra=None):
                return {**os.environ, **({"NATIVE": "1"} if way == "native" else {})}

            patch = unittest.mock.patch
            with patch.object(random_programs, "EXECUTE", str(child)), \
                    patch.object(random_programs, "PROGRAM_SECONDS", 3), \
                    patch.object(random_programs.ways, "command", command), \
                    patch.object(random_programs.ways, "environment", environment), \
                    contextlib.redirect_stdout(io.StringIO()) as said:
                programs = [generate.random_program(seed) for seed in range(count)]
                search = random_programs.Search(options, programs)
                status = search.run()
            found = json.loads(options.json.read_text())
        expected = {p["name"] for p in programs if Shrinking.fails(p["steps"])}
        self.assertTrue(expected)
        self.assertEqual({failure["name"] for failure in found["failures"]}, expected, said.getvalue())
        self.assertEqual((sum(search.counts.values()), status), (count, 1))
        shorter = [failure for failure in found["failures"] if "shorter" in failure]
        self.assertEqual(len(shorter), 1)
        self.assertEqual(shorter[0]["native"], "right")
        self.assertLessEqual(len(shorter[0]["shorter"]["steps"]), 12)
        self.assertIn("needs level", said.getvalue())

    def test_wrong_data_is_found_and_made_shorter(self):
        self.search("wrong", 40)

    def test_a_crash_loses_one_program(self):
        self.search("crash", 20)

    def test_a_hang_is_a_failure(self):
        options = types.SimpleNamespace(way="native", settings={}, world=1)
        with tempfile.TemporaryDirectory() as folder:
            child = pathlib.Path(folder, "child.py")
            child.write_text(CHILD.format(here=str(HERE), how="hang"))
            drawn = next(p for p in map(generate.random_program, range(400))
                         if Shrinking.fails(p["steps"]))
            with unittest.mock.patch.object(random_programs, "EXECUTE", str(child)), \
                    unittest.mock.patch.object(random_programs, "PROGRAM_SECONDS", 2):
                (_, outcome, _), = random_programs.run_child([drawn], options)
        self.assertEqual(outcome, "hang")


class Executing(unittest.TestCase):
    def test_every_step_has_what_it_needs(self):
        """With a PyTorch that does nothing: names, orders of steps and leftovers."""
        fake = unittest.mock.MagicMock()
        fake.cuda.OutOfMemoryError = fake.OutOfMemoryError = MemoryError
        tensor = fake.empty.return_value
        tensor.numel.return_value, tensor.data_ptr.return_value = 4, 4096
        tensor.clone.return_value = fake.nn.functional.dropout.return_value = tensor
        with unittest.mock.patch.dict(sys.modules, {"torch": fake}):
            import execute
        machine = types.SimpleNamespace(
            cuda=unittest.mock.MagicMock(), total=1 << 37, row=lambda number: number,
            errors=unittest.mock.MagicMock(), kept=[], may_stay=0,
            peer=unittest.mock.MagicMock(streams={name: unittest.mock.MagicMock()
                                                  for name in program.PEERS}),
            ranks=execute.Ranks(has_collectives=False),
            streams={name: unittest.mock.MagicMock() for name in
                     (program.MAIN, *program.SIDE, *program.THREAD)})
        machine.cuda.capture_end.return_value = unittest.mock.ANY
        patch = unittest.mock.patch.object(execute.Execution, "_expect_error")
        patch.start()  # nothing fails here
        self.addCleanup(patch.stop)
        fake.cuda.memory_snapshot.return_value = []
        fake.cuda.caching_allocator_alloc.return_value = 4096
        drawn = [generate.random_program(seed, **kind) for kind in KINDS for seed in range(60)]
        for each in [*drawn, *list(generate.short_programs())[:150]]:
            execution = execute.Execution(machine)
            execution.run(each["steps"])
            execution.end()
            self.assertEqual((execution.problems, execution.capture), ([], None))
            live = [step["tensor"] for step in each["steps"] if step["op"] in ("alloc", "dropout")]
            for step in each["steps"]:
                if step["op"] == "drop":
                    live.remove(step["tensor"])
            self.assertEqual(list(execution.tensors), live)
            execution.forget()


class Outcomes(unittest.TestCase):
    def test_the_programs_are_listed_without_a_gpu(self):
        said = subprocess.run([sys.executable, str(HERE / "programs.py"), "--list"], check=True,
                              capture_output=True, text=True).stdout
        listed = {line.split()[0].split("-")[0] for line in said.splitlines()}
        self.assertLessEqual({"1g", "1i", "2", "3a", "16", "23"}, listed)

    def test_of_a_process(self):
        outcome = run_programs.outcome_of
        right = 'RESULT {"outcome": "right", "message": ""}\n'
        wrong = 'RESULT {"outcome": "wrong", "message": "3, not 4"}\n'
        lost = 'RESULT {"outcome": "error", "message": "CUDA error: an illegal memory access"}\n'
        cannot = 'RESULT {"outcome": "unsupported", "message": ""}\n'
        self.assertEqual(outcome(0, "trial\n" + right, False), ("right", ""))
        self.assertEqual(outcome(1, wrong, False), ("WRONG", "3, not 4"))
        self.assertEqual(outcome(1, lost, False)[0], "crash")
        self.assertEqual(outcome(1, cannot, False)[0], "no")
        self.assertEqual(outcome(-11, "", False), ("crash", "SIGSEGV: "))
        self.assertEqual(outcome(-6, right, False)[0], "crash")
        self.assertEqual(outcome(1, "no torch", False), ("error", "exit 1: no torch"))
        self.assertEqual(outcome(-9, "trial 1", True), ("hang", "trial 1"))


if __name__ == "__main__":
    unittest.main()
