# SPDX-License-Identifier: Apache-2.0
"""The random programs' own tests: what is drawn, whether it is allowed, what becomes of failures.

usage: self_test.py [--programs N]      needs neither PyTorch nor a GPU
"""

from __future__ import annotations

import contextlib
import hashlib
import io
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

PROGRAMS = 10_000


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
        self.library = None  # the stream that another library captures
        self.seed_reads = 0  # of graphs that are gone, but may be kept
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
                touches = self.library is not None and self.library in (
                    step.get("stream"), step.get("other"))
                if touches and step["op"] not in ("spin", "capture_refused", "raw_end"):
                    raise Race("another library captures the stream")
                getattr(self, step["op"])(types.SimpleNamespace(pool=None, **step) if "pool" not in step
                                          else types.SimpleNamespace(**step))
            except Race as race:
                raise Race(f"step {number}, {step}: {race}") from None

    def captured(self, stream):
        return self.open is not None and stream in self.open["before"]

    # In a capture each operation is a bit, too; `before[stream]` has those that come before the next.

    def captured_operation(self, stream, needed, what):
        if needed & ~self.open["before"][stream]:
            raise Race(f"captured: {what}")
        bit = 1 << self.count
        self.count += 1
        self.open["all"] |= bit
        self.open["before"][stream] |= bit
        return bit

    def alloc(self, step):
        tensor = {"stream": step.stream, "pool": step.pool, "write": 0, "uses": [], "recorded": set(),
                  "graph": None, "cached": self.caching, "raw": getattr(step, "raw", False)}
        self.tensors[step.tensor] = tensor
        if self.captured(step.stream):
            if self.open["paused"] != (step.pool is not None):
                raise Race("no memory of the graph's")
            tensor["graph"] = self.open
            self.open["own"].append(step.tensor)
            key = (step.stream, step.pool)
            bit = self.captured_operation(step.stream, self.open["freed"].get(key, 0), "reuse")
            tensor["bits"], tensor["last"] = {step.stream: bit}, bit
            if step.pool is not None:
                self.open["borrowed"].append(step.tensor)
                self.open["began"] |= self.freed.get(self.key(step.stream, step.pool), 0)
            return
        if self.open is not None and self.open["resumed"] and step.pool is None:
            tensor["pool"] = step.pool = id(self.open)
            if step.stream in self.open["memory"]["captured"]:
                raise Race("memory of the graph's")
            self.open["memory"]["eager"].add(step.stream)
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
            own = tensor["graph"] is self.open
            needed = 0
            if own:
                needed = tensor["last"]
                for bit in tensor["bits"].values() if write else ():
                    needed |= bit
            bit = self.captured_operation(step.stream, needed, "a use beside another one")
            if own:
                tensor["bits"][step.stream] = tensor["bits"].get(step.stream, 0) | bit
                tensor["last"] = bit if write else tensor["last"]
            if tensor["graph"] is None:
                self.open["inputs"].append(step.tensor)
            return
        if not tensor["write"] and not (write and tensor["graph"] is None):
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

    def peer_read(self, step):
        if step.stream not in program.PEERS or self.captured(step.stream):
            raise Race("no stream of GPU 1")
        self.read(step)

    def spin(self, step):
        if self.captured(step.stream):
            self.captured_operation(step.stream, 0, "")
        elif step.stream != self.library:
            self.operation(step.stream)

    def wait(self, step):
        if self.captured(step.other):
            if not self.captured(step.stream):
                if self.open["comm"] or step.stream in self.open["memory"]["eager"]:
                    raise Race("the stream can't join")
                self.open["before"][step.stream] = 0
                self.open["memory"]["captured"].add(step.stream)
                self.open["began"] |= self.at(step.stream)
            self.open["before"][step.stream] |= self.open["before"][step.other]
        elif self.captured(step.stream):
            raise Race("a captured stream waits for an eager one")
        else:
            self.before[step.stream] = self.at(step.stream) | self.at(step.other)

    def record_stream(self, step):
        if self.tensors[step.tensor]["raw"]:
            raise Race("no tensor")
        self.tensors[step.tensor]["recorded"].add(step.stream)

    def drop(self, step):
        tensor = self.tensors[step.tensor]
        tensor["dead"], tensor["dropped_in"] = True, self.open
        peers = sum({bit for stream, bit in tensor["uses"] if stream in program.PEERS})
        if not tensor["cached"]:
            self.ordered(tensor["stream"], peers, "cudaFree beside another GPU's copy")
        if self.open is not None and tensor["graph"] is self.open:
            key = (tensor["stream"], tensor["pool"])
            for stream, bits in tensor["bits"].items():
                if stream != tensor["stream"]:
                    self.open["freed"][key] = self.open["freed"].get(key, 0) | bits
        if tensor["graph"] is not None and tensor["pool"] is not None:
            key = self.key(tensor["stream"], tensor["pool"])
            self.freed[key] = self.freed.get(key, 0) | tensor["graph"]["memory"]["accesses"]
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

    pool_new = pool_holds = stream_new = nothing

    def empty_cache(self, _):
        if self.library is not None:
            raise Race("cudaFree waits for the device")

    limit = pool_drop = empty_cache

    def pool_pause(self, _):
        if self.open["paused"]:
            raise Race("paused twice")
        for stream in self.open["before"]:
            if any(stream in t["recorded"] for t in self.tensors.values()
                   if not t.get("dead") or t.get("dropped_in") is self.open):
                raise Race("PyTorch's own allocator records an event in the capture")
        self.open["paused"], self.open["resumed"] = True, False

    def pool_resume(self, _):
        if not self.open["paused"]:
            raise Race("not paused")
        self.open["paused"], self.open["resumed"] = False, True

    def capture_fail(self, step):
        failed, self.open = self.open, None
        if failed["resumed"] or failed["comm"]:
            raise Race("the thread allocates there for ever")
        memory = failed["memory"]
        memory["bound"] = not failed["paused"]
        memory["graphs"].remove(failed)
        for name in failed["own"]:
            if not memory["graphs"] and self.tensors[name]["pool"] is None:
                self.tensors[name].update(graph=None, pool=id(failed))
        del self.graphs[step.graph]
        self.seed_reads |= self.seeds["born"]
        self.graph_drop(step)

    def capture_refused(self, step):
        if (step.stream == "main", step.stream == self.library, self.open is not None).index(True) != (
                "default", "raw", "pool").index(step.how):
            raise Race("nothing refuses the capture")
        if step.how != "raw":
            if self.captured(step.stream):
                raise Race("an eager stream asks")
            existed = self.seeds is not None
            self.register(step)
            self.seeds["graphs"].discard(step.graph)
            self.seeds = self.seeds if existed else None
        self.seed_reads |= self.at(step.stream)

    def raw_begin(self, step):
        if self.library is not None or self.captured(step.stream) or step.stream == "main" or any(
                step.stream in t["recorded"] for t in self.tensors.values() if not t.get("dead")):
            raise Race("another library can't capture")
        self.library = step.stream

    def raw_end(self, _):
        self.library = None

    def caching_(self, step):
        self.caching = step.on

    def stream_destroy(self, step):
        if self.before.get(step.stream, 0) & ~self.host:
            raise Race("a stream is destroyed while it works")
        if any(step.stream in t["recorded"] for t in self.tensors.values() if not t.get("dead")):
            raise Race("a recorded stream is destroyed")

    def capture_begin(self, step):
        if step.synchronize:
            if self.library is not None:
                raise Race("the host waits for the device")
            self.device_sync(step)
        kind, _, of = (step.pool or "").partition(":")
        memory = None
        if kind == "graph":
            memory = self.graphs[of]["memory"]
        elif kind == "pool":
            memory = next((m for m in self.memories if m["pool"] == of), None)
        if memory is None:
            memory = {"pool": of, "accesses": 0, "graphs": [], "bound": False, "captured": set(),
                      "eager": set()}
            self.memories.append(memory)
        if memory["bound"] or step.stream in memory["eager"]:
            raise Race("the pool is a failed capture's, or has served the stream")
        memory["captured"].add(step.stream)
        before = self.register(step)
        self.open = {"stream": step.stream, "memory": memory, "own": [], "inputs": [], "began": before,
                     "dropout": False, "comm": 0, "seen": 0, "before": {step.stream: 0}, "all": 0,
                     "freed": {}, "borrowed": [], "paused": False, "resumed": False}
        memory["graphs"].append(self.open)
        self.graphs[step.graph] = self.open

    def register(self, step):
        self.ordered(step.stream, self.seed_reads, "seeds that may be kept")
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
        return before

    def capture_end(self, _):
        if self.open["comm"] & ~self.open["seen"]:
            raise Race("the communication stream has not joined")
        if self.open["all"] & ~self.open["before"][self.open["stream"]] or self.open["paused"]:
            raise Race("a forked stream has not joined, or the pool is paused")
        self.open["resumed"] = False
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
        if any(self.tensors[name].get("dead") for name in graph["borrowed"]):
            raise Race("a replay writes memory that was given back")
        for name in graph["inputs"]:
            if self.tensors[name].get("dead"):
                raise Race("a replay reads what was dropped")
            self.ordered(step.stream, self.tensors[name]["write"], "an input is not written yet")
        bit = self.operation(step.stream)
        memory["accesses"] |= bit
        self.seeds["uses"].append((step.stream, bit))
        if graph["dropout"]:
            self.seeds["read"] |= bit
            self.seed_reads |= bit
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


