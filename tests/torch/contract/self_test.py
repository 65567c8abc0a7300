# SPDX-License-Identifier: Apache-2.0
"""The random programs' own tests: what is drawn, whether it is allowed, what becomes of failures.

usage: self_test.py [--programs N]      needs neither PyTorch nor a GPU
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import pathlib
import random
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
import soak  # noqa: E402

PROGRAMS = 20_000


class Race(Exception):
    pass


class Recheck:
    """The rules of level L1 once more, over sets of operations in place of vector clocks.

    Each operation on a stream is a bit; `before[stream]` has the bits of all that comes before the next
    operation there. Knows nothing of what a generator may do, only what must be ordered.
    """

    def __init__(self, fences=False):
        self.fences = fences  # of collectives
        self.works = {}
        self.count = 0
        self.everything = 0
        self.host = 0
        self.before = {}
        self.tensors = {}
        self.freed = {}  # by owner and pool: bits that must come before the memory's next use
        self.graphs = {}
        self.memories = []
        self.open = None
        self.seeds = None
        self.caching = True

    def operation(self, stream):
        bit = 1 << self.count
        self.count += 1
        self.everything |= bit
        self.before[stream] = self.at(stream) | bit
        return bit

    def at(self, stream):
        return self.before.get(stream, 0) | self.host

    def ordered(self, stream, bits, what):
        if bits & ~self.at(stream):
            raise Race(what)

    @staticmethod
    def key(stream, pool):
        return ("e" if stream[0] == "e" else stream), pool

    def run(self, steps):
        for number, step in enumerate(steps):
            try:
                getattr(self, step["op"])(types.SimpleNamespace(pool=None, **step) if "pool" not in step
                                          else types.SimpleNamespace(**step))
            except Race as race:
                raise Race(f"step {number}, {step}: {race}") from None

    def captured(self, stream):
        return self.open is not None and self.open["stream"] == stream

    def alloc(self, step):
        tensor = {"stream": step.stream, "pool": step.pool, "write": 0, "uses": [], "recorded": set(),
                  "graph": None, "cached": self.caching}
        self.tensors[step.tensor] = tensor
        if self.captured(step.stream):
            tensor["graph"] = self.open
            self.open["own"].append(step.tensor)
            return
        if self.caching:
            self.ordered(step.stream, self.freed.get(self.key(step.stream, step.pool), 0), "reuse")
        tensor["write"] = self.operation(step.stream)
        tensor["uses"].append((step.stream, tensor["write"]))

    def dropout(self, step):
        self.alloc(step)
        self.open["dropout"] = True

    def read(self, step, write=False):
        tensor = self.tensors[step.tensor]
        if self.captured(step.stream):
            self.captured_use(tensor, write)
            if tensor["graph"] is None:
                self.open["inputs"].append(step.tensor)
            return
        if tensor["graph"] is not None and not tensor["write"]:
            raise Race("an output that no replay has written, or that another graph overwrote")
        self.ordered(step.stream, tensor["write"], "a read before the write")
        if write:
            for _, bit in tensor["uses"]:
                self.ordered(step.stream, bit, "a write beside another use")
        bit = self.operation(step.stream)
        tensor["uses"].append((step.stream, bit))
        if write:
            tensor["write"] = bit
        if tensor["graph"] is not None:
            tensor["graph"]["memory"]["accesses"] |= bit

    def write(self, step):
        self.read(step, write=True)

    def spin(self, step):
        if not self.captured(step.stream):
            self.operation(step.stream)

    def wait(self, step):
        self.before[step.stream] = self.at(step.stream) | self.at(step.other)

    def record_stream(self, step):
        self.tensors[step.tensor]["recorded"].add(step.stream)

    def drop(self, step):
        tensor = self.tensors[step.tensor]
        tensor["dead"] = True
        if tensor["graph"] is None and tensor["cached"]:
            key = self.key(tensor["stream"], tensor["pool"])
            for stream, bit in tensor["uses"]:
                own = stream == tensor["stream"] and key[0] != "e"
                if not own and stream not in tensor["recorded"] and stream != "comm":
                    self.freed[key] = self.freed.get(key, 0) | bit
            self.give_back(tensor)

    # Collectives. PyTorch keeps a tensor while a Work of it is "kept"; then its memory serves again.

    def give_back(self, tensor):
        kept = any(work["kept"] for work in self.works.values()
                   if any(each is tensor for each in work["tensors"]))
        if tensor.get("dead") and tensor["graph"] is None and tensor["cached"] and not (
                kept or self.fences):
            key = self.key(tensor["stream"], tensor["pool"])
            for stream, bit in tensor["uses"]:
                if stream == "comm":
                    self.freed[key] = self.freed.get(key, 0) | bit

    def captured_use(self, tensor, write):
        """On the captured stream, which has waited for the collectives in `open["seen"]`."""
        for bit, written in tensor.get("captured", ()):
            if (write or written) and bit & self.open["comm"] & ~self.open["seen"]:
                raise Race("a captured use beside a collective")

    def collective(self, step):
        output = self.tensors[step.output]
        source = self.tensors[getattr(step, "input", step.output)]
        asynchronous = hasattr(step, "work")
        work = {"tensors": [output, source], "kept": True, "graph": None}
        if self.captured(step.stream):
            if source["graph"] is None:
                self.open["inputs"].append(step.input)
            if asynchronous:
                bit = 1 << self.count
                self.count += 1
                self.open["comm"] |= bit
                work |= {"graph": self.open, "bits": self.open["comm"], "bit": bit}
                output.setdefault("captured", []).append((bit, True))
                source.setdefault("captured", []).append((bit, False))
            else:
                self.captured_use(source, False)
                self.captured_use(output, True)
        else:
            if asynchronous:
                if self.open is not None and self.open["comm"]:
                    raise Race("the communication stream is captured")
                self.before["comm"] = self.at("comm") | self.at(step.stream)
            stream = "comm" if asynchronous else step.stream
            if source["graph"] is not None and not source["write"]:
                raise Race("an output that no replay has written")
            self.ordered(stream, source["write"] | output["write"], "a collective before the write")
            for _, bit in output["uses"]:
                self.ordered(stream, bit, "a collective's output beside another use")
            bit = self.operation(stream)
            for tensor in (output, source):
                tensor["uses"].append((stream, bit))
            output["write"] = bit
            if source["graph"] is not None:
                source["graph"]["memory"]["accesses"] |= bit
            work["bits"] = self.before[stream]
        if asynchronous:
            self.works[step.work] = work

    def work_wait(self, step):
        work = self.works[step.work]
        if work["graph"] is not None:
            if work["graph"] is not self.open or step.stream != self.open["stream"]:
                raise Race("a captured event outside")
            self.open["seen"] |= work["bits"]
        else:
            if self.captured(step.stream):
                raise Race("an event of outside in a capture")
            self.before[step.stream] = self.at(step.stream) | work["bits"]
        if getattr(step, "how", "") != "future":
            self.let_go(work)

    def let_go(self, work):
        work["kept"] = False
        for tensor in work["tensors"]:
            self.give_back(tensor)

    def work_drop(self, step):
        work = self.works[step.work]
        if work["graph"] is not None:
            if work["graph"] is self.open and work["bit"] & ~self.open["seen"] and not self.fences:
                raise Race("a capture uses the memory again that its collective uses")
            self.let_go(work)

    def host_sync(self, step):
        self.host |= self.at(step.stream)

    def device_sync(self, _):
        self.host |= self.everything

    def nothing(self, _):
        pass

    empty_cache = limit = pool_new = pool_drop = stream_new = nothing

    def caching_(self, step):
        self.caching = step.on

    def stream_destroy(self, step):
        if self.before.get(step.stream, 0) & ~self.host:
            raise Race("a stream is destroyed while it works")
        if any(step.stream in t["recorded"] for t in self.tensors.values() if not t.get("dead")):
            raise Race("a recorded stream is destroyed")

    def capture_begin(self, step):
        if step.synchronize:
            self.device_sync(step)
        kind, _, of = (step.pool or "").partition(":")
        memory = None
        if kind == "graph":
            memory = self.graphs[of]["memory"]
        elif kind == "pool":
            memory = next((m for m in self.memories if m["pool"] == of), None)
        if memory is None:
            memory = {"pool": of, "accesses": 0, "graphs": []}
            self.memories.append(memory)
        if self.seeds is None:
            self.ordered(step.stream, self.freed.get(self.key(step.stream, None), 0), "seeds reuse")
        else:
            self.ordered(step.stream, self.seeds["born"] | self.seeds["read"], "seeds rewritten")
        before = self.at(step.stream)
        bit = self.operation(step.stream)
        if self.seeds is None:
            self.seeds = {"stream": step.stream, "born": before, "uses": [], "read": 0, "graphs": set()}
        self.seeds["graphs"].add(step.graph)
        self.seeds["uses"].append((step.stream, bit))
        self.open = {"stream": step.stream, "memory": memory, "own": [], "inputs": [], "began": before,
                     "dropout": False, "comm": 0, "seen": 0}
        memory["graphs"].append(self.open)
        self.graphs[step.graph] = self.open

    def capture_end(self, _):
        if self.open["comm"] & ~self.open["seen"]:
            raise Race("the communication stream has not joined")
        self.open = None

    def reference(self, step):
        self.device_sync(step)
        self.replay(types.SimpleNamespace(graph=step.graph, stream="main"))
        self.device_sync(step)

    def replay(self, step):
        graph = self.graphs[step.graph]
        memory = graph["memory"]
        seeds = sum({bit for _, bit in self.seeds["uses"]}) if graph["dropout"] else self.seeds["read"]
        self.ordered(step.stream, memory["accesses"] | graph["began"] | self.seeds["born"], "replay")
        self.ordered(step.stream, seeds, "the seed is in use")
        for name in graph["inputs"]:
            if self.tensors[name].get("dead"):
                raise Race("a replay reads what was dropped")
            self.ordered(step.stream, self.tensors[name]["write"], "an input is not written yet")
        bit = self.operation(step.stream)
        memory["accesses"] |= bit
        self.seeds["uses"].append((step.stream, bit))
        if graph["dropout"]:
            self.seeds["read"] |= bit
        for name in graph["inputs"]:
            self.tensors[name]["uses"].append((step.stream, bit))
        later = memory["graphs"][memory["graphs"].index(graph) + 1:]
        for name in [name for each in later for name in each["own"]]:
            self.tensors[name]["write"] = 0
        for name in graph["own"]:
            self.tensors[name]["write"] = bit

    def graph_drop(self, step):
        self.seeds["graphs"].discard(step.graph)
        if not self.seeds["graphs"]:
            key = self.key(self.seeds["stream"], None)
            for stream, bit in self.seeds["uses"]:
                if stream != self.seeds["stream"]:
                    self.freed[key] = self.freed.get(key, 0) | bit
            self.seeds = None

    def thread(self, step):
        Recheck().run(step.steps)


def recheck(steps, fences=False):
    """Why the program is not allowed; None if it is."""
    steps = [{**step, "op": "caching_"} if step["op"] == "caching" else step for step in steps]
    try:
        Recheck(fences).run(steps)
    except Race as race:
        return str(race)
    return None


def digest(count):
    text = json.dumps([generate.random_program(seed, collectives=collectives)
                       for collectives in (None, "L1", "F") for seed in range(count)])
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


class Drawing(unittest.TestCase):
    def test_a_seed_draws_one_program(self):
        code = "import self_test; print(self_test.digest(300))"
        found = {subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True,
                                check=True, env={**os.environ, "PYTHONHASHSEED": salt}).stdout
                 for salt in ("1", "2")}
        self.assertEqual(found, {digest(300) + "\n"})

    def test_programs_survive_json(self):
        for seed in range(200):
            drawn = generate.random_program(seed)
            self.assertEqual(json.loads(json.dumps(drawn)), drawn)

    def test_all_programs_are_allowed(self):
        for each in generate.short_programs():
            self.assertIsNone(program.check(each["steps"]), each["name"])
            self.assertIsNone(recheck(each["steps"]), each["name"])
        for seed in range(PROGRAMS):
            steps = generate.random_program(seed)["steps"]
            self.assertIsNone(program.check(steps), seed)
            self.assertIsNone(recheck(steps), seed)
        for level in ("L1", "F"):
            for seed in range(PROGRAMS // 4):
                steps = generate.random_program(seed, collectives=level)["steps"]
                self.assertIsNone(program.check(steps, level), (seed, level))
                self.assertIsNone(recheck(steps, level == "F"), (seed, level))

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
        self.assertEqual(found, set(program.OPS) - of_collectives)
        found = [step for seed in range(500)
                 for step in generate.random_program(seed, collectives="F")["steps"]]
        self.assertEqual({step["op"] for step in found}, set(program.OPS))
        for field, values in (("kind", set(program.COLLECTIVES)), ("how", {None, "thread", "future"})):
            self.assertEqual({step.get(field) for step in found if step["op"] == (
                "collective" if field == "kind" else "work_wait")}, values)


class Rules(unittest.TestCase):
    def test_a_program_with_a_step_less_is_refused_or_still_right(self):
        random_ = random.Random(1)
        refused = 0
        for seed in range(3000):
            steps = generate.random_program(seed)["steps"]
            at = random_.randrange(len(steps))
            shorter = steps[:at] + steps[at + 1:]
            if program.check(shorter) is None:
                self.assertIsNone(recheck(shorter), (seed, at))
            else:
                refused += 1
        self.assertGreater(refused, 500)

    def test_a_program_with_collectives_and_a_step_less_is_refused_or_still_right(self):
        random_ = random.Random(2)
        for level in ("L1", "F"):
            refused = 0
            for seed in range(2000):
                steps = generate.random_program(seed, collectives=level)["steps"]
                at = random_.choice([at for at, step in enumerate(steps) if step["op"] in (
                    "work_wait", "work_drop", "wait", "host_sync", "device_sync", "drop")])
                shorter = steps[:at] + steps[at + 1:]
                if program.check(shorter, level) is None:
                    self.assertIsNone(recheck(shorter, level == "F"), (seed, at, level))
                else:
                    refused += 1
            self.assertGreater(refused, 300)

    def test_a_collective_that_nobody_waits_for_keeps_its_tensors(self):
        text = GATHERED + "drop tensor=x \n drop tensor=y \n work_drop work=w" + ASKED
        self.assertEqual(self.level(text), "L0")

    def test_a_wait_on_the_tensors_stream_is_documented(self):
        text = GATHERED + "work_wait work=w stream=s0 \n drop tensor=x" + ASKED
        self.assertEqual(self.level(text), "L0")

    def test_a_wait_on_another_stream_needs_fences(self):
        """PyTorch #188655."""
        for text in ("work_wait work=w stream=main \n drop tensor=x \n drop tensor=y" + ASKED,
                     "drop tensor=x \n work_wait work=w stream=main" + ASKED,
                     "drop tensor=x \n work_wait work=w stream=main how=thread" + ASKED):
            self.assertEqual(self.level(GATHERED + text), "F", text)
            self.assertIn("reuse", recheck(steps_of(GATHERED + text)))
            self.assertIsNone(recheck(steps_of(GATHERED + text), fences=True))
        text = GATHERED + "work_wait work=w stream=main how=future \n drop tensor=x" + ASKED
        self.assertEqual(self.level(text), "L0")  # PyTorch keeps the tensors

    def test_what_a_collective_writes_is_read_after_a_wait(self):
        self.assertIsNone(self.level(GATHERED + "read tensor=y stream=main"))
        text = GATHERED + "work_wait work=w stream=main \n read tensor=y stream=main"
        self.assertEqual(self.level(text), "L0")

    CAPTURED = """
        capture_begin graph=g stream=s0 synchronize=True
        alloc tensor=x stream=s0 bytes=4096 value=1
        collective kind=all_reduce stream=s0 output=x work=v
        drop tensor=x
        {early}
        alloc tensor=y stream=s0 bytes=4096 value=2
        collective kind=all_reduce stream=s0 output=y work=w
        {late}
        capture_end graph=g"""

    def test_a_capture_waits_for_its_last_collective(self):
        wait = "work_wait work=w stream=s0"
        self.assertIsNone(self.level(self.CAPTURED.format(early="", late="")))
        self.assertEqual(self.level(self.CAPTURED.format(early="", late=wait)), "L0")
        self.assertEqual(self.level(self.CAPTURED.format(early="work_drop work=v", late=wait)), "F")
        self.assertIsNone(self.level(self.CAPTURED.format(early="", late="work_drop work=w")))
        early = "work_wait work=v stream=s0 \n work_drop work=v"
        self.assertEqual(self.level(self.CAPTURED.format(early=early, late=wait)), "L0")
        outside = self.CAPTURED.format(early="", late=wait) + "\n work_wait work=w stream=s0"
        self.assertIsNone(self.level(outside))

    def level(self, text):
        return program.needed_level(steps_of(text))

    def test_waiting_before_the_drop_is_documented(self):
        self.assertEqual(self.level(READ_LATE + "wait stream=s0 other=main \n drop tensor=x"), "L0")

    def test_recording_before_the_drop_is_documented(self):
        self.assertEqual(self.level(READ_LATE + """record_stream tensor=x stream=main
            drop tensor=x
            alloc tensor=y stream=s0 bytes=4096 value=2
            empty_cache"""), "L0")

    def test_waiting_after_the_drop_is_safe_with_expandable_segments(self):
        self.assertEqual(self.level(READ_LATE + """drop tensor=x
            alloc tensor=y stream=s1 bytes=4096 value=2
            wait stream=s0 other=main
            alloc tensor=z stream=s0 bytes=4096 value=3"""), "L2")

    def test_emptying_the_cache_behind_a_reader_is_safe_with_the_native_allocator_only(self):
        self.assertEqual(self.level(READ_LATE + "drop tensor=x \n empty_cache"), "L1")

    def test_allocating_again_without_waiting_is_a_race_everywhere(self):
        text = READ_LATE + "drop tensor=x \n alloc tensor=y stream=s0 bytes=4096 value=2"
        self.assertIsNone(self.level(text))
        self.assertIn("reuse", recheck(steps_of(text)))

    def test_a_pool_is_apart(self):
        self.assertEqual(self.level("pool_new pool=p" + READ_LATE + """drop tensor=x
            alloc tensor=y stream=s0 bytes=4096 value=2 pool=p"""), "L2")

    def test_a_new_external_stream_may_have_the_handle_of_an_old_one(self):
        text = "stream_new stream=e0" + READ_LATE.replace("s0", "e0") + """drop tensor=x
            stream_destroy stream=e0
            stream_new stream=e1
            {wait}
            alloc tensor=y stream=e1 bytes=4096 value=2"""
        self.assertIsNone(self.level(text.format(wait="")))
        self.assertEqual(self.level(text.format(wait="wait stream=e1 other=main")), "L1")

    def test_replays_that_share_a_pool_come_one_after_another(self):
        text = """
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
            {again}"""
        self.assertIsNone(self.level(text.format(wait="", again="")))
        wait = "wait stream=s1 other=main"
        self.assertEqual(self.level(text.format(wait=wait, again="")), "L0")
        # The first graph may use the second one's output for what it frees itself.
        again = "replay graph=g stream=s1 \n read tensor=y stream=s1"
        self.assertIsNone(self.level(text.format(wait=wait, again=again)))


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

    def test_collectives_are_left_out_too(self):
        def fails(steps):
            """A made-up fault: a tensor of a collective is dropped, and then the cache is emptied."""
            used, dropped = set(), False
            for step in steps:
                used |= {step[name] for name in ("input", "output") if name in step}
                dropped = dropped or step["op"] == "drop" and step["tensor"] in used
                if dropped and step["op"] == "empty_cache":
                    return True
            return False

        def first_failing(candidates):
            return next((at for at, each in enumerate(candidates) if fails(each)), None)

        drawn = (generate.random_program(seed, collectives="F")["steps"] for seed in range(400))
        found = [steps for steps in drawn if fails(steps)][:15]
        self.assertEqual(len(found), 15)
        for steps in found:
            short, _ = shrink.shrink(steps, first_failing, 20, level="F")
            self.assertTrue(fails(short))
            self.assertIsNone(program.check(short, "F"))
            self.assertLessEqual(len(short), 10, program.format_program({"name": "", "steps": short}))

    def first_failing(self, candidates):
        self.assertLessEqual(len(candidates), 4)
        for each in candidates:
            self.assertIsNone(program.check(each))
        return next((at for at, each in enumerate(candidates) if self.fails(each)), None)

    def test_what_is_left_fails_and_is_allowed_and_short(self):
        tried = 0
        for seed in range(400):
            steps = generate.random_program(seed)["steps"]
            if self.fails(steps):
                short, _ = shrink.shrink(steps, self.first_failing, 20)
                self.assertTrue(self.fails(short))
                self.assertIsNone(program.check(short))
                self.assertLessEqual(len(short), 9, program.format_program(
                    {"name": f"seed {seed}", "steps": short}))
                tried += 1
                if tried == 20:
                    return
        self.fail("no program fails so")

    def test_it_ends_in_time(self):
        steps = generate.random_program(0)["steps"]
        self.assertEqual(shrink.shrink(steps, self.first_failing, 0), (steps, 0))


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
            ranks=execute.Ranks(has_collectives=False),
            streams={name: unittest.mock.MagicMock() for name in
                     (program.MAIN, *program.SIDE, *program.THREAD)})
        drawn = [generate.random_program(seed, collectives=collectives)
                 for collectives in (None, "L1", "F") for seed in range(300)]
        for each in [*drawn, *list(generate.short_programs())[:300]]:
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


