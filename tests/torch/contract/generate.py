# SPDX-License-Identifier: Apache-2.0
"""Draws programs that PyTorch's rules allow (program.py), from a seed.

short_programs() lists them systematically: who makes a tensor, who uses it late, how it is dropped, and
what disturbs afterwards. random_program(seed) composes longer ones of the same kind, and
random_program(seed, collectives=LEVEL) some with collectives of torch.distributed. All are biased
towards what goes wrong: a long kernel before each use on another stream, the drop right after the use
was queued, and a disturber next; the stream that the tensor was made on waits for the use as late as
the rules allow. With peers=True the late uses are copies by streams of GPU 1. No allocator is asked.
"""

from __future__ import annotations

import itertools
import random

from program import COLLECTIVES, IN_PLACE, MAIN, PEERS, SHARES, SIDE, THREAD, Illegal, Model

SMALL, LARGE = 2048, 8 << 20
BALLAST_BYTES = 64 << 20

CREATORS = ("side", "main", "external", "pool", "uncached", "input", "graph", "shared_graph",
            "dropout", "handle", "external_handle", "paused_graph", "failed_capture")
OF_GRAPHS = ("graph", "shared_graph", "dropout", "paused_graph")
USERS = ("main", "side", "external")
DROPPERS = ("late", "recorded", "waited")
GRAPH_DROPPERS = ("graph_first", "tensor_first", "tensor")
DISTURBERS = ("other_asks", "user_asks", "creator_asks", "small_ones", "pool_opens", "pool_closes",
              "raw_capture", "capture", "beside_a_capture", "empty_cache", "limit", "uncached",
              "external_asks", "handle_asks", "library_captures", "library_captures_external",
              "pool_is_paused", "capture_fails", "capture_is_refused")
LAYERS = 16  # of a graph whose pool is paused between them


class Builder:
    """A program in the making. add() puts in the waits that a step needs, just before it."""

    def __init__(self, level="L1", thread=False, spin_ms=6.0, prefix=""):
        self.model = Model(level, thread)
        self.steps = []
        self.spin_ms = spin_ms
        self._prefix = prefix
        self._names = itertools.count()
        self._values = itertools.count(1)

    def name(self, kind):
        return f"{self._prefix}{kind}{next(self._names)}"

    def value(self):
        return next(self._values)

    def add(self, op, **fields):
        """Raises Illegal if no waits make the step allowed."""
        step = {"op": op, **fields}
        while True:
            try:
                self.model.apply(step)
                self.steps.append(step)
                return step
            except Illegal as reason:
                if not reason.remedy:
                    raise
                self.model.apply(reason.remedy[0])  # which may make the others needless
                self.steps.append(reason.remedy[0])

    def can(self, op, **fields):
        try:
            self.add(op, **fields)
            return True
        except Illegal:
            return False

    def alloc(self, stream, size, pool=None, raw=False):
        name = self.name("x")
        fields = {"pool": pool} if pool is not None else {"raw": True} if raw else {}
        self.add("alloc", tensor=name, stream=stream, bytes=size, value=self.value(), **fields)
        return name

    def use(self, tensor, stream, write=False, spin=True):
        """A use of the tensor on the stream, behind a long kernel."""
        if spin:
            self.add("spin", stream=stream, ms=self.spin_ms)
        if stream in PEERS:
            self.add("peer_read", tensor=tensor, stream=stream)
        elif write:
            self.add("write", tensor=tensor, stream=stream, value=self.value())
        else:
            self.add("read", tensor=tensor, stream=stream)

    def pause(self, graph, meanwhile=None, keeps=False):
        """The pool takes no requests while `meanwhile` is called."""
        self.add("pool_pause", graph=graph)
        if meanwhile is not None:
            meanwhile()
        self.add("pool_resume", graph=graph, **({"keeps": True} if keeps else {}))

    def end_capture(self, graph):
        self.add("capture_end", graph=graph)
        memory = self.model.graphs[graph].memory
        if self.model.graphs[graph].named and len(memory.graphs) == 1:
            self.can("pool_holds", graph=graph, most=memory.least())

    def capture(self, stream, body, pool=None, synchronize=True, named=False):
        """A graph of what `body`, called with this builder, queues on the stream."""
        graph = self.name("g")
        fields = {"pool": pool} if pool is not None else {"named": True} if named else {}
        self.add("capture_begin", graph=graph, stream=stream, synchronize=synchronize, **fields)
        result = body()
        self.end_capture(graph)
        return graph, result

    def collective(self, kind, stream, output, source=None, asynchronous=True):
        """The name of its Work; None if it has none."""
        fields = {} if kind in IN_PLACE else {"input": source}
        if asynchronous:
            fields["work"] = self.name("w")
        self.add("collective", kind=kind, stream=stream, output=output, **fields)
        return fields.get("work")

    def finished(self):
        self.model.finish()
        return self.steps


