// SPDX-License-Identifier: Apache-2.0
// Memory of CUDA graphs: pools that captures allocate from, captures, and the graphs they make.
//
//   GraphPool pool(heap);
//   Result<CaptureScope> capture = CaptureScope::begin(pool, stream);
//   ... launch work on `stream`, and on streams forked from it; allocate and free as ever ...
//   Result<Graph> graph = capture->end();
//   Status launched = graph->launch(stream);
//
// Addresses are baked into a graph, so what a capture used stays the pool's, at its addresses,
// while a graph of the pool lives. Within a pool the streams share memory: a block that was freed
// on one stream serves the others, and where nothing else orders the two uses, Weir adds an edge to
// the graph. Graphs that share a pool must be launched in the order of their captures, one after
// the other, and a later capture may use what earlier captures had freed by their ends.
//
// A warm-up runs eagerly in the pool, on any stream. What it frees serves the capture.
//
// Threads: a pool may be used from any thread; it is captured into by one capture at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/heap_types.h"
#include "weir/result.h"
#include "weir/statistics.h"
#include "weir/types.h"

namespace weir {

class CapturePool;

struct GraphPoolOptions {
  Bytes limit;  // most memory that the pool may hold; zero: what the device heap's own limit leaves
  // What its memory is made of; none: as the device heap's. Only pools of one kind give memory to
  // each other. A pool of another kind than the device heap gives what it does not need to the
  // driver.
  std::optional<MemoryKind> memory;
  std::string tag;  // that its memory sleeps with (HeapTags::sleep()); empty: kDefaultTag
  // None: HeapOptions::graph_scratch decides, until the program itself captures a graph into the
  // pool or may launch one. `lend`: all its graphs are launched by Graph::launch(), or within
  // begin_launch().
  std::optional<GraphScratch> scratch;
};

// A launch of a graph of a pool by the program itself: from GraphPool::begin_launch() to the
// destructor. Move-only.
class GraphLaunch {
 public:
  GraphLaunch(GraphLaunch&&) noexcept = default;
  GraphLaunch& operator=(GraphLaunch&&) = delete;
  ~GraphLaunch();
  // The graph was not launched.
  void abandon() { launched_ = false; }

 private:
  friend class GraphPool;
  GraphLaunch(std::shared_ptr<CapturePool> pool, Stream stream)
      : pool_(std::move(pool)), stream_(stream) {}
  std::shared_ptr<CapturePool> pool_;  // null: moved from
  Stream stream_;
  bool launched_ = true;
};

// Which streams' requests a pool serves. The filter is called for each request while the binding is
// open, in the thread that makes the request, and by GraphPool::capture() if its `origin` is being
// captured. It must not call Weir. An exception that the filter throws passes through the call that
// asked it (DeviceHeap::allocate(), HeapCaptures::attach(), GraphPool::capture()): the caller then
// has no block, nothing is attached, and no binding is opened.
using StreamFilter = std::function<bool(Stream)>;

// While it is open, a binding sends requests to its pool. Move-only. A binding must be closed or
// destroyed before the device heap is destroyed; a binding may outlive its GraphPool.
class PoolBinding {
 public:
  PoolBinding() = default;
  PoolBinding(PoolBinding&&) noexcept;
  PoolBinding& operator=(PoolBinding&&) noexcept;
  ~PoolBinding();

  // Ends the binding. `keep`: its capture made a graph, so the pool keeps the memory until its
  // graphs are gone (GraphPool::release_graph()). The destructor calls close(true): call
  // close(false) yourself where the capture failed.
  //
  // If the capture's origin (the stream that it began on) is known, and still captured, this is a
  // pause: the pool keeps all that
  // was captured, and GraphPool::capture() goes on with the same capture. If a capture is paused
  // several times, the `keep` of the last close() counts.
  //
  // `origin_lives`: the origin is known not to be destroyed. If false, an origin with
  // Stream::may_end is not asked about any more, and its capture counts as over.
  void close(bool keep = true, bool origin_lives = false);

  // True if the binding was opened while its origin was being captured, the pool had not served
  // that capture before, and the filter takes the origin. Such a binding goes on after the capture:
  // it serves eager requests until it is closed.
  [[nodiscard]] bool outlives_capture() const;

