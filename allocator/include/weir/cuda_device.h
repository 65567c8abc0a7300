// A GPU, through the CUDA driver.
//
// The driver is loaded at run time: a program that links this also starts where there is none, and
// then open() says so. A build without the CUDA toolkit has these functions too; each answers
// `unavailable`.
//
// Memory: the device's own pages (cuMemCreate), readable and writable by this device alone; made
// exportable as file descriptors and fit for GPUDirect RDMA where the device allows it.
// Context: the device's primary one, kept while the CudaDevice lives. Streams must be of that
// context. Each call makes it current for the calling thread where another is, and puts that back.
// Capture: no call breaks a capture, whatever its mode, except where the caller asks for what can't
// be had: wait() in a capture for an event recorded outside it, query() or synchronize() of an
// event recorded in a capture. Threads: as Device. There is no state of its own that changes, and
// the driver's calls are thread-safe.
#pragma once

#include <memory>

#include "weir/device.h"

namespace weir {

class CudaDevice : public Device {
 public:
  // How many devices there are. Errors: unavailable (no driver, or one too old; the message says
  // what to do); device.
  static Result<int> count();

  // The device whose context is current in the calling thread; 0, as for the CUDA runtime, if none.
  static Result<int> current();

  // Opens device `ordinal`, from 0. Errors: unavailable (as above, or no such device); device.
  static Result<std::unique_ptr<CudaDevice>> open(int ordinal);

  virtual int ordinal() const = 0;
};

}  // namespace weir
