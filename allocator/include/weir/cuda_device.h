// SPDX-License-Identifier: Apache-2.0
// A GPU, through the CUDA driver.
//
// The driver is loaded at run time: a program that links this starts without one too, and open()
// then says so. A build without the CUDA toolkit has these functions too; each answers
// `unavailable`.
//
// Memory: the device's own pages (cuMemCreate), readable and writable by this device and the peers
// of add_peer(); made exportable as file descriptors and as fabric handles, and fit for GPUDirect
// RDMA, where the device and the system allow it.
// Context: the device's primary one, kept while the CudaDevice lives. Streams must be of that
// context. Each call makes it current in the calling thread, and then restores the thread's own.
// Capture: only these calls break a capture, whatever its mode: wait() in it for an event recorded
// outside; query() or synchronize() of an event recorded in it; stream() of a captured stream;
// record_context() while a stream is captured. Threads: as Device. The driver's calls are
// thread-safe; only the list of peers (add_peer) changes, under a lock.
#pragma once

#include <memory>
#include <string>

#include "weir/device.h"

namespace weir {

// Gives memory to other processes, and opens theirs. Threads: as Device. Errors: device (where
// memory can't be shared, the message says so).
class MemoryExchange {
 public:
  virtual ~MemoryExchange() = default;

  // Exports a page as a file descriptor, which the caller closes; imports a page of any process
  // from such a descriptor, which stays the caller's.
  virtual Result<int> export_page(PhysicalHandle page) = 0;
  virtual Result<PhysicalHandle> import_page(int descriptor) = 0;

  // Plain memory: the memory that the driver gave, by a handle of 64 bytes (CUDA:
  // cudaIpcMemHandle_t) which other processes open, and where in it the segment begins.
  struct SharedSegment {
    std::string handle;
    Bytes offset;
  };
  virtual Result<SharedSegment> export_segment(Address segment) = 0;
  // Opens another process's handle; returns the memory's address until close_segment(). A handle of
  // this process, or one that is open already, may be refused.
  virtual Result<Address> import_segment(const std::string& handle) = 0;
  virtual Status close_segment(Address imported) = 0;
};

class CudaDevice : public Device, public MemoryExchange {
 public:
  // How many devices there are. Errors: unavailable (no driver, or one too old; the message says
  // what to do); device.
  static Result<int> count();

  // The device whose context is current in the calling thread; 0, as for the CUDA runtime, if none.
  static Result<int> current();

  // Opens device `ordinal`, from 0. Errors: unavailable (as above, or no such device); device.
  static Result<std::unique_ptr<CudaDevice>> open(int ordinal);

  virtual int ordinal() const = 0;

  // From now on set_access() lets the device `ordinal` read and write, too, and record_context()
  // and synchronize_context() cover its work. The primary context of `ordinal` is kept while this
  // device lives. For memory that is mapped already call DeviceHeap::renew_access(). Errors:
  // device.
  virtual Status add_peer(int ordinal) = 0;
};

}  // namespace weir