 private:
  friend class GraphPool;
  friend class CaptureScope;
  std::vector<CaptureAttachment> attached() const;
  PoolBinding(DeviceHeap* heap, std::uint64_t id) : heap_(heap), id_(id) {}
  DeviceHeap* heap_ = nullptr;
  std::uint64_t id_ = 0;
};

class GraphPool {
 public:
  // `heap` must outlive the pool, its bindings and captures, its graphs and its blocks.
  explicit GraphPool(DeviceHeap& heap, GraphPoolOptions options = {});
  // Live blocks, graphs and captures stay valid. Idle memory goes back at once, the rest as blocks
  // and graphs go; memory that launches still use then goes when others need it.
  ~GraphPool();
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;

  std::uint64_t id() const;  // of this device heap, from 1; not used again
  DeviceHeap& heap() const { return *heap_; }

  // A block of the pool's memory, whatever bindings are open. Errors: as DeviceHeap::allocate();
  // invalid_argument (Trust::told: the stream is not captured while the pool is captured into, see
  // warm_up(); or the stream is captured while the pool is not captured into).
  Result<void*> allocate(Bytes bytes, Stream stream);
  // As allocate(), from free memory of the pool alone: the pool does not grow, and a request that
  // finds none fails at once, with no callback called.
  Result<void*> take_free(Bytes bytes, Stream stream);

  // While the binding is open, the pool serves, eagerly, requests on `stream`, or those that the
  // filter takes.
  // Errors: invalid_argument (a capture is going on in the pool).
  //
  // While a capture into the pool is going on, eager requests may still come by a warm-up's binding
  // that was opened before, or by the capture's own binding if its filter takes their stream. Under
  // Trust::told such a request fails (invalid_argument). Under Trust::context the pool serves it,
  // and keeps the pages it used for as long as those of the capture.
  Result<PoolBinding> warm_up(Stream stream);
  Result<PoolBinding> warm_up(StreamFilter filter);
  // warm_up(filter), but the filter is not asked about a stream that is being captured: requests of
  // such a stream go where they would go without this binding.
  Result<PoolBinding> serve(StreamFilter filter);
  // As warm_up(), for captured streams of programs that begin and end captures themselves: open the
  // binding before the capture begins, and close it after the end. Under Trust::told the host waits
  // for eager work on the pool's memory, and on idle memory of the device heap. A filter usually
  // asks CUDA for the id of the stream's capture, and compares it. `origin`: the stream that the
  // capture begins on, if known: the pool then sees whether the capture goes on, even if the
  // binding is not closed.
  // Errors: invalid_argument (another capture is going on in the pool); asleep; device; where
  // scratch is lent, those of begin_launch().
  //
  // If the origin is being captured already, by a capture that the pool served before, the binding
  // goes on with that capture: one capture, one graph. (Under Trust::context another capture may
  // also begin in the pool if the paused one used the pool's memory on one stream only; the paused
  // one then counts as over.) If the origin is not being captured, earlier captures with that
  // origin count as over.
  Result<PoolBinding> capture(StreamFilter filter, std::optional<Stream> origin = std::nullopt);
  // Says that one graph, whose capture's binding was closed with `keep`, will not be launched
  // again. With the last graph the pool lets the memory of all go, once they are destroyed
  // (Trust::told) and their launches are done. (Under Trust::context, or if a capture asked for no
  // memory: once all work so far is done.) Graph does this itself. Other programs call it once for
  // each capture, after the last close() of its binding and before the GraphPool goes, else the
  // memory stays until the device heap goes.
  void release_graph();

  // Graph::launch() in parts, for programs that launch graphs themselves: what was lent of the
  // graphs' scratch is the pool's again while the returned object lives: destroy it after the
  // launch on `stream`. While any is lent, begin_launch() waits for other launches of the pool, and
  // for threads that take scratch back (for captures, say). Errors: asleep; capture (the stream is
  // being captured); invalid_argument (something is lent, and this thread has begun one, or others
  // do not come to an end in 10 s); out_of_memory, device: the graph may not be launched.
  Result<GraphLaunch> begin_launch(Stream stream);
  // From now on nothing of the pool is lent: the program may launch its graphs without a word. With
  // `keep` false: undoes one earlier such call, which must exist. Errors: out_of_memory, device:
  // some of what was lent is lent still, and the call does not count; call it again.
  Status keep_scratch(bool keep = true);

