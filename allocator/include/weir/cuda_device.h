// SPDX-License-Identifier: Apache-2.0
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
// event recorded in a capture. Threads: as Device. the driver's calls are thread-safe. Devices that
// reach the memory as well (add_peer) are the one thing that changes, under a lock.
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

  // For sharing with other processes: a page as a file descriptor, which the caller closes, and a
  // page of whatever process from such a descriptor, which stays the caller's.
  // Errors: device (where pages can't be exported, the message says so).
  virtual Result<int> export_page(PhysicalHandle page) = 0;
  virtual Result<PhysicalHandle> import_page(int descriptor) = 0;

  // From now on set_access() lets the device `peer` read and write, too. What is mapped already:
  // DeviceHeap::renew_access().
  virtual void add_peer(int peer) = 0;
};

}  // namespace weir
