# SPDX-License-Identifier: Apache-2.0
"""Programs as lists of plain steps, and which of them PyTorch's rules allow.

A program is {"name": ..., "steps": [...]}; a step is a dictionary of strings, numbers and booleans:

  alloc          tensor stream bytes value [pool] [raw]      made and filled on the stream; raw: by its
                                                    handle (torch.cuda.caching_allocator_alloc)
  dropout        tensor stream bytes                in a capture: the output of dropout
  read, write    tensor stream [value]              on the stream; a read checks the tensor's value
  spin           stream ms                          a kernel that runs for that long
  wait           stream other                       stream waits for the work queued on other so far;
                                                    if that is captured, the stream joins the capture
  record_stream  tensor stream
  drop           tensor
  host_sync      stream                             the host waits for the stream
  device_sync, empty_cache
  limit          bytes                              of memory in all; 0: none
  caching        on                                 torch.cuda.caching_allocator_enable
  pool_new       pool [graphs]                      a MemPool, for tensors or for graphs only
  pool_drop      pool
  stream_new, stream_destroy   stream               an external stream, by the driver
  peer_read      tensor stream                      a stream of GPU 1 copies the tensor, by peer access
  capture_begin  graph stream synchronize [pool] [named]     pool: "graph:g0" or "pool:p0", else its own,
                                                    named: of torch.cuda.graph_pool_handle()
  capture_end    graph                              between them work on the stream is captured
  pool_pause     graph                              within its capture: _cuda_endAllocateToPool
  pool_resume    graph [keeps]                      _cuda_beginAllocateCurrentThreadToPool, and unless it
                                                    keeps the use that this adds, _cuda_releasePool
  pool_holds     graph most                         its pool has so many bytes at most
  capture_fail   graph how                          a forbidden call ("synchronize", "item"); then
                                                    capture_end() raises
  capture_refused  graph stream how                 capture_begin() raises: on the default stream
                                                    ("default"), in the pool of the open capture
                                                    ("pool"), or while another library captures ("raw")
  raw_begin, raw_end   stream                       another library captures the stream, by the driver
  reference      graph                              replays it alone, and keeps what dropout chose
  replay         graph stream
  graph_drop     graph
  thread         steps                              another thread runs these on streams u0, u1, u2
  collective     kind stream output [input] [work]  of torch.distributed, queued from the stream. With
                                                    work: async_op=True; without: on the stream itself
  work_wait      work stream [how]                  how: "wait", or "thread" (another one calls wait()),
                                                    or "future" (get_future().wait())
  work_drop      work

Streams: main (the default stream), s0 to s3 (PyTorch's), e0 and on (external), u0 to u2 (a thread's),
p0 and p1 (of GPU 1: they only copy).
Asynchronous collectives run on the communication stream, which no step names.

Every rank of a group runs the same program, so that each tensor holds the same on all of them, and the
result of a collective is its input, whatever the number of ranks: all_reduce takes the maximum;
all_gather sends a rank's own share of the input and fills the output; reduce_scatter fills a rank's
share of the output alone (its shape is then "part"); all_to_all leaves the shares in another order
("mixed"). Only all_gather takes inputs that are not "whole".

Legality is a matter of the program alone; no allocator is asked. Each stream, and the host, has a vector
clock: how much of every stream's work is known to come first. Levels:

  L0  what PyTorch documents: another stream's uses of a tensor are waited for by the stream that the
      tensor was made on, or recorded with record_stream, before the tensor is dropped
  L2  what is safe with expandable segments too, which wait for the stream that memory was made on, and
      not for the device, before they unmap it
  L1  what is safe with PyTorch's own allocator: another stream's uses are queued before the drop, and the
      stream that the tensor was made on waits for them before it next writes to memory that it
      allocates afterwards in the same pool. cudaFree waits for everything
  F   what is safe where asynchronous collectives have fences, as with Weir: as L1, but memory of their
      tensors needs no wait. (PyTorch's own allocator has the memory back once a stream, whichever it
      is, has waited for the Work; before that PyTorch keeps the tensors. In a capture it keeps them
      as long as the Work is there)

A capture that fails, or never begins, leaves its pool bound in PyTorch: it is captured into no more. What
the failed capture made in a pool of its own is memory like any other. Graphs that PyTorch so has a
pointer to are kept to the end of the process. Nobody documents that cudaFree waits for other GPUs:
before memory may be unmapped, its stream waits for the copies that they make.
"""

from __future__ import annotations

LEVELS = ("L0", "L2", "L1", "F")  # what a program needs: the first that allows it

MAIN = "main"
SIDE = ("s0", "s1", "s2", "s3")
THREAD = ("u0", "u1", "u2")
PEERS = ("p0", "p1")
COMM = "comm"  # the communication stream
IN_PLACE = ("all_reduce", "broadcast")
COLLECTIVES = (*IN_PLACE, "all_gather", "reduce_scatter", "all_to_all")
SHARES = 8  # a collective's tensors can be divided among so many ranks
MAX_BYTES = 64 << 20
MAX_LIVE_BYTES = 1 << 30
MAX_PEER_BYTES = 128 << 20  # that a program copies to GPU 1
LIMIT_SPARE = 512 << 20  # what a limit must leave, beyond four times what is live
POOL_SPARE = 24 << 20  # what a pool may hold for each stream, beyond what its blocks need

_THREAD_STEPS = ("alloc", "read", "write", "spin", "wait", "record_stream", "drop", "host_sync")


class Illegal(Exception):
    """The step is not allowed here. `remedy` has steps that make it so, where there are any."""

    def __init__(self, reason, remedy=()):
        super().__init__(reason)
        self.remedy = list(remedy)


def join(clock, other):
    for stream, count in other.items():
        if count > clock.get(stream, 0):
            clock[stream] = count