  GraphPoolStatistics statistics() const;

  // For programs that go back to an earlier state of the pool, to capture anew from there.
  std::vector<PlacedBlock> blocks() const;  // live, by address
  // Makes just these blocks live: deallocates the other live blocks, and allocates the missing ones
  // again, each at its place and with the bytes that lie there. If the memory of a block has gone
  // back to the driver meanwhile, the block gets other memory at the same place (new pages, if it
  // lay in a stitched row); for a block of plain memory that is an error. Errors: invalid_argument
  // (a capture is going on; or a place is not free any more: it names the block); out_of_memory;
  // device. After an error the same blocks are live as before.
  Status restore(std::span<const PlacedBlock> blocks);
  // Gives pages that the pool need not keep to the device heap, or, if they are of another kind of
  // memory than the device heap's, to the driver. Returns whether there were any.
  bool give_back_pages();

 private:
  friend class CaptureScope;
  enum class Takes { eager, eager_alone, captured };
  Result<PoolBinding> bind(StreamFilter filter, Takes what,
                           std::optional<Stream> origin = std::nullopt);
  DeviceHeap* heap_;
  std::shared_ptr<CapturePool> pool_;
};

// A captured graph. Move-only. The destructor destroys the executable and the graph; then the pool
// may let its memory go, once the launches made here are done. (A program that launches
// executable() by itself has to wait for those launches before it destroys this, and before eager
// work in the pool.)
class Graph {
 public:
  Graph() = default;
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;  // the graph that was here is destroyed
  ~Graph();

  // Errors: device; invalid_argument (an empty Graph); capture (the stream is being captured, which
  // goes on); asleep (the pool's tag sleeps; other memory that the graph uses is not checked);
  // where scratch is lent, those of GraphPool::begin_launch().
  Status launch(Stream stream);
  // The driver's handles (CUDA: a cudaGraph_t and a cudaGraphExec_t), which the Graph owns. Once it
  // gave the executable away, the pool lends no scratch, unless GraphPoolOptions::scratch says so.
  // (Null: it lent some, and has no memory for that now.)
  GraphHandle graph() const { return graph_; }
  ExecutableHandle executable() const;
  // What libraries attached to the capture (HeapCaptures::attach()), the first attached first.
  const std::vector<std::shared_ptr<CaptureResource>>& resources() const { return resources_; }

 private:
  friend class CaptureScope;
  void destroy();
  Device* device_ = nullptr;
  DeviceHeap* heap_ = nullptr;
  GraphHandle graph_;
  ExecutableHandle executable_;
  std::shared_ptr<CapturePool> pool_;
  std::vector<std::shared_ptr<CaptureResource>> resources_;
};

// A capture of `stream` with a pool attached. Move-only. Without end(), the destructor throws the
// capture away.
class CaptureScope {
 public:
  // Errors: invalid_argument (a capture is going on in the pool); asleep; capture; device; where
  // scratch is lent, those of GraphPool::begin_launch().
  static Result<CaptureScope> begin(GraphPool& pool, Stream stream,
                                    CaptureMode mode = CaptureMode::global);
  CaptureScope(CaptureScope&&) noexcept;
  CaptureScope& operator=(CaptureScope&&) noexcept;
  ~CaptureScope();

  std::uint64_t id() const { return id_; }  // of the capture, as the driver has it
  // As Graph::resources(), so far; none once the capture has ended.
  std::vector<std::shared_ptr<CaptureResource>> resources() const;
  // Ends the capture and makes a graph of it. On an error there is no graph, and the pool is as if
  // the capture had not been, except for the blocks that are still live. If the driver refuses but
  // the capture goes on (as in a thread that did not begin it, unless the mode is relaxed), so does
  // the scope. Errors: capture (the message says what broke it, where that is known); device;
  // invalid_argument (it has ended already).
  Result<Graph> end();

 private:
  CaptureScope(std::shared_ptr<CapturePool> pool, Device& device, Stream stream) noexcept
      : pool_(std::move(pool)), device_(&device), stream_(stream) {}
  void abandon();
  void join(Stream forked);

  std::shared_ptr<CapturePool> pool_;  // none: it has ended
  Device* device_ = nullptr;
  Stream stream_;
  std::uint64_t id_ = 0;
  PoolBinding binding_;
};

}  // namespace weir