# ---------------------------------------------------------------------------------------------------
# Short programs.

def short_cases(peers=False):
    """(creator, user, use, dropper, disturber, size) of each."""
    users = ("peer",) if peers else USERS
    for creator, user, disturber, size in itertools.product(CREATORS, users, DISTURBERS,
                                                            (SMALL, LARGE)):
        graph = creator in OF_GRAPHS
        if user == "peer" and creator in ("input", "dropout"):  # GPU 1 replays none, and knows no mask
            continue
        uses = ("read",) if graph or creator == "input" or peers else ("read", "write")
        for use, dropper in itertools.product(uses, GRAPH_DROPPERS if graph else DROPPERS):
            if creator == "main" and user == "main" or dropper == "waited" and use == "write":
                continue
            yield creator, user, use, dropper, disturber, size


def short_program(case, spin_ms=6.0):
    """The program of a case; None if the rules don't allow it."""
    creator, user, use, dropper, disturber, size = case
    build = Builder(spin_ms=spin_ms)
    try:
        if disturber == "limit":
            _ballast(build)
        if disturber == "pool_closes":
            build.add("pool_new", pool="q")
            idle = build.alloc("s3", size, pool="q")
            build.add("host_sync", stream="s3")
            build.add("drop", tensor=idle)
        user = {"main": MAIN, "side": "s1", "external": "e1", "peer": "p0"}[user]
        if user == "e1":
            build.add("stream_new", stream="e1")
        if disturber == "library_captures_external":
            build.add("stream_new", stream="e3")
            build.add("drop", tensor=build.alloc("e3", size, raw=True))
        _make_use_drop(build, creator, user, use, dropper, size)
        made = _disturb(build, disturber, creator, user, size)
        build.add("device_sync")  # late writes have come by then
        for name in made:
            build.use(name, build.model.tensors[name].stream, spin=False)
        if not build.model.caching:
            build.add("caching", on=True)
        return {"name": "/".join(map(str, case)), "steps": build.finished()}
    except Illegal:
        return None


def short_programs(spin_ms=6.0, peers=False):
    """All of them, in an order that mixes the kinds."""
    cases = list(short_cases(peers))
    random.Random(0).shuffle(cases)
    for case in cases:
        program = short_program(case, spin_ms)
        if program is not None:
            yield program


def _ballast(build):
    """Idle memory, so that a limit is below what is held."""
    names = [build.alloc("s3", BALLAST_BYTES) for _ in range(14)]
    build.add("host_sync", stream="s3")
    for name in names:
        build.add("drop", tensor=name)


