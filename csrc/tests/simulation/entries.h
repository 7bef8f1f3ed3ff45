// The messages of a frame, one by one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/types.h"
#include "protocol/message.h"
#include "store/table.h"

namespace adaps::simulation {

struct Entry {
  MessageType type;
  Key key;  // meaningless for marks and barriers
  std::span<const std::byte> bytes;
};

// Cuts frames that one node's channel sent into messages. It sees all that are sent, because the length of an
// answer follows from the request that it belongs to.
class EntryCutter {
 public:
  EntryCutter(const Tables& tables, NodeId nodes) : tables_(tables), request_keys_(nodes) {}

  // The first message of `rest`, which is shortened by it. `rest` was sent from `from` to `to`.
  Entry cut(NodeId from, NodeId to, std::span<const std::byte>& rest);

 private:
  const Tables& tables_;
  std::vector<std::vector<Key>> request_keys_;  // by origin and number of the request
};

std::string describe(const Entry& entry, const Tables& tables);

}  // namespace adaps::simulation
