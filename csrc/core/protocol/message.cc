#include "protocol/message.h"

namespace adaps {

const char* name_of(MessageType type) {
  static constexpr const char* kNames[] = {
      "unknown", "request",  "intent",   "answer",   "setup",  "refresh", "delta",    "ack",
      "drop",    "drop_ack", "transfer", "news",     "mark",   "echo",    "barrier",  "release",
      "goodbye", "lost",     "resolve",  "resolved", "retire", "retired", "list_ids", "ids"};
  return name_in(kNames, type);
}

}  // namespace adaps