def _make_use_drop(build, creator, user, use, dropper, size):
    graph = None
    if creator in OF_GRAPHS:
        pool = None
        if creator == "shared_graph":
            first, kept = build.capture("s0", lambda: build.alloc("s0", size))
            build.add("drop", tensor=kept)
            pool = f"graph:{first}"

        def body():
            if creator == "dropout":
                name = build.name("x")
                build.add("dropout", tensor=name, stream="s0", bytes=size)
                return name
            if creator == "paused_graph":
                return _layers(build, "s0", "s3", size)
            build.add("drop", tensor=build.alloc("s0", size))
            return build.alloc("s0", size)

        graph, x = build.capture("s0", body, pool, named=creator == "paused_graph")
        if creator == "dropout":
            build.add("reference", graph=graph)
            build.add("spin", stream=user, ms=build.spin_ms)
        runs = "s0" if user in PEERS else user
        build.add("replay", graph=graph, stream=runs)
        build.use(x, user)
    elif creator == "input":
        x = build.alloc("s0", size)
        build.add("host_sync", stream="s0")
        graph, _ = build.capture("s2", lambda: build.add("read", tensor=x, stream="s2"))
        build.add("spin", stream=user, ms=build.spin_ms)
        build.add("replay", graph=graph, stream=user)
    else:
        made = {"main": MAIN, "external": "e0", "external_handle": "e0"}.get(creator, "s0")
        if made == "e0":
            build.add("stream_new", stream="e0")
        if creator == "pool":
            build.add("pool_new", pool="p")
        if creator == "uncached":
            build.add("caching", on=False)
        if creator == "failed_capture":
            x = _failed_capture(build, made, size)
            build.add("write", tensor=x, stream=made, value=build.value())
        else:
            x = build.alloc(made, size, "p" if creator == "pool" else None,
                            raw=creator.endswith("handle"))
        build.add("wait", stream=user, other=made)
        if dropper == "late":  # the host knows the maker's stream to be idle
            build.add("host_sync", stream=made)
        build.use(x, user, use == "write")
    made = build.model.tensors[x].stream
    if dropper == "recorded":
        build.add("record_stream", tensor=x, stream=user)
    elif dropper == "waited":
        build.add("wait", stream=made, other=user)
    if dropper == "graph_first":
        build.add("graph_drop", graph=graph)
    build.add("drop", tensor=x)
    if dropper == "tensor_first":
        build.add("graph_drop", graph=graph)
    if creator == "uncached":
        build.add("caching", on=True)
    if made == "e0" and dropper != "waited":
        build.add("host_sync", stream="e0")
        build.add("stream_destroy", stream="e0")
    if creator == "pool" and use == "read":
        build.add("pool_drop", pool="p")


def _layers(build, stream, side, size, layers=LAYERS):
    """In a capture: each layer reads what the one before wrote, and the pool is paused between them.
    What the side stream, forked, has freed before a pause must not be used beside it after. Returns the
    last layer's output."""
    graph = build.model.capture.name
    build.add("wait", stream=side, other=stream)
    scratch = build.alloc(side, size)
    build.add("read", tensor=scratch, stream=side)
    before = build.alloc(stream, size)
    build.add("drop", tensor=scratch)
    for _ in range(layers):
        after = build.alloc(stream, size)
        build.add("read", tensor=before, stream=stream)
        build.pause(graph)
        build.add("drop", tensor=before)
        before = after
    return before


def _failed_capture(build, stream, size, how="synchronize"):
    """The name of a tensor that a capture made which failed then."""
    graph = build.name("g")
    build.add("capture_begin", graph=graph, stream=stream, synchronize=False)
    made, scratch = build.alloc(stream, size), build.alloc(stream, size)
    build.add("drop", tensor=scratch)
    build.add("capture_fail", graph=graph, how=how)
    return made


