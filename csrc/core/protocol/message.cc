#include "protocol/message.h"

namespace adaps {

const char* name_of(MessageType type) {
  switch (type) {
    case MessageType::kRequest:
      return "request";
    case MessageType::kIntent:
      return "intent";
    case MessageType::kAnswer:
      return "answer";
    case MessageType::kSetup:
      return "setup";
    case MessageType::kRefresh:
      return "refresh";
    case MessageType::kDelta:
      return "delta";
    case MessageType::kAck:
      return "ack";
    case MessageType::kDrop:
      return "drop";
    case MessageType::kDropAck:
      return "drop_ack";
    case MessageType::kTransfer:
      return "transfer";
    case MessageType::kNews:
      return "news";
    case MessageType::kMark:
      return "mark";
    case MessageType::kEcho:
      return "echo";
    case MessageType::kBarrier:
      return "barrier";
    case MessageType::kRelease:
      return "release";
    case MessageType::kGoodbye:
      return "goodbye";
    case MessageType::kLost:
      return "lost";
  }
  return "unknown";
}

}  // namespace adaps
