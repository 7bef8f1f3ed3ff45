// Divides frames into messages.
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
  Key key;  // undefined for marks and barriers
  std::span<const std::byte> bytes;
};

// Divides the frames that one node's channel sent into messages. It must process all frames, because the
// length of an answer depends on its request.
class EntryCutter {
 public:
  EntryCutter(const Tables& tables, NodeId nodes) : tables_(tables), request_keys_(nodes) {}

  // Removes the first message from `rest` and returns it. `rest` was sent from `from` to `to`.
  Entry cut(NodeId from, NodeId to, std::span<const std::byte>& rest);

 private:
  const Tables& tables_;
  std::vector<std::vector<Key>> request_keys_;  // by origin and number of the request
};

std::string describe(const Entry& entry, const Tables& tables);

}  // namespace adaps::simulation