class Soaking(unittest.TestCase):
    """soak.py, with programs that do nothing and a clock that runs a second in each."""

    def soak(self, outcomes, seconds):
        clock = itertools.count()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "samples")
            with contextlib.redirect_stdout(io.StringIO()) as said:
                found = soak.soak(lambda seed: {"outcome": outcomes(seed), "message": "so"},
                                  lambda: {"device mappings": 7, "reserved KiB": 1 / 3}, seconds,
                                  soak.Samples(path), itertools.count(5), now=lambda: next(clock))
            with open(path) as file:
                return *found, file.read().splitlines(), said.getvalue()

    def test_runs_for_as_long_as_asked_and_samples(self):
        ran, failed, lines, _ = self.soak(lambda seed: "right", 30)
        self.assertGreater(ran, 5)
        self.assertEqual(failed, [])
        names = [field.split(":")[0] for field in lines[0].split(",")]
        self.assertEqual(names, ["seconds", *soak.QUANTITIES])
        self.assertEqual(len(lines), ran + 1)
        for line in lines[1:]:
            values = dict(zip(names, map(float, line.split(","))))
            self.assertGreater(values["resident KiB"], 1000)
            self.assertGreater(values["process mappings"], 10)
            self.assertGreaterEqual(values["threads"], 1)
            self.assertGreaterEqual(values["descriptors"], 3)
            self.assertEqual(values["device mappings"], 7)
            self.assertEqual(values["reserved KiB"], 0.33)

    def test_names_the_seed_that_failed_and_goes_on(self):
        ran, failed, _, said = self.soak(lambda seed: "wrong" if seed == 6 else "memory", 30)
        self.assertGreater(ran, 5)
        self.assertEqual(failed, [(6, "wrong: so")])
        self.assertIn("FAILED: seed 6", said)

    def test_ends_where_the_context_is_lost(self):
        ran, failed, _, _ = self.soak(lambda seed: "crash" if seed == 7 else "right", 1000)
        self.assertEqual((ran, failed), (3, [(7, "crash: so")]))

    def test_a_descriptor_that_is_left_open_is_counted(self):
        before = soak.process_sample()["descriptors"]
        with open(os.devnull):
            self.assertEqual(soak.process_sample()["descriptors"], before + 1)

    def test_is_skipped_without_a_gpu(self):
        done = subprocess.run([sys.executable, str(HERE / "soak.py"), "--samples", os.devnull],
                              capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": ""})
        if "no GPU here" not in done.stdout:
            self.skipTest("there is a GPU")
        self.assertEqual(done.returncode, 77)


class RanksOfAGroup(unittest.TestCase):
    def test_the_first_that_is_not_right_speaks_for_all(self):
        with unittest.mock.patch.dict(sys.modules, {"torch": unittest.mock.MagicMock()}):
            import execute

        class Store(dict):
            set = dict.__setitem__
            get = dict.__getitem__  # a rank that is late is a KeyError

        right, wrong = {"outcome": "right", "message": ""}, {"outcome": "wrong", "message": "3, not 4"}
        for others, expected in (([right], "right"), ([right, wrong], "wrong"), ([], "crash")):
            store = Store()
            for rank, result in enumerate(others, 1):
                store.set(f"1/{rank}", json.dumps(result))
            size = max(2, len(others) + 1)
            with unittest.mock.patch.dict(os.environ, {"RANK": "0", "WORLD_SIZE": str(size)}):
                ranks = execute.Ranks(has_collectives=False)
            ranks._store = store
            said = ranks.agree(right)
            self.assertEqual(said["outcome"], expected)
            with unittest.mock.patch.dict(os.environ, {"RANK": "1", "WORLD_SIZE": str(size)}):
                other = execute.Ranks(has_collectives=False)
            other._store = store
            self.assertEqual(other.agree(right), said)

    def test_worlds_that_tensors_cannot_be_divided_for_are_refused(self):
        for arguments, says in ((("--world", "3", "--collectives", "F"), "divided"),
                                (("--world", "2"), "--collectives")):
            done = subprocess.run([sys.executable, str(HERE / "random_programs.py"), "--plan", "1",
                                   *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(says, done.stderr)


class Outcomes(unittest.TestCase):
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
    if "--programs" in sys.argv:
        at = sys.argv.index("--programs")
        PROGRAMS = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    unittest.main()
