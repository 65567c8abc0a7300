// Slurm's short forms.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

// The hosts of a list of Slurm's, in its order: "gpu[003-005,12]" is gpu003, gpu004, gpu005, gpu12;
// "a,b[1-2]-ib" is a, b1-ib, b2-ib. Of several brackets in a name the last runs fastest. At most
// `most` of them. Nothing: it is malformed.
std::optional<std::vector<std::string>> expand_hosts(std::string_view list,
                                                     std::size_t most = 1 << 16);

// How many tasks run on node number `node`, by "2(x3),1": 2 on three nodes, then 1 on one. Nothing:
// it is malformed, or has fewer nodes.
std::optional<int> tasks_on_node(std::string_view list, int node);

}  // namespace weir