def missing(clock, needed):
    """The streams whose work in `needed` is not before `clock`."""
    return sorted(stream for stream, count in needed.items() if count > clock.get(stream, 0))


class Tensor:
    def __init__(self, name, stream, size, value):
        self.name, self.stream, self.size, self.value = name, stream, size, value
        self.pool = None  # a MemPool's name
        self.cached = True
        self.graph = None  # of whose memory it is
        self.live = True
        self.written = {}  # clock of the last write
        self.uses = {}  # by stream: the last use, as that stream counts
        self.recorded = set()
        self.raw = False  # of caching_allocator_alloc
        self.borrowed = False  # by a capture, from a MemPool
        self.captured_write, self.captured_uses = {}, {}  # as the streams of its capture count
        self.shape = "whole"  # or "part", "mixed"
        self.kept_for = set()  # Works that nobody has waited for: PyTorch keeps the tensor


class Work:
    """Of an asynchronous collective."""

    def __init__(self, name, output, source, graph, count, clock):
        self.name, self.output, self.graph = name, output, graph
        self.tensors = {output, source}
        self.count = count  # as the communication stream counts; in a capture, as the capture does
        self.clock = clock
        self.live = True


class Graph:
    def __init__(self, name, stream, memory, began):
        self.name, self.stream, self.memory = name, stream, memory
        self.began = began  # what came before the capture
        self.captured = False
        self.alive = True
        self.dropout = False
        self.referenced = False
        self.steps = 0
        self.inputs = {}  # tensors that it reads, and what they must hold
        self.outputs = {}  # its own tensors, and what they hold after a replay
        self.last_stream = stream
        self.collectives = 0  # asynchronous ones
        self.joined = 0  # the captured stream has waited for so many of them
        self.comm_reads, self.comm_writes = {}, {}  # by tensor: the last of them that did
        self.named = False
        self.paused = self.resumed = False  # its pool
        self.queued, self.clocks = {}, {stream: {}}  # captured work, by stream
        self.pending = {}  # by (stream, MemPool): captured uses elsewhere of what was dropped
        self.borrowed = []  # tensors of MemPools


class GraphMemory:
    """What the graphs of one pool share."""

    def __init__(self, stream):
        self.stream = stream
        self.pool = None  # the MemPool's name, where the graphs use one
        self.graphs = []  # in the order of their captures
        self.accesses = {}  # of replays, and of reads of outputs
        self.bound = False  # by a capture that failed
        self.captured = {stream}  # all streams that were captured with it
        self.eager = set()  # those that it served while they were not captured
        self.live, self.peaks, self.sizes = {}, {}, {}  # bytes by stream; sizes: that were asked for

    def hold(self, stream, size):
        self.live[stream] = self.live.get(stream, 0) + size
        self.peaks[stream] = max(self.peaks.get(stream, 0), self.live[stream])
        self.sizes.setdefault(stream, set()).add(max(0, size))

    def least(self):
        """What no allocator needs more than, that uses the memory of each stream again: a block of
        each size beyond twice what is live."""
        return sum(2 * peak + sum(self.sizes[stream]) + POOL_SPARE
                   for stream, peak in self.peaks.items())


class Seeds:
    """Where PyTorch keeps the seed and offset that graphs read: two small tensors, made by the first
    capture on its stream, filled by each replay, dropped with the last graph."""

    def __init__(self):
        self.graphs = set()
        self.stream = None
        self.born = {}  # what came before the capture that made them
        self.uses = {}
        self.dropout_uses = {}
        # A capture was refused: PyTorch 2.11 takes its random numbers for captured until one has ended well.
        self.captured = False