KINDS = ({}, {"peers": True}, {"collectives": "L1"}, {"collectives": "F"})


def recheck(steps, fences=False):
    """Why the program is not allowed; None if it is."""
    steps = [{**step, "op": "caching_"} if step["op"] == "caching" else step for step in steps]
    try:
        Recheck(fences).run(steps)
    except Race as race:
        return str(race)
    return None


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
        for peers in (False, True):
            for each in generate.short_programs(peers=peers):
                self.assertIsNone(program.check(each["steps"]), each["name"])
                self.assertIsNone(recheck(each["steps"]), each["name"])
            for seed in range(PROGRAMS // 4 if peers else PROGRAMS):
                steps = generate.random_program(seed, peers=peers)["steps"]
                self.assertIsNone(program.check(steps), seed)
                self.assertIsNone(recheck(steps), seed)
                self.assertLessEqual(program.needs_peer(steps), peers)
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

    PAUSED = """
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
        {after}"""
    JOINED = "wait stream=s0 other=s1"

    def paused(self, meanwhile="", joined=JOINED, after=""):
        return self.level(self.PAUSED.format(meanwhile=meanwhile, joined=joined, after=after))

    def test_a_pool_is_paused_in_a_capture(self):
        self.assertEqual(self.paused(after="replay graph=g stream=main \n read tensor=y stream=main"),
                         "L0")
        self.assertIsNone(self.paused(joined=""))
        self.assertIsNone(self.paused(meanwhile="alloc tensor=z stream=s0 bytes=4096 value=3"))
        self.assertIsNone(self.paused(joined=self.JOINED + "\n pool_pause graph=g"))
        self.assertIsNone(self.paused(after="pool_holds graph=g most=4096"))
        self.assertEqual(self.paused(after=f"pool_holds graph=g most={2 * (3 * 4096 + (24 << 20))}"),
                         "L0")

    def test_a_resumed_pool_serves_other_streams_of_the_thread_too(self):
        other = self.JOINED + "\n alloc tensor=z stream=s2 bytes=4096 value=3 \n read tensor=z stream=s2"
        self.assertEqual(self.paused(joined=other), "L0")
        again = "capture_begin graph=h stream=s2 synchronize=True pool=graph:g"
        self.assertIsNone(self.paused(joined=other, after=again))

    def test_what_a_mempool_lends_to_a_capture_is_live_when_that_is_replayed(self):
        text = "pool_new pool=p" + self.PAUSED.format(
            meanwhile="alloc tensor=z stream=s0 bytes=4096 value=3 pool=p", joined=self.JOINED,
            after="{} \n replay graph=g stream=main")
        self.assertEqual(self.level(text.format("")), "L0")
        self.assertIsNone(self.level(text.format("drop tensor=z")))

    def test_a_recorded_stream_is_captured_in_no_pause(self):
        text = """alloc tensor=r stream=s2 bytes=4096 value=9
            record_stream tensor=r stream=s1""" + self.PAUSED.format(
                meanwhile="", joined=self.JOINED, after="")
        self.assertIsNone(self.level(text))

    def test_a_capture_that_failed_leaves_its_tensors(self):
        text = """
            capture_begin graph=g stream=s0 synchronize=True
            alloc tensor=x stream=s0 bytes=4096 value=1
            capture_fail graph=g how=item
            {after}"""
        for after, level in (("write tensor=x stream=s0 value=2 \n read tensor=x stream=s0", "L0"),
                             ("read tensor=x stream=s0", None), ("replay graph=g stream=s0", None),
                             ("capture_end graph=g", None), ("drop tensor=x", "L0"),
                             ("capture_begin graph=h stream=s0 synchronize=True pool=graph:g", None)):
            self.assertEqual(self.level(text.format(after=after)), level, after)

    def test_a_capture_is_refused_where_it_can_not_begin(self):
        for how, stream, level in (("default", "main", "L0"), ("default", "s0", None), ("raw", "s0", None),
                                   ("pool", "s1", None)):
            text = f"capture_refused graph=g stream={stream} how={how}"
            self.assertEqual(self.level(text), level, text)
        self.assertEqual(self.paused(meanwhile="", joined=self.JOINED + """
            capture_refused graph=h stream=s2 how=pool"""), "L0")

    def test_another_library_captures_a_stream_alone(self):
        text = "raw_begin stream=s0 \n {} \n raw_end stream=s0"
        for between, level in (("spin stream=s0 ms=1", "L0"), ("host_sync stream=s0", None),
                               ("wait stream=main other=s0", None), ("empty_cache", None),
                               ("alloc tensor=x stream=s0 bytes=4096 value=1", None),
                               ("alloc tensor=x stream=s1 bytes=4096 value=1", "L0"),
                               ("capture_refused graph=g stream=s0 how=raw", "L0")):
            self.assertEqual(self.level(text.format(between)), level, between)

    def test_raw_memory_is_recorded_on_no_stream(self):
        text = "alloc tensor=x stream=s0 bytes=4096 value=1 raw=True"
        self.assertEqual(self.level(text + "\n drop tensor=x"), "L0")
        self.assertIsNone(self.level(text + "\n record_stream tensor=x stream=s1"))

    def test_another_gpus_copy_is_waited_for_before_memory_may_be_unmapped(self):
        text = READ_LATE.replace("read", "peer_read").replace("main", "p0")
        self.assertEqual(self.level(text + "drop tensor=x" + ASKED.replace("s0", "s1")), "L2")
        self.assertIsNone(self.level(text + "drop tensor=x" + ASKED))
        self.assertIsNone(self.level(text + "drop tensor=x \n empty_cache"))
        self.assertEqual(self.level(text + "drop tensor=x \n wait stream=s0 other=p0 \n empty_cache"),
                         "L2")

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
        drawn = [generate.random_program(seed, **kind) for kind in KINDS for seed in range(200)]
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


class Outcomes(unittest.TestCase):
    def test_the_programs_are_listed_without_a_gpu(self):
        said = subprocess.run([sys.executable, str(HERE / "programs.py"), "--list"], check=True,
                              capture_output=True, text=True).stdout
        listed = {line.split()[0].split("-")[0] for line in said.splitlines()}
        self.assertLessEqual({str(number) for number in range(2, 24)} - {"8", "10"},
                             {name.rstrip("abcdefghi") for name in listed})

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
