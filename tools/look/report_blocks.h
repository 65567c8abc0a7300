// SPDX-License-Identifier: Apache-2.0
// What a report says about blocks over the whole recording, and about waits.
#pragma once

#include <vector>

#include "look/block_lifetimes.h"
#include "look/report.h"
#include "look/report_moment.h"

namespace weir {

// Of what happened in the recording: without what was there when it began.
Totals totals_of(const Recording& recording);

// All pairs, and all groups: the caller shortens them.
std::vector<WaitPair> waits_of(const Recording& recording, const BlockLifetimes& lifetimes,
                               ReportNames& names);
std::vector<CostlyBlocks> costly_blocks(const BlockLifetimes& lifetimes, const ReportNames& names);
std::vector<LentScratch> lent_of(const Recording& recording, const ReportNames& names);
std::optional<TimeDependence> time_dependence_of(const Recording& recording,
                                                 const BlockLifetimes& lifetimes);
std::vector<Growth> growth_of(const Recording& recording, const BlockLifetimes& lifetimes,
                              const ReportNames& names);

}  // namespace weir