class Model:
    """A program as far as it has been checked: apply() takes its steps in turn."""

    def __init__(self, level="L1", thread=False):
        self.level = level
        self.streams = set(THREAD if thread else (MAIN, *SIDE))
        self.thread = thread
        self.queued = {}
        self.clocks = {}
        self.host = {}
        self.tensors = {}
        self.pools = {}  # name: is for graphs
        self.dropped_pools = set()
        self.graphs = {}
        self.capture = None  # the Graph whose capture is open
        self.seeds = Seeds()
        self.caching = True
        self.limit = 0
        self.destroyed = set()
        self.deferred = set()  # streams recorded on tensors that were dropped during a capture
        # By (stream, pool), of dropped tensors: uses on other streams that nothing but the program
        # itself puts before the stream's next allocation.
        self.pending = {}
        self.works = {}
        self.raw = None  # the stream that another library captures
        self.peer_bytes = 0
        self.threads = 0
        self.has_capture = False
        self.thread_records = False

    # What generators ask.

    def live(self, **conditions):
        return [tensor for tensor in self.tensors.values() if tensor.live and all(
            getattr(tensor, name) == value for name, value in conditions.items())]

    def live_bytes(self):
        outputs = {work.output for work in self.works.values() if work.live}
        return sum(tensor.size for tensor in self.tensors.values()
                   if tensor.live or tensor.kept_for or tensor.name in outputs)

    def live_works(self, **conditions):
        return [work for work in self.works.values() if work.live and all(
            getattr(work, name) == value for name, value in conditions.items())]

    def least_limit(self, more=0):
        """A limit under which no allocator that fragments memory in reason is out of memory."""
        graphs = sum(tensor.size for tensor in self.tensors.values()
                     if tensor.graph is not None and not tensor.live)
        return LIMIT_SPARE + 4 * (self.live_bytes() + graphs + more)

    def capturing(self, stream):
        return self.capture is not None and stream in self.capture.clocks

    # Clocks.

    def clock(self, stream):
        """What comes before the next work on `stream`."""
        found = dict(self.clocks.get(stream, {}))
        join(found, self.host)
        return found

    def _queue(self, stream):
        clock = self.clock(stream)
        self.queued[stream] = self.queued.get(stream, 0) + 1
        clock[stream] = self.queued[stream]
        self.clocks[stream] = clock
        return dict(clock)

    def _need(self, stream, needed, why, clock=None):
        """`clock`: what comes before the work in question; else what comes before any on the stream."""
        others = missing(self.clock(stream) if clock is None else clock, needed)
        if others:
            remedy = [self._wait_for(stream, other, needed) for other in others]
            if any(self.capturing(each) or each == self.raw for each in (*others, stream)):
                remedy = []
            raise Illegal(f"{stream} must wait for {', '.join(others)}: {why}",
                          [] if None in remedy else remedy)

    def _wait_for(self, stream, other, needed):
        """The step that makes `stream` wait for what of `other` is in `needed`; None: there is none."""
        if other != COMM:
            return {"op": "wait", "stream": stream, "other": other}
        works = [work for work in self.live_works(graph=None) if work.count >= needed[COMM]]
        if works:
            work = min(works, key=lambda work: work.count)
            return {"op": "work_wait", "work": work.name, "stream": stream}
        return {"op": "device_sync"} if self.capture is None and self.raw is None else None

    # In a capture.

    def _queue_captured(self, stream):
        graph = self.capture
        graph.steps += 1
        graph.queued[stream] = graph.clocks[stream][stream] = graph.queued.get(stream, 0) + 1
        return dict(graph.clocks[stream])

    def _need_captured(self, stream, needed, why):
        others = missing(self.capture.clocks[stream], needed)
        if others:
            raise Illegal(f"{stream}, captured, must wait for {', '.join(others)}: {why}",
                          [{"op": "wait", "stream": stream, "other": other} for other in others])

    def _join_capture(self, stream):
        graph = self.capture
        if stream not in SIDE or graph.collectives or graph.paused or self._event_is_due(stream):
            raise Illegal(f"{stream} can't join the capture")
        if stream in graph.memory.eager:
            raise Illegal(f"the pool served {stream} beside the capture")
        graph.memory.captured.add(stream)
        join(graph.began, self.clock(stream))
        graph.clocks[stream] = {}

    def _event_is_due(self, stream):
        """Whether PyTorch's own allocator may have yet to record an event on the stream."""
        return stream in self.deferred or any(stream in each.recorded for each in self.live())

    # Checks.

    def _stream(self, step, name="stream", peers=False):
        stream = step[name]
        if stream not in self.streams and not (peers and stream in PEERS and not self.thread):
            raise Illegal(f"there is no stream {stream}")
        if stream == self.raw:
            raise Illegal(f"another library captures {stream}")
        return stream

    def _eager_stream(self, step, name="stream", peers=False):
        stream = self._stream(step, name, peers)
        if self.capturing(stream):
            raise Illegal(f"{stream} is captured")
        return stream

    def _no_capture(self):
        if self.capture is not None or self.raw is not None:
            raise Illegal("a capture is open")

    def _tensor(self, step):
        tensor = self.tensors.get(step["tensor"])
        if tensor is None or not tensor.live:
            raise Illegal(f"there is no tensor {step['tensor']}")
        return tensor

    def _graph(self, step):
        graph = self.graphs.get(step["graph"])
        if graph is None or not graph.alive or not graph.captured:
            raise Illegal(f"there is no graph {step['graph']}")
        return graph

    @staticmethod
    def _owner(stream):
        """Whose memory a stream's is. The driver may give a new external stream the handle of one that
        was destroyed, and so its memory."""
        return "external" if stream.startswith("e") else stream

    def _pending_of(self, stream, pool):
        return self.pending.setdefault((self._owner(stream), pool), {})

    def _reusable(self, stream, pool):
        self._need(stream, self._pending_of(stream, pool), "its next allocation may reuse memory")

    def _may_unmap(self):
        """L2: memory that may go is not in use behind the back of the stream that it was made on. On
        all levels: nor by another GPU."""
        def due(uses):
            return uses if self.level == "L2" else {
                stream: count for stream, count in uses.items() if stream in PEERS}

        for (owner, _), uses in self.pending.items():
            needed = due(uses)
            streams = [owner] if owner != "external" else sorted(
                stream for stream in self.streams if stream.startswith("e"))
            for stream in streams:
                self._need(stream, needed, "its memory may be unmapped")
        for memory in {id(graph.memory): graph.memory for graph in self.graphs.values()}.values():
            if not any(graph.alive for graph in memory.graphs):
                self._need(memory.stream, due(memory.accesses), "its memory may be unmapped")

    def _use(self, tensor, stream, clock):
        tensor.uses[stream] = clock[stream]
        if tensor.graph is not None:
            join(tensor.graph.memory.accesses, {stream: clock[stream]})

    # Steps.

    def apply(self, step):
        """Raises Illegal, and then nothing has changed."""
        op = step["op"]
        if self.thread and op not in _THREAD_STEPS:
            raise Illegal(f"a thread takes no step {op}")
        method = getattr(self, "_" + op, None) if op in OPS else None
        if method is None:
            raise Illegal(f"there is no step {op}")
        try:
            method(step)
        except KeyError as absent:
            raise Illegal(f"{op} needs {absent}") from absent

    def _new_tensor(self, step):
        if step["tensor"] in self.tensors:
            raise Illegal(f"tensor {step['tensor']} exists, or existed")
        if not 4 <= step["bytes"] <= MAX_BYTES or step["bytes"] % 4:
            raise Illegal(f"{step['bytes']} bytes are not a tensor")
        if self.live_bytes() + step["bytes"] > MAX_LIVE_BYTES:
            raise Illegal("too much memory would be live")
        if self.limit and self.limit < self.least_limit(step["bytes"]):
            raise Illegal("the limit might be reached")

    def _alloc(self, step):
        stream, pool = self._stream(step), step.get("pool")
        self._new_tensor(step)
        tensor = Tensor(step["tensor"], stream, step["bytes"], step["value"])
        tensor.raw = bool(step.get("raw"))
        if tensor.raw and (pool is not None or not self.caching or self.thread):
            raise Illegal("raw memory is of the default pool")
        if self.capturing(stream):
            self._alloc_captured(tensor, stream, pool)
            return
        own = self.capture if self.capture is not None and self.capture.resumed else None
        if own is not None and pool is None:
            if stream in own.memory.captured:
                raise Illegal("the pool's memory of that stream is the graph's")
            own.memory.eager.add(stream)
            own.memory.hold(stream, step["bytes"])
            tensor.pool = f"of:{own.name}"
            self._reusable(stream, tensor.pool)
            self._born(tensor, stream)
            return
        if pool is not None and (self.thread or self.pools.get(pool) is not False):
            raise Illegal(f"there is no pool {pool} for tensors")
        if not self.caching:
            if pool is not None or self.thread or self.capture is not None:
                raise Illegal("caching is off")
            tensor.cached = False
        else:
            self._reusable(stream, pool)
            if self.limit:
                self._may_unmap()
        tensor.pool = pool
        self._born(tensor, stream)

    def _born(self, tensor, stream):
        clock = self._queue(stream)
        tensor.written = clock
        self._use(tensor, stream, clock)
        self.tensors[tensor.name] = tensor

    def _alloc_captured(self, tensor, stream, pool):
        graph = self.capture
        if (pool is not None) != graph.paused:
            raise Illegal("a captured tensor is the graph's, unless its pool takes no requests")
        if pool is not None and self.pools.get(pool) is not False:
            raise Illegal(f"there is no pool {pool} for tensors")
        self._need_captured(stream, graph.pending.get((stream, pool), {}),
                            "its next allocation may reuse memory")
        tensor.graph, tensor.pool, tensor.borrowed = graph, pool, pool is not None
        graph.outputs[tensor.name], tensor.value = tensor.value, None
        if tensor.borrowed:
            graph.borrowed.append(tensor.name)
            join(graph.began, self._pending_of(stream, pool))
        else:
            graph.memory.hold(stream, tensor.size)
        tensor.captured_write = self._queue_captured(stream)
        tensor.captured_uses = {stream: tensor.captured_write[stream]}
        self.tensors[tensor.name] = tensor

    def _dropout(self, step):
        stream = self._stream(step)
        self._new_tensor(step)
        if not self.capturing(stream) or self.capture.stream != stream or self.capture.paused:
            raise Illegal("dropout is for captures")
        self._need_captured(stream, self.capture.pending.get((stream, None), {}),
                            "its next allocation may reuse memory")
        tensor = Tensor(step["tensor"], stream, step["bytes"], None)
        tensor.graph = self.capture
        self.capture.memory.hold(stream, 3 * tensor.size)
        self.capture.memory.hold(stream, -2 * tensor.size)
        self.capture.outputs[tensor.name] = "dropout"
        self.capture.dropout = True
        self._queue_captured(stream)
        self.tensors[tensor.name] = tensor

    def _joined(self, tensor, write):
        """The captured stream has waited for the captured collectives that use the tensor."""
        graph = self.capture
        needed = max(graph.comm_writes.get(tensor.name, 0),
                     graph.comm_reads.get(tensor.name, 0) if write else 0)
        self._need_joined(needed, f"{tensor.name} is used there")

    def _need_joined(self, count, why):
        graph = self.capture
        if count > graph.joined:
            works = [work for work in self.live_works(graph=graph) if work.count >= count]
            raise Illegal(f"{graph.stream} must wait for a collective: {why}",
                          [{"op": "work_wait", "stream": graph.stream,
                            "work": min(works, key=lambda work: work.count).name}] if works else [])

    def _captured_use(self, tensor, stream, value):
        graph = self.capture
        self._joined(tensor, value is not None)
        if tensor.graph is graph:
            if graph.outputs[tensor.name] == "dropout":
                raise Illegal("what dropout chose is not known in the capture")
            needed = dict(tensor.captured_write)
            join(needed, tensor.captured_uses if value is not None else {})
            self._need_captured(stream, needed, f"{tensor.name} is used there")
            clock = self._queue_captured(stream)
            tensor.captured_uses[stream] = clock[stream]
            if value is not None:
                tensor.captured_write = clock
                graph.outputs[tensor.name] = value
                tensor.shape = "whole"
        else:
            self._captured_input(tensor, value is not None)
            self._queue_captured(stream)

    def _captured_input(self, tensor, write=False):
        if tensor.graph is not None or write or tensor.value is None or tensor.shape != "whole":
            raise Illegal("a capture only reads tensors made outside, of known value")
        self.capture.inputs[tensor.name] = tensor.value

    def _read(self, step):
        tensor, stream = self._tensor(step), self._stream(step)
        if self.capturing(stream):
            self._captured_use(tensor, stream, None)
            return
        if tensor.value is None:
            raise Illegal(f"what {tensor.name} holds is not known")
        self._need(stream, tensor.written, f"{tensor.name} is written there")
        self._use(tensor, stream, self._queue(stream))

    def _write(self, step):
        tensor, stream = self._tensor(step), self._stream(step)
        if self.capturing(stream):
            self._captured_use(tensor, stream, step["value"])
            return
        if tensor.graph is not None:
            raise Illegal("outputs of graphs are only read")
        needed = dict(tensor.written)
        join(needed, tensor.uses)
        self._need(stream, needed, f"{tensor.name} is used there")
        clock = self._queue(stream)
        tensor.written, tensor.value, tensor.shape = clock, step["value"], "whole"
        self._use(tensor, stream, clock)

    def _peer_read(self, step):
        tensor, stream = self._tensor(step), step["stream"]
        if stream not in PEERS or self.thread or not isinstance(tensor.value, int) or (
                tensor.shape != "whole"):
            raise Illegal("streams of GPU 1 copy whole tensors of known value")
        if self.peer_bytes + tensor.size > MAX_PEER_BYTES:
            raise Illegal("GPU 1 has no more room")
        self._need(stream, tensor.written, f"{tensor.name} is written there")
        self.peer_bytes += tensor.size
        self._use(tensor, stream, self._queue(stream))

    def _spin(self, step):
        if not 0 < step["ms"] <= 100:
            raise Illegal("a spin takes up to 100 ms")
        if step["stream"] == self.raw:
            return  # what another library captures never runs
        stream = self._stream(step, peers=True)
        if self.capturing(stream):
            self._queue_captured(stream)
        else:
            self._queue(stream)

    def _wait(self, step):
        stream, other = self._stream(step, peers=True), self._stream(step, "other", peers=True)
        if stream == other:
            raise Illegal("a stream does not wait for itself")
        if self.capturing(other):
            if not self.capturing(stream):
                self._join_capture(stream)
            join(self.capture.clocks[stream], self.capture.clocks[other])
            return
        if self.capturing(stream):
            raise Illegal(f"{stream} is captured")
        clock = self.clock(stream)
        join(clock, self.clock(other))
        self.clocks[stream] = clock

    def _record_stream(self, step):
        tensor, stream = self._tensor(step), self._eager_stream(step, peers=True)
        if self.capture is not None:  # PyTorch counts it as a captured use
            raise Illegal("a capture is open")
        if (tensor.raw or tensor.graph is not None or stream == tensor.stream
                or tensor.stream in self.destroyed):
            raise Illegal("record_stream is for another stream's use of an eager tensor")
        tensor.recorded.add(stream)
        self.thread_records |= self.thread

    def _drop(self, step):
        tensor = self._tensor(step)
        external = self._owner(tensor.stream) == "external"
        foreign = {stream: count for stream, count in tensor.uses.items()
                   if (external or stream != tensor.stream)
                   and not (stream in tensor.recorded and tensor.cached)}
        if tensor.kept_for or self.level == "F":
            foreign.pop(COMM, None)
        home = tensor.stream if tensor.graph is None else tensor.graph.last_stream
        if self.level == "L0":
            seen = self.clock(home)
            others = missing(seen, {stream: count for stream, count in foreign.items()
                                    if stream != home})
            if others:
                remedy = [self._wait_for(home, other, foreign) for other in others]
                raise Illegal(f"{home} must wait for {', '.join(others)} before the drop",
                              remedy if self.capture is None and home not in self.destroyed else [])
        if not tensor.cached:
            if self.raw is not None:
                raise Illegal("cudaFree waits for the device")
            self._need(tensor.stream, {stream: count for stream, count in foreign.items()
                                       if stream in PEERS}, "its memory is unmapped")
        tensor.live = False
        if tensor.graph is None:
            if tensor.cached:
                join(self._pending_of(tensor.stream, tensor.pool), foreign)
            if self.capture is not None:
                self.deferred |= tensor.recorded
            own = self.capture and f"of:{self.capture.name}"
            if own is not None and tensor.pool == own:
                self.capture.memory.hold(tensor.stream, -tensor.size)
            return
        if tensor.borrowed:  # the graph is replayed no more
            join(self._pending_of(tensor.stream, tensor.pool), tensor.graph.memory.accesses)
        elif tensor.graph is self.capture:
            self.capture.memory.hold(tensor.stream, -tensor.size)
        if tensor.graph is self.capture:
            join(self.capture.pending.setdefault((tensor.stream, tensor.pool), {}),
                 {stream: count for stream, count in tensor.captured_uses.items()
                  if stream != tensor.stream})

    def _host_sync(self, step):
        join(self.host, self.clock(self._eager_stream(step, peers=True)))

    def _device_sync(self, _):
        self._no_capture()
        join(self.host, self.queued)

    def _empty_cache(self, _):
        self._no_capture()
        self._may_unmap()

    def _limit(self, step):
        self._no_capture()
        if step["bytes"] and (step["bytes"] < self.least_limit() or self.threads):
            raise Illegal("the limit might be reached")
        self._may_unmap()
        self.limit = step["bytes"]

    def _caching(self, step):
        self._no_capture()
        self.caching = bool(step["on"])

    def _pool_new(self, step):
        self._no_capture()
        if step["pool"] in self.pools or step["pool"] in self.dropped_pools:
            raise Illegal(f"pool {step['pool']} exists, or existed")
        self.pools[step["pool"]] = bool(step.get("graphs"))

    def _pool_drop(self, step):
        self._no_capture()
        if step["pool"] not in self.pools:
            raise Illegal(f"there is no pool {step['pool']}")
        for graph in self.graphs.values():
            if graph.alive and graph.memory is self._pool_memory(step["pool"]):
                raise Illegal("a graph uses the pool")
        self._may_unmap()
        del self.pools[step["pool"]]
        self.dropped_pools.add(step["pool"])

    def _pool_memory(self, pool):
        return next((graph.memory for graph in self.graphs.values()
                     if graph.memory.pool == pool), None)

    def _stream_new(self, step):
        stream = step["stream"]
        if not stream.startswith("e") or stream in self.streams or stream in self.destroyed:
            raise Illegal(f"{stream} is no name for a new external stream")
        self._no_capture()
        self.streams.add(stream)

    def _stream_destroy(self, step):
        stream = self._stream(step)
        self._no_capture()
        if not stream.startswith("e"):
            raise Illegal("PyTorch's streams stay")
        if missing(self.host, self.clock(stream)):
            raise Illegal(f"the host must wait for {stream}", [{"op": "host_sync", "stream": stream}])
        if stream in self.deferred or any(stream in tensor.recorded for tensor in self.live()):
            raise Illegal(f"{stream} is recorded on a tensor")
        if self.level == "L0" and self.live(stream=stream):
            raise Illegal(f"{stream} has tensors")
        if self.level == "L2" and any(each.stream == stream for each in self.tensors.values()):
            raise Illegal(f"{stream} has memory, and is waited for when that is unmapped")
        self.streams.remove(stream)
        self.destroyed.add(stream)

    def _capture_begin(self, step):
        stream, name, pool = self._stream(step), step["graph"], step.get("pool")
        if self.capture is not None or self.raw is not None and step["synchronize"]:
            raise Illegal("a capture is open")
        if name in self.graphs or stream not in SIDE or not self.caching or self.limit:
            raise Illegal("no capture can begin so")  # under a limit PyTorch can free nothing for it
        memory, of = GraphMemory(stream), None
        if pool is not None:
            kind, _, of = pool.partition(":")
            if kind == "graph":
                memory, of = self._graph({"graph": of}).memory, None
            elif kind == "pool" and self.pools.get(of):
                memory = self._pool_memory(of) or memory
            else:
                raise Illegal(f"there is no pool {pool} for graphs")
        if memory.bound or stream in memory.eager:
            raise Illegal("a failed capture has the pool, or it served the stream beside a capture")
        if step["synchronize"]:  # then nothing is left to wait for
            self._may_unmap()
            join(self.host, self.queued)
        began = self._register(name, stream)
        if of is not None:
            memory.pool = of
        self.capture = self.graphs[name] = Graph(name, stream, memory, began)
        self.capture.named = bool(step.get("named")) or pool is not None
        memory.graphs.append(self.capture)
        memory.captured.add(stream)
        self.has_capture = True

    def _register(self, name, stream):
        """A graph that is to be captured makes the seed, or fills it anew. Returns what came before."""
        seeds = self.seeds
        # Graphs of earlier programs that failed may have kept it.
        needed = dict(seeds.dropout_uses)
        join(needed, seeds.born if seeds.graphs else {})
        if not seeds.graphs:
            self._reusable(stream, None)
        self._need(stream, needed, "the seed that graphs read is used there")
        began = self.clock(stream)
        clock = self._queue(stream)  # a capture fills the seed, and before that comes what began it
        if not seeds.graphs:
            seeds.stream, seeds.born, seeds.uses = stream, began, {}
        join(seeds.uses, {stream: clock[stream]})
        seeds.graphs.add(name)
        return began

    def _capture_end(self, step):
        if self.capture is None or self.capture.name != step["graph"]:
            raise Illegal(f"{step['graph']} is not captured")
        self._need_joined(self.capture.collectives, "the capture ends")
        self._need_captured(self.capture.stream, self.capture.queued, "the capture ends")
        if not self.capture.steps or self.capture.paused:
            raise Illegal("the capture is empty, or its pool is paused")
        self.capture.captured = True
        self.capture.resumed = False
        self.capture = None
        self.seeds.captured = False

    def _open_capture(self, step):
        if self.capture is None or self.capture.name != step["graph"]:
            raise Illegal(f"{step['graph']} is not captured")
        return self.capture

    def _pool_pause(self, step):
        graph = self._open_capture(step)
        if graph.paused or not graph.named:
            raise Illegal("the pool has no name, or is paused")
        # While no pool is bound PyTorch's own allocator records the events that it has put off.
        if any(self._event_is_due(stream) for stream in graph.clocks):
            raise Illegal("a captured stream is recorded on a tensor")
        graph.paused, graph.resumed = True, False

    def _pool_resume(self, step):
        graph = self._open_capture(step)
        if not graph.paused or step.get("keeps") and graph.memory.pool is not None:
            raise Illegal("the pool is not paused, or a MemPool, whose end asks who uses it")
        graph.paused, graph.resumed = False, True

    def _pool_holds(self, step):
        graph = self._graph(step)
        self._no_capture()
        if len(graph.memory.graphs) != 1 or step["most"] < graph.memory.least():
            raise Illegal("the pool may need more")

    def _capture_fail(self, step):
        graph = self._open_capture(step)
        if step["how"] not in ("synchronize", "item"):
            raise Illegal(f"{step['how']} does not fail a capture")
        if graph.collectives or graph.resumed or graph.memory.pool is not None or self.raw:
            raise Illegal("such a capture is not made to fail")
        memory, self.capture = graph.memory, None
        graph.alive = self.seeds.captured = False
        join(self.seeds.dropout_uses, self.seeds.born)  # which may be there to the end
        self._unregister(graph.name)
        memory.bound = True  # PyTorch's pinned memory is recorded to it for good
        memory.graphs.remove(graph)
        for name in graph.outputs:  # nothing of the capture has run
            tensor = self.tensors[name]
            if not memory.graphs and not tensor.borrowed:
                tensor.graph, tensor.pool = None, f"failed:{graph.name}"

    def _capture_refused(self, step):
        name, stream, how = step["graph"], step["stream"], step["how"]
        if name in self.graphs or not self.caching or self.limit or self.thread:
            raise Illegal("no capture can be refused so")
        graph = self.capture
        possible = {"default": stream == MAIN,
                    # (Of another library's stream nobody knows that it is captured.)
                    "raw": self.raw is not None and stream == self.raw and stream in SIDE,
                    "pool": stream in SIDE and graph is not None and graph.named and
                            not graph.paused and graph.memory.pool is None}
        if not possible.get(how):
            raise Illegal(f"nothing refuses the capture: {how}")
        # Versions of PyTorch differ in whether there is a seed then, which the graph keeps.
        if how != "raw":
            self._register(name, self._eager_stream(step))
            self.seeds.graphs.discard(name)
        elif missing(self.clock(stream), self._pending_of(stream, None)):
            raise Illegal("the seed may reuse memory")
        began = self.clock(stream)
        join(self.seeds.dropout_uses, began)
        self.seeds.captured |= how == "default"
        refused = self.graphs[name] = Graph(name, stream, GraphMemory(stream), began)
        refused.alive = False
        self.has_capture = True

    def _raw_begin(self, step):
        stream = self._eager_stream(step)
        if self.raw is not None or stream == MAIN or self.thread or self._event_is_due(stream):
            raise Illegal("another library does not capture so")
        if not self.caching or self.limit:
            raise Illegal("cudaFree waits for the device")
        self.raw = stream

    def _raw_end(self, step):
        if self.raw is None or self.raw != step["stream"]:
            raise Illegal(f"{step['stream']} is not captured by another library")
        self.raw = None

    def _reference(self, step):
        self._no_capture()
        graph = self._graph(step)
        if not graph.dropout or graph.referenced or self.seeds.captured:
            raise Illegal("a reference is for graphs with dropout, when random numbers are not taken for captured")
        self._inputs_hold(graph)
        join(self.host, self.queued)
        self._reusable(MAIN, None)
        graph.referenced = True
        self._replay({"op": "replay", "graph": graph.name, "stream": MAIN})
        join(self.host, self.queued)

    def _inputs_hold(self, graph):
        for name, value in graph.inputs.items():
            tensor = self.tensors[name]
            if not tensor.live or tensor.value != value or tensor.shape != "whole":
                raise Illegal(f"{graph.name} reads {name}, which is gone or has changed")

    def _replay(self, step):
        graph, stream = self._graph(step), self._eager_stream(step)
        if self.capture is not None:
            raise Illegal("a capture is open")
        if graph.dropout and not graph.referenced:
            raise Illegal("what dropout chooses is not known yet")
        if graph.dropout and self.seeds.captured:
            raise Illegal("random numbers are taken for captured")
        self._inputs_hold(graph)
        if any(not self.tensors[name].live for name in graph.borrowed):
            raise Illegal(f"{graph.name} writes memory that is others' now")
        needed = dict(graph.began)
        join(needed, self.seeds.born)
        join(needed, graph.memory.accesses)
        join(needed, self.seeds.uses if graph.dropout else self.seeds.dropout_uses)
        for name in graph.inputs:
            join(needed, self.tensors[name].written)
        self._need(stream, needed, f"a replay of {graph.name} comes after what uses its memory")
        clock = self._queue(stream)
        here = {stream: clock[stream]}
        join(graph.memory.accesses, here)
        join(self.seeds.uses, here)
        if graph.dropout:
            join(self.seeds.dropout_uses, here)
        for name in graph.inputs:
            self._use(self.tensors[name], stream, clock)
        later = graph.memory.graphs[graph.memory.graphs.index(graph) + 1:]
        for other in later:  # they may use what this one had as temporaries
            for name in other.outputs:
                self.tensors[name].value = None
        for name, value in graph.outputs.items():
            self.tensors[name].value, self.tensors[name].written = value, clock
        graph.last_stream = stream

    def _graph_drop(self, step):
        if self.capture is not None:
            raise Illegal("a capture is open")
        graph = self._graph(step)
        graph.alive = False
        self._unregister(graph.name)

    def _unregister(self, name):
        self.seeds.graphs.discard(name)
        if not self.seeds.graphs:
            uses = {stream: count for stream, count in self.seeds.uses.items()
                    if stream != self.seeds.stream}
            join(self._pending_of(self.seeds.stream, None), uses)

    def _collective(self, step):
        stream, kind = self._stream(step), step["kind"]
        output = self._tensor({"tensor": step["output"]})
        source = self._tensor({"tensor": step.get("input", step["output"])})
        if kind not in COLLECTIVES or (kind in IN_PLACE) != (source is output):
            raise Illegal(f"{kind} has no such tensors")
        if output.raw or source.raw or self.raw is not None or (
                self.capture is not None and len(self.capture.clocks) > 1):
            raise Illegal("no collective of raw memory, or beside such captures")
        if output.size != source.size or output.size % (4 * SHARES):
            raise Illegal("the tensors of a collective are alike, and can be divided among ranks")
        if source.shape != "whole" and kind != "all_gather":
            raise Illegal(f"{kind} takes whole tensors")
        if step.get("work") in self.works:
            raise Illegal(f"work {step['work']} exists, or existed")
        if self.capturing(stream):
            self._captured_collective(step, output, source)
        else:
            self._eager_collective(step, stream, output, source)
        output.shape = {"reduce_scatter": "part", "all_to_all": "mixed"}.get(kind, "whole")

    def _eager_collective(self, step, stream, output, source):
        if self.capture is not None and self.capture.collectives:
            raise Illegal("the communication stream is captured")
        if output.graph is not None or not isinstance(source.value, int):
            raise Illegal("outputs of graphs are only read, and inputs have a known value")
        asynchronous = "work" in step
        clock = self.clock(stream)
        if asynchronous:  # collectives come one after another
            join(clock, self.clock(COMM))
        needed = dict(source.written)
        for uses in (output.written, output.uses):
            join(needed, uses)
        self._need(stream, needed, "a collective uses its tensors", clock)
        runs_on = COMM if asynchronous else stream
        self.clocks[runs_on] = clock
        clock = self._queue(runs_on)
        for tensor in (output, source):
            self._use(tensor, runs_on, clock)
        output.written, output.value = clock, source.value
        if asynchronous:
            self._new_work(step, output, source, None, clock[COMM], clock)

    def _new_work(self, step, output, source, graph, count, clock):
        name = step["work"]
        self.works[name] = Work(name, output.name, source.name, graph, count, clock)
        for tensor in (output, source):
            tensor.kept_for.add(name)

    def _captured_collective(self, step, output, source):
        graph = self.capture
        if output.graph is not graph or graph.outputs[output.name] == "dropout":
            raise Illegal("a captured collective writes what its capture has made")
        if source.graph is graph:
            value = graph.outputs[source.name]
            if value == "dropout":
                raise Illegal("what dropout chose is not known in the capture")
        else:
            value = source.value
            if not isinstance(value, int):
                raise Illegal("inputs have a known value")
        asynchronous = "work" in step
        if not asynchronous:
            self._joined(source, False)
            self._joined(output, True)
        if source.graph is not graph:
            self._captured_input(source)
        if graph.paused or output.borrowed or source.borrowed:
            raise Illegal("a paused pool, or a MemPool's memory")
        graph.outputs[output.name] = value
        clock = self._queue_captured(graph.stream)
        for tensor in (output, source):
            tensor.captured_uses[graph.stream] = clock[graph.stream]
        output.captured_write = clock
        if asynchronous:
            graph.collectives += 1
            graph.comm_writes[output.name] = graph.comm_reads[output.name] = graph.collectives
            graph.comm_reads[source.name] = graph.collectives
            self._new_work(step, output, source, graph, graph.collectives, None)

    def _work(self, step):
        work = self.works.get(step["work"])
        if work is None or not work.live:
            raise Illegal(f"there is no work {step['work']}")
        return work

    def _work_wait(self, step):
        work, stream, how = self._work(step), self._stream(step), step.get("how", "wait")
        if how not in ("wait", "thread", "future"):
            raise Illegal(f"there is no way {how} to wait")
        if work.graph is not None:
            if work.graph is not self.capture or stream != work.graph.stream or how != "wait":
                raise Illegal("a captured collective is waited for in its capture")
            work.graph.joined = max(work.graph.joined, work.count)
            self._let_go(work)
            return
        self._eager_stream(step)
        # A future records its tensors on the stream.
        if how == "future" and (self.capture is not None or stream.startswith("e")):
            raise Illegal("record_stream is for streams that stay, and not for captures")
        clock = self.clock(stream)
        join(clock, work.clock)
        self.clocks[stream] = clock
        if how != "future":
            self._let_go(work)

    def _let_go(self, work):
        """PyTorch lets go of the tensors: those that were dropped may serve again."""
        for name in work.tensors:
            tensor = self.tensors[name]
            tensor.kept_for.discard(work.name)
            if (self.level != "F" and not tensor.live and not tensor.kept_for and tensor.cached
                    and tensor.graph is None and COMM in tensor.uses):
                join(self._pending_of(tensor.stream, tensor.pool), {COMM: tensor.uses[COMM]})

    def _work_drop(self, step):
        work = self._work(step)
        if work.graph is not None and work.graph is self.capture and self.level != "F":
            # There PyTorch keeps the tensors for the Work alone.
            self._need_joined(work.count, "PyTorch lets go of the tensors")
        work.live = False
        if work.graph is not None:
            self._let_go(work)

    def _thread(self, step):
        self._no_capture()
        if self.threads or self.limit:
            raise Illegal("one thread is enough, and none while there is a limit")
        inner = Model(self.level, thread=True)
        for each in step["steps"]:
            inner.apply(each)
        self.threads += 1
        self.thread_records = inner.thread_records

    def finish(self):
        """Raises Illegal if the program can't end here."""
        self._no_capture()
        if self.thread_records and self.has_capture:
            raise Illegal("PyTorch counts a thread's record_stream during a capture as captured")


