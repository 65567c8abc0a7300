// SPDX-License-Identifier: Apache-2.0
#include "core/base/mutation.h"

#ifdef WEIR_MUTANTS

#include <atomic>

namespace weir::mutation {
namespace {
std::atomic<Site> the_site{Site::none};
}  // namespace

Site left_out_site() { return the_site.load(std::memory_order_relaxed); }
void leave_out(Site site) { the_site.store(site); }

}  // namespace weir::mutation

#endif