def _disturb(build, disturber, creator, user, size):
    """The names of the tensors that it makes."""
    def other():
        return [build.alloc("s2", size) for _ in range(2)]

    if disturber == "other_asks":
        return other()
    if disturber == "user_asks":
        return [build.alloc(user, size) for _ in range(2)]
    if disturber == "creator_asks":
        return [build.alloc({"main": MAIN}.get(creator, "s0"), size) for _ in range(2)]
    if disturber == "small_ones":
        return [build.alloc("s2", 512) for _ in range(24)]
    if disturber == "pool_opens":
        build.add("pool_new", pool="r")
        return [build.alloc("s2", size, pool="r") for _ in range(2)]
    if disturber == "pool_closes":
        build.add("pool_drop", pool="q")
        return other()
    if disturber in ("raw_capture", "capture"):
        graph, name = build.capture("s2", lambda: build.alloc("s2", size),
                                    synchronize=disturber == "capture")
        build.add("replay", graph=graph, stream="s2")
        return [name]
    if disturber == "beside_a_capture":
        made = []

        def body():
            kept = build.alloc("s3", size)
            made.extend(other())
            return kept

        graph, name = build.capture("s3", body, synchronize=False)
        build.add("replay", graph=graph, stream="s3")
        return [name, *made]
    if disturber == "empty_cache":
        build.add("empty_cache")
        return other()
    if disturber == "limit":
        build.add("limit", bytes=build.model.least_limit(4 * size))
        return other()
    if disturber == "uncached":
        build.add("caching", on=False)
        return other()
    if disturber == "handle_asks":
        return [build.alloc("s2", size, raw=True) for _ in range(2)]
    if disturber in ("library_captures", "library_captures_external"):
        captured = "e3" if disturber.endswith("external") else "s2"
        if captured == "s2":  # which is first met so
            build.add("drop", tensor=build.alloc("s2", size, raw=True))
        build.add("raw_begin", stream=captured)
        build.add("spin", stream=captured, ms=0.1)
        made = [build.alloc("s3", size) for _ in range(2)]
        build.add("raw_end", stream=captured)
        return made
    if disturber == "pool_is_paused":
        graph, name = build.capture("s2", lambda: _layers(build, "s2", "s3", size), named=True,
                                    synchronize=False)
        build.add("replay", graph=graph, stream="s2")
        return [name]
    if disturber == "capture_fails":
        made = _failed_capture(build, "s2", size, "item")
        build.add("write", tensor=made, stream="s2", value=build.value())
        return [made, *other()]
    if disturber == "capture_is_refused":
        build.add("capture_refused", graph=build.name("g"), stream=MAIN, how="default")
        build.add("raw_begin", stream="s2")
        build.add("capture_refused", graph=build.name("g"), stream="s2", how="raw")
        build.add("raw_end", stream="s2")
        return other()
    assert disturber == "external_asks", disturber
    build.add("stream_new", stream="e2")
    return [build.alloc("e2", size) for _ in range(2)]


# ---------------------------------------------------------------------------------------------------
# Random programs.

