#include "store/directory.h"

#include <algorithm>

namespace adaps {

Directory::Directory(NodeId nodes, int channels, const Tables& tables) : Directory(nodes, channels) {
  const auto number_of = [this](Key distance) {
    const auto found = std::find(distances_.begin(), distances_.end(), distance);
    const auto number = static_cast<std::uint32_t>(found - distances_.begin());
    if (found == distances_.end()) distances_.push_back(distance);
    return number;
  };
  bool any = false;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const Table& table = tables[i];
    any = any || !table.spec().homes.empty() || table.spec().has_ids;
    for (NodeId node = 0; table.spec().has_ids && node < nodes; ++node)
      placed_.push_back(
          {table.first_key() + share_of(table.spec().rows, nodes, node).end, node, number_of(0)});
    if (table.spec().homes.empty() && !table.spec().has_ids)
      placed_.push_back({table.end_key(), kHomeByHash, number_of(0)});
    for (const HomeRange& home : table.spec().homes) {
      const Table& hashed = home.hashed_with == kOwnKey ? table : tables[home.hashed_with];
      const Key distance = hashed.first_key() - table.first_key();
      placed_.push_back({table.first_key() + home.end, home.node, number_of(distance)});
    }
  }
  if (!any) placed_.clear();
}

NodeId Directory::placed(Key key) const {
  const Placed& range = *std::upper_bound(placed_.begin(), placed_.end(), key,
                                          [](Key k, const Placed& one) { return k < one.end; });
  return range.node == kHomeByHash ? home_by_hash(key + distances_[range.hashed]) : range.node;
}

}  // namespace adaps
