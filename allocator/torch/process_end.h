// Whether memory that PyTorch frees has to be given back at all.
//
// Tensors may be freed by destructors of static objects, when the driver is gone, and in children
// of fork(), which have neither the driver's context nor whoever held a lock when they came to be.
#pragma once

namespace weir::pytorch {

// This process uses device memory from now on. Cheap, after the first time.
void note_use_of_memory();

// True once the process runs its exit handlers, and in a child of fork() of a process that had used
// memory: what is freed then is nobody's. Cheap; takes no lock.
bool memory_is_gone();

}  // namespace weir::pytorch
