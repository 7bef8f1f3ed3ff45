// Distinct ids of a batch, and where each id stands among them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace adaps {

// Returns the distinct ids in the order of their first occurrence; inverse[i] becomes the position of ids[i]
// among them, so that unique[inverse[i]] == ids[i]. `inverse` has ids.size() elements and may not overlap
// `ids`.
std::vector<std::int64_t> deduplicate(std::span<const std::int64_t> ids, std::int64_t* inverse);

}  // namespace adaps