OPS = ("alloc", "dropout", "read", "write", "spin", "wait", "record_stream", "drop", "host_sync",
       "device_sync", "empty_cache", "limit", "caching", "pool_new", "pool_drop", "stream_new",
       "stream_destroy", "capture_begin", "capture_end", "pool_pause", "pool_resume", "pool_holds",
       "capture_fail", "capture_refused", "raw_begin", "raw_end", "reference", "replay", "graph_drop",
       "thread", "peer_read", "collective", "work_wait", "work_drop")


def needs_peer(steps):
    return any(step.get("stream") in PEERS for step in steps)


def ends_context_events(steps):
    """Whether Weir gives up events of the context in a process that runs the program: where memory is
    asked for on a stream that may be destroyed at any time, or another library captures one."""
    return any(step["op"] == "raw_begin" or
               str(step.get("stream", "")).startswith("e") and step["op"] in ("alloc", "record_stream")
               for step in steps)


def check(steps, level="L1"):
    """Why the program is not allowed at that level; None if it is."""
    model, at = Model(level), 0
    try:
        for at, step in enumerate(steps):
            model.apply(step)
        model.finish()
    except Illegal as reason:
        return f"step {at} ({format_step(steps[at]) if steps else 'none'}): {reason}"
    return None


def needed_level(steps):
    """The first of LEVELS at which the program is allowed; None if it is at none."""
    return next((level for level in LEVELS if check(steps, level) is None), None)


def format_step(step):
    rest = " ".join(f"{name}={value}" for name, value in step.items()
                    if name not in ("op", "steps"))
    inner = "".join(f"\n      {format_step(each)}" for each in step.get("steps", ()))
    return f"{step['op']} {rest}".rstrip() + inner


def format_program(program):
    lines = [f"{program['name']}:"]
    lines += [f"  {at:3} {format_step(step)}" for at, step in enumerate(program["steps"])]
    return "\n".join(lines)
