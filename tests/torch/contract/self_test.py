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
    # Collectives.
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
        joined=OF_S2, after="capture_begin graph=h stream=s2 synchronize=True pool=graph:g")),
    ("a MemPool lends to a capture", "L0", LENDS + "replay graph=g stream=main"),
    ("what is live when that is replayed", None, LENDS + "drop tensor=z \n replay graph=g stream=main"),
    ("a recorded stream is captured in no pause", None, """alloc tensor=r stream=s2 bytes=4096 value=9
        record_stream tensor=r stream=s1""" + paused()),
    ("a failed capture leaves its tensors", "L0", FAILED + "write tensor=x stream=s0 value=2 \n read tensor=x stream=s0"),
    ("which nobody has written", None, FAILED + "read tensor=x stream=s0"),
    ("it is not replayed", None, FAILED + "replay graph=g stream=s0"),
    ("nor ended", None, FAILED + "capture_end graph=g"),
    ("its tensors are dropped", "L0", FAILED + "drop tensor=x"),
    ("its pool is captured into no more", None, FAILED + "capture_begin graph=h stream=s0 synchronize=True pool=graph:g"),
    ("the default stream is not captured", "L0", "capture_refused graph=g stream=main how=default"),
    ("another one is", None, "capture_refused graph=g stream=s0 how=default"),
    ("no library captures", None, "capture_refused graph=g stream=s0 how=raw"),
    ("no capture has the pool", None, "capture_refused graph=g stream=s1 how=pool"),
    ("one has", "L0", paused(joined=JOINED + "capture_refused graph=h stream=s2 how=pool")),
    *((f"beside a library's capture: {between}", level, f"raw_begin stream=s0 \n {between} \n raw_end stream=s0")
      for between, level in (
          ("spin stream=s0 ms=1", "L0"), ("host_sync stream=s0", None), ("wait stream=main other=s0", None),
          ("empty_cache", None), ("alloc tensor=x stream=s0 bytes=4096 value=1", None),
          ("alloc tensor=x stream=s1 bytes=4096 value=1", "L0"), ("capture_refused graph=g stream=s0 how=raw", "L0"))),
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
    def test_a_program_needs_its_level_and_the_other_rules_agree(self):
        for what, level, text in CASES:
            with self.subTest(what):
                steps = steps_of(text)
                self.assertEqual(program.needed_level(steps), level)
                if level is not None:
                    self.assertIsNone(recheck(steps, fences=level == "F"))
                if level == "F" and "capture" not in text or what == "allocating again without a wait is a race":
                    self.assertIn("reuse", recheck(steps))

    def without_a_step(self, count, at_least, choose, level="L1", **kind):
        """Random programs with a step less are refused, or right by the other rules."""
        refused = 0
        for seed in range(count):
            steps = generate.random_program(seed, **kind)["steps"]
            at = choose(steps)
            shorter = steps[:at] + steps[at + 1:]
            if program.check(shorter, level) is None:
                self.assertIsNone(recheck(shorter, level == "F"), (seed, at, level))
            else:
                refused += 1
        self.assertGreater(refused, at_least)

    def test_a_program_with_a_step_less_is_refused_or_still_right(self):
        random_ = random.Random(1)
        self.without_a_step(3000, 500, lambda steps: random_.randrange(len(steps)))

    def test_a_program_with_collectives_and_a_step_less_is_refused_or_still_right(self):
        random_ = random.Random(2)
        for level in ("L1", "F"):
            self.without_a_step(2000, 300, lambda steps: random_.choice(
                [at for at, step in enumerate(steps) if step["op"] in (
                    "work_wait", "work_drop", "wait", "host_sync", "device_sync", "drop")]), level, collectives=level)


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