class _Draw:
    def __init__(self, random_, build, thread, collectives=False, peers=False):
        self.random, self.build, self.thread, self.collectives = random_, build, thread, collectives
        self.peers = PEERS if peers else ()
        low, high = 512, 64 << 20
        self.sizes = [self._size(low, high) for _ in range(3)] + [self._size(low, 64 << 10)]
        self.externals = itertools.count()

    def _size(self, low, high):
        exponent = self.random.uniform(0, 1)
        multiple = 4 * SHARES if self.collectives else 4
        return max(low, int(low * (high / low) ** exponent)) // multiple * multiple

    def size(self):
        return self.random.choice(self.sizes)

    def streams(self):
        return sorted(self.build.model.streams)

    def stream(self, *others):
        found = [stream for stream in self.streams() if stream not in (*others, self.build.model.raw)
                 and not self.build.model.capturing(stream)]
        return self.random.choice(found)

    def chance(self, share):
        return self.random.random() < share

    # Each takes one step or several, and raises Illegal where there is nothing to take it on.

    def _pick(self, found):
        if not found:
            raise Illegal("there is none")
        return self.random.choice(found)

    def tensor(self, **conditions):
        return self._pick(self.build.model.live(**conditions))

    def make(self):
        pools = [pool for pool, graphs in self.build.model.pools.items() if not graphs]
        pool = self.random.choice(pools) if pools and self.chance(0.3) else None
        if not self.build.model.caching:
            pool = None
        raw = pool is None and not self.thread and self.chance(0.1)
        return self.build.alloc(self.stream(), self.size(), pool, raw)

    def late_use(self):
        """Make, use elsewhere behind a spin, drop: in one of the ways that the rules allow."""
        build, model = self.build, self.build.model
        x = (self.make() if self.chance(0.6) else
             self._pick([t for t in model.live() if t.value is not None]).name)
        tensor = model.tensors[x]
        user = self.stream(tensor.stream)
        if self.peers and self.chance(0.7):
            user = self.random.choice(self.peers)
        if tensor.stream in model.streams and self.chance(0.5):
            if self.chance(0.5):
                build.add("wait", stream=user, other=tensor.stream)
            build.add("host_sync", stream=tensor.stream)
        build.use(x, user, write=self.chance(0.25) and tensor.graph is None)
        way = self.random.choice(("keep", "late", "late", "late", "after", "before", "recorded"))
        back = tensor.stream if tensor.stream in model.streams else self.stream(user)
        if way == "keep":
            return
        if way == "before":
            build.add("wait", stream=back, other=user)
        if way == "recorded":
            build.add("record_stream", tensor=x, stream=user)
        build.add("drop", tensor=x)
        if way == "after":
            build.add("wait", stream=back, other=user)

    def read(self):
        tensor = self._pick([t for t in self.build.model.live() if t.value is not None])
        self.build.use(tensor.name, self.stream(), spin=self.chance(0.5))

    def drop(self):
        self.build.add("drop", tensor=self.tensor().name)

    def spin(self):
        self.build.add("spin", stream=self.stream(), ms=self.build.spin_ms)

    def wait(self):
        stream = self.stream()
        self.build.add("wait", stream=stream, other=self.stream(stream))

    def host_sync(self):
        self.build.add("host_sync", stream=self.stream())

    def empty_cache(self):
        self.build.add("empty_cache")

    def limit(self):
        model = self.build.model
        if model.limit:
            self.build.add("limit", bytes=0)
        else:
            self.build.add("limit", bytes=model.least_limit(self.random.choice(
                (16 << 20, 64 << 20, 256 << 20))))

    def caching(self):
        self.build.add("caching", on=not self.build.model.caching)

    def pool(self):
        model = self.build.model
        if model.pools and self.chance(0.5):
            self.build.add("pool_drop", pool=self.random.choice(sorted(model.pools)))
        else:
            graphs = {"graphs": True} if self.chance(0.3) else {}
            self.build.add("pool_new", pool=self.build.name("p"), **graphs)

    def external(self):
        found = [stream for stream in self.streams() if stream.startswith("e")]
        if found and self.chance(0.5):
            self.build.add("stream_destroy", stream=self.random.choice(found))
        elif len(found) < 3:
            self.build.add("stream_new", stream=f"e{next(self.externals)}")

    def is_spent(self, pool):
        """Are all graphs of the pool gone, which had some? Of such a pool PyTorch's allocator of
        pinned memory has lost count: a capture into it fails, whoever gives the device memory."""
        graphs = [graph for graph in self.build.model.graphs.values() if graph.memory.pool == pool]
        return bool(graphs) and not any(graph.alive for graph in graphs)

    def capture(self):
        build, model = self.build, self.build.model
        if model.limit:
            build.add("limit", bytes=0)
        if not model.caching:
            build.add("caching", on=True)
        shared = [f"graph:{g.name}" for g in model.graphs.values() if g.alive and g.captured]
        shared += [f"pool:{pool}" for pool, graphs in model.pools.items()
                   if graphs and not self.is_spent(pool)]
        pool = self.random.choice(shared) if shared and self.chance(0.5) else None
        stream = self.random.choice(SIDE)
        if pool is not None and pool.startswith("graph:") and self.chance(0.7):
            stream = model.graphs[pool[6:]].stream
        dropout, fails = self.chance(0.2), self.chance(0.12)
        named = pool is None and self.chance(0.6)
        own = []

        def body():
            for _ in range(self.random.randint(1, 7)):
                if self.collectives and self.chance(0.35):
                    self.captured_collective(stream, own)
                    continue
                if not self.collectives and self.chance(0.15):  # a fork, or an order
                    build.can("wait", stream=self.random.choice(SIDE), other=stream)
                if self.chance(0.2):
                    self.pause()
                if model.capture is None:  # it failed
                    return
                if self.chance(0.05):
                    build.can("capture_refused", graph=build.name("g"), how="pool",
                              stream=self.random.choice(SIDE))
                part = self.random.random()
                on = self.random.choice(sorted(model.capture.clocks))
                try:
                    if part < 0.4 or not own:
                        own.append(build.alloc(on, self.size(), raw=self.chance(0.1)))
                    elif part < 0.55:
                        build.add("drop", tensor=own.pop(self.random.randrange(len(own))))
                    elif part < 0.65:
                        build.add("spin", stream=on, ms=build.spin_ms)
                    elif part < 0.72:
                        name = self.random.choice(own)
                        build.add("write", tensor=name, stream=on, value=build.value())
                    elif part < 0.78:
                        build.add("read", tensor=self.random.choice(own), stream=on)
                    elif part < 0.85:
                        found = [t for t in model.live(graph=None) if t.value is not None]
                        build.add("read", tensor=self._pick(found).name, stream=on)
                    elif part < 0.95:
                        build.alloc(self.stream(stream), self.size())
                    else:
                        build.add("drop", tensor=self.tensor(graph=None).name)
                except Illegal:
                    continue
            if fails and not model.capture.resumed and self.fail():
                return
            build.add("spin", stream=stream, ms=0.1)  # so that no capture is empty
            if model.capture.collectives > model.capture.joined:  # the capture needs a Work to wait for
                x = build.alloc(stream, 4 * SHARES)
                build.add("work_wait", work=build.collective("all_reduce", stream, x), stream=stream)
            if dropout:
                build.can("dropout", tensor=build.name("x"), stream=stream, bytes=self.size())

        graph = build.name("g")
        fields = {"pool": pool} if pool is not None else {"named": True} if named else {}
        build.add("capture_begin", graph=graph, stream=stream,
                  synchronize=model.raw is None and self.chance(0.5), **fields)
        body()
        if model.capture is None:
            return
        build.end_capture(graph)
        if model.graphs[graph].dropout:
            build.add("reference", graph=graph)
        if self.chance(0.7):
            self.replay(graph)

    def pause(self):
        """Of the pool of the open capture, if it has a name."""
        build, model = self.build, self.build.model
        graph = model.capture
        if not build.can("pool_pause", graph=graph.name):
            return
        pools = [pool for pool, graphs in model.pools.items() if not graphs]
        if pools and self.chance(0.5):
            build.can("alloc", tensor=build.name("x"), stream=graph.stream, bytes=self.size(),
                      value=build.value(), pool=self.random.choice(pools))
        if self.chance(0.3):
            build.can("alloc", tensor=build.name("x"), stream=self.stream(), bytes=self.size(),
                      value=build.value())
        if self.chance(0.1) and self.fail():
            return
        keeps = {"keeps": True} if graph.memory.pool is None and self.chance(0.3) else {}
        build.add("pool_resume", graph=graph.name, **keeps)

    def fail(self):
        return self.build.can("capture_fail", graph=self.build.model.capture.name,
                              how=self.random.choice(("synchronize", "item")))

    def layers(self):
        build = self.build
        stream, side = self.random.sample(SIDE, 2)
        graph = build.name("g")
        build.add("capture_begin", graph=graph, stream=stream, named=True,
                  synchronize=build.model.raw is None and self.chance(0.5))
        try:
            _layers(build, stream, side, self.size(), self.random.randint(2, 12))
        except Illegal:  # too much would be live
            build.can("pool_resume", graph=graph)
        build.add("spin", stream=stream, ms=0.1)
        build.end_capture(graph)
        if self.chance(0.7):
            self.replay(graph)

    def refused(self):
        if self.build.model.raw is not None and self.chance(0.8):
            self.build.add("capture_refused", graph=self.build.name("g"),
                           stream=self.build.model.raw, how="raw")
        else:
            self.build.add("capture_refused", graph=self.build.name("g"), stream=MAIN, how="default")

    def library(self):
        """Another library captures a stream, which may be known by its handle alone."""
        build = self.build
        stream = self.stream(MAIN)
        if self.chance(0.6):
            build.can("drop", tensor=build.alloc(stream, self.size(), raw=True))
        build.add("raw_begin", stream=stream)
        for _ in range(self.random.randint(1, 3)):
            if self.chance(0.5):
                build.add("spin", stream=stream, ms=0.1)
            self.take(((self.make, 3), (self.late_use, 2), (self.replay, 1), (self.capture, 1),
                       (self.refused, 1)))
        build.add("raw_end", stream=stream)

    def replay(self, name=None):
        build, model = self.build, self.build.model
        graph = model.graphs[name] if name else self._pick(
            [g for g in model.graphs.values() if g.alive and g.captured])
        user = self.stream()
        if self.chance(0.6):
            build.add("spin", stream=user, ms=build.spin_ms)
        build.add("replay", graph=graph.name, stream=user)
        outputs = [t for t in graph.outputs if model.tensors[t].live]
        if outputs and self.chance(0.7):
            x = self.random.choice(outputs)
            build.use(x, user if self.chance(0.6) else self.stream())
            if self.chance(0.4):
                self.drop_graph(graph)

    def drop_graph(self, graph=None):
        build, model = self.build, self.build.model
        graph = graph or self._pick([g for g in model.graphs.values() if g.alive and g.captured])
        outputs = [t for t in graph.outputs if model.tensors[t].live]
        if self.chance(0.5):
            outputs = outputs[:self.random.randint(0, len(outputs))]
        first = self.chance(0.5)
        if first:
            build.add("graph_drop", graph=graph.name)
        for name in outputs:
            build.add("drop", tensor=name)
        if not first:
            build.add("graph_drop", graph=graph.name)

    # Collectives.

    def collective_kind(self):
        # In a group of one rank those in place have nothing to do.
        return self.random.choice((*COLLECTIVES, *COLLECTIVES[len(IN_PLACE):]))

    def late_collective(self):
        """Queue one behind a long kernel, wait for it or not, drop its tensors: in any order."""
        build, model = self.build, self.build.model
        kind, stream = self.collective_kind(), self.stream()
        size = self.size()
        known = [t for t in model.live() if isinstance(t.value, int) and t.size % (4 * SHARES) == 0
                 and (t.shape == "whole" or kind == "all_gather")]
        if kind in IN_PLACE:
            known = [t for t in known if t.graph is None]
        if known and self.chance(0.3):
            source = self.random.choice(known).name
            size = model.tensors[source].size
        else:
            source = build.alloc(self.stream(), size)
        output = source
        if kind not in IN_PLACE:
            same = [t.name for t in model.live(graph=None, size=size) if t.name != source]
            output = (self.random.choice(same) if same and self.chance(0.3)
                      else build.alloc(self.stream(), size))
        if self.chance(0.8):
            build.add("spin", stream=stream, ms=build.spin_ms)
        work = build.collective(kind, stream, output, source, self.chance(0.9))
        ends = [("drop", name) for name in dict.fromkeys((output, source)) if self.chance(0.7)]
        if work is not None:
            ends += [("work_wait", work)] * self.random.choice((0, 0, 1, 1, 2))
            ends += [("work_drop", work)] * self.chance(0.6)
        self.random.shuffle(ends)
        for op, name in ends:
            if op == "drop":
                build.can("drop", tensor=name)
            elif op == "work_drop":
                build.can("work_drop", work=name)
            else:
                self.wait_for(name, stream)
            if self.chance(0.3):
                self.make()

    def wait_for(self, work, queued_on):
        stream = queued_on if self.chance(0.4) else self.stream()
        how = self.random.choice(("wait", "wait", "thread", "future"))
        self.build.can("work_wait", work=work, stream=stream, **({} if how == "wait" else {"how": how}))

    def a_work(self):
        """Of a collective that was queued some time ago."""
        work = self._pick(self.build.model.live_works())
        if self.chance(0.5):
            self.build.add("work_drop", work=work.name)
        else:
            self.wait_for(work.name, self.stream())

    def captured_collective(self, stream, own):
        """On the captured stream; `own`: what the capture has made, and has not dropped."""
        build, model = self.build, self.build.model
        kind = self.collective_kind()
        try:
            open_ = model.live_works(graph=model.capture)
            if open_ and self.chance(0.4):
                work = self.random.choice(open_).name
                if self.chance(0.6):
                    build.add("work_wait", work=work, stream=stream)
                else:
                    build.add("work_drop", work=work)
                return
            source = None
            outside = [t for t in model.live(graph=None, shape="whole")
                       if isinstance(t.value, int) and t.size % (4 * SHARES) == 0]
            if kind not in IN_PLACE and outside and self.chance(0.4):
                source = self.random.choice(outside).name
            elif own and self.chance(0.5):
                source = self.random.choice(own)
            if source is None:
                source = build.alloc(stream, self.size())
                own.append(source)
            output = source
            if kind not in IN_PLACE:
                output = build.alloc(stream, model.tensors[source].size)
                own.append(output)
            if self.chance(0.5):
                build.add("spin", stream=stream, ms=build.spin_ms)
            build.collective(kind, stream, output, source, self.chance(0.9))
            for name in dict.fromkeys((output, source)):
                if name in own and self.chance(0.6) and build.can("drop", tensor=name):
                    own.remove(name)
        except Illegal:
            pass

    def in_a_thread(self):
        inner = Builder(thread=True, spin_ms=self.build.spin_ms, prefix="u")
        draw = _Draw(self.random, inner, True)
        for _ in range(self.random.randint(2, 6)):
            draw.take(((draw.late_use, 5), (draw.make, 2), (draw.read, 1), (draw.drop, 1),
                       (draw.host_sync, 1)))
        self.build.add("thread", steps=inner.finished())

    def take(self, weighted):
        actions, weights = zip(*weighted)
        try:
            self.random.choices(actions, weights)[0]()
        except Illegal:
            pass  # what was added up to there stays, and is allowed


