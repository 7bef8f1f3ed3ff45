#include "store/directory.h"

#include <algorithm>

namespace adaps {

Directory::Directory(NodeId nodes, int channels, const Tables& tables) : Directory(nodes, channels) {
  bool any = false;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const Table& table = tables[i];
    any = any || !table.spec().homes.empty();
    if (table.spec().homes.empty()) placed_.push_back({table.end_key(), kHomeByHash});
    for (const HomeRange& home : table.spec().homes)
      placed_.push_back({table.first_key() + home.end, home.node});
  }
  if (!any) placed_.clear();
}

NodeId Directory::placed(Key key) const {
  return std::upper_bound(placed_.begin(), placed_.end(), key,
                          [](Key k, const Placed& range) { return k < range.end; })
      ->node;
}

}  // namespace adaps