def random_program(seed, spin_ms=6.0, collectives=None, peers=False):
    """The program of that seed: the same wherever and whenever it is drawn.

    collectives: a level; then it has some, and is allowed at that level. peers: streams of GPU 1 copy
    its tensors.
    """
    kind = " with collectives" if collectives else " with peers" if peers else ""
    name = f"seed {seed}{kind}" + (f" at {collectives}" if collectives else "")
    random_ = random.Random(f"program {seed}{kind}")
    build = Builder(collectives or "L1", spin_ms=spin_ms)
    draw = _Draw(random_, build, False, bool(collectives), peers)
    stanzas, disturbers = random_.randint(2, 9), (
        (draw.make, 6), (draw.empty_cache, 2), (draw.limit, 1), (draw.caching, 1), (draw.pool, 2),
        (draw.external, 2), (draw.capture, 3), (draw.layers, 1), (draw.refused, 1), (draw.library, 1),
        (draw.replay, 2), (draw.drop_graph, 1))
    others = ((draw.make, 3), (draw.read, 3), (draw.drop, 3), (draw.spin, 1), (draw.wait, 2),
              (draw.host_sync, 2), (draw.external, 1), (draw.pool, 1), (draw.capture, 1))
    late = ((draw.late_use, 4), (draw.replay, 1))
    if collectives:
        late, others = (*late, (draw.late_collective, 8)), (*others, (draw.a_work, 3))
    if random_.random() < 0.2:
        draw.take(((draw.in_a_thread, 1),))
    if random_.random() < 0.15:
        _ballast(build)
    for _ in range(stanzas):
        for _ in range(random_.randint(0, 2)):
            draw.take(others)
        draw.take(late)
        for _ in range(random_.randint(1, 2)):
            draw.take(disturbers)
    build.add("device_sync")  # late writes have come by then
    for tensor in build.model.live():
        if tensor.value is not None and tensor.stream in build.model.streams:
            build.can("read", tensor=tensor.name, stream=tensor.stream)
    if build.model.limit:
        build.can("limit", bytes=0)
    if not build.model.caching:
        build.can("caching", on=True)
    try:
        return {"name": name, "steps": build.finished()}
    except Illegal:  # a thread that records, beside a capture: the program without the thread
        return {"name": name,
                "steps": [step for step in build.steps if step["op"] != "thread"]}
