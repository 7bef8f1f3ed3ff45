#include "simulation/entries.h"

#include <sstream>

#include "protocol/prefetcher.h"
#include "protocol/wire_encoding.h"
#include "simulation/content.h"
#include "simulation/text.h"
#include "simulation/violation.h"

namespace adaps::simulation {

namespace {

template <typename Message>
Message header_of(std::span<const std::byte> bytes) {
  return Reader(bytes).read<Message>();
}

std::string describe_floats(std::span<const std::byte> bytes, std::size_t length) {
  if (bytes.empty()) return "";
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  floats.resize(std::min(floats.size(), length));
  for (float& x : floats) x = std::abs(x);  // gradients are negative
  try {
    return joined(" ", to_string(read_content(floats)));
  } catch (const Violation& violation) {
    return joined(" ", violation.what());
  }
}

bool is_encoded(const RequestMessage&) { return false; }
bool is_encoded(const AnswerMessage& message) { return message.encoded != 0; }
bool is_encoded(const RefreshMessage& message) { return message.encoded != 0; }
bool is_encoded(const DeltaMessage& message) { return message.change == Change::kEncoded; }
template <typename Message>
bool is_encoded(const Message& message) {
  return message.payload == Payload::kEncoded;
}

const char* label_of(MessageType type) {
  static constexpr const char* kNames[] = {"?",     "REQUEST", "INTENT",  "ANSWER",   "SETUP",    "REFRESH",
                                           "DELTA", "ACK",     "DROP",    "DROP_ACK", "TRANSFER", "NEWS",
                                           "MARK",  "ECHO",    "BARRIER", "RELEASE",  "GOODBYE"};
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "?";
}

}  // namespace

Entry EntryCutter::cut(NodeId from, NodeId to, std::span<const std::byte>& rest) {
  Entry entry{static_cast<MessageType>(rest.front()), 0, {}};
  std::size_t header = 0;
  std::size_t floats = 0;
  const auto take = [&](const auto& message, auto count) {
    header = sizeof(message);
    entry.key = message.key;
    floats = count(tables_.find(message.key), message.key);
  };
  const auto none = [](const Table&, Key) { return std::size_t{0}; };
  const auto take_valued = [&](const auto& message) {
    take(message, [&](const Table& table, Key key) { return payload_floats(message.payload, table, key); });
  };
  switch (entry.type) {
    case MessageType::kRequest: {
      const auto message = header_of<RequestMessage>(rest);
      header = sizeof(message);
      entry.key = message.key;
      floats = payload_floats(message, tables_.find(entry.key).length()).value_or(0);
      if (message.origin == from) {
        std::vector<Key>& keys = request_keys_[from];
        if (keys.size() <= message.request) keys.resize(message.request + 1);
        keys[message.request] = entry.key;
      }
      break;
    }
    case MessageType::kAnswer: {
      const auto message = header_of<AnswerMessage>(rest);
      header = sizeof(message);
      entry.key = request_keys_[to].at(message.request);
      const Table& table = tables_.find(entry.key);
      floats =
          message.has_value != 0 ? payload_floats(message.encoded != 0, table, entry.key, table.length()) : 0;
      break;
    }
    case MessageType::kIntent:
      take(header_of<IntentMessage>(rest), none);
      break;
    case MessageType::kSetup:
      take_valued(header_of<SetupMessage>(rest));
      break;
    case MessageType::kRefresh: {
      const auto message = header_of<RefreshMessage>(rest);
      take(message, [&](const Table& table, Key key) {
        return payload_floats(message.encoded != 0, table, key, table.width());
      });
      break;
    }
    case MessageType::kDelta:
    case MessageType::kDrop: {
      const auto message = header_of<DeltaMessage>(rest);
      take(message,
           [&](const Table& table, Key key) { return payload_floats(message, table, key).value_or(0); });
      break;
    }
    case MessageType::kAck:
    case MessageType::kDropAck:
      take(header_of<AckMessage>(rest), none);
      break;
    case MessageType::kTransfer:
      take_valued(header_of<TransferMessage>(rest));
      break;
    case MessageType::kNews:
      take(header_of<NewsMessage>(rest), none);
      break;
    case MessageType::kBarrier:
      header = sizeof(BarrierMessage);
      break;
    case MessageType::kRelease:
      header = sizeof(ReleaseMessage);
      break;
    case MessageType::kGoodbye:
      header = sizeof(GoodbyeMessage);
      break;
    case MessageType::kLost:
      header = sizeof(LostMessage);
      break;
    case MessageType::kMark:
    case MessageType::kEcho:
      header = sizeof(SyncMessage);
      break;
  }
  entry.bytes = rest.first(header + floats * sizeof(float));
  rest = rest.subspan(entry.bytes.size());
  return entry;
}

std::string describe(const Entry& entry, const Tables& tables) {
  std::ostringstream text;
  text << label_of(entry.type);
  const std::size_t length = tables.find(entry.key).length();
  const auto payload = [&](const auto& message) {
    const auto bytes = entry.bytes.subspan(sizeof(message));
    return is_encoded(message) ? joined(" encoded in ", bytes.size(), " bytes")
                               : describe_floats(bytes, length);
  };
  switch (entry.type) {
    case MessageType::kRequest: {
      static constexpr const char* kKinds[] = {"pull", "push", "push_gradients", "set"};
      const auto message = header_of<RequestMessage>(entry.bytes);
      text << " " << (message.kind < 4 ? kKinds[message.kind] : "?") << " of node " << message.origin
           << ", hops " << static_cast<int>(message.route.hops) << payload(message);
      break;
    }
    case MessageType::kIntent: {
      const auto message = header_of<IntentMessage>(entry.bytes);
      text << " of node " << message.origin << ", hops " << static_cast<int>(message.route.hops);
      break;
    }
    case MessageType::kAnswer: {
      const auto message = header_of<AnswerMessage>(entry.bytes);
      text << " v" << message.version << " rc" << message.rc << payload(message);
      break;
    }
    case MessageType::kSetup: {
      const auto message = header_of<SetupMessage>(entry.bytes);
      text << " v" << message.version << " rc" << message.rc << payload(message);
      break;
    }
    case MessageType::kRefresh: {
      const auto message = header_of<RefreshMessage>(entry.bytes);
      text << " v" << message.version << payload(message);
      break;
    }
    case MessageType::kDelta:
    case MessageType::kDrop: {
      const auto message = header_of<DeltaMessage>(entry.bytes);
      text << " rc" << message.rc;
      if (message.change == Change::kGradient) {
        const auto gradient = entry.bytes.subspan(sizeof(message));
        text << " gradient at v" << header_of<GradientHeader>(gradient).base
             << describe_floats(gradient.subspan(sizeof(GradientHeader)), length);
      } else {
        text << payload(message);
      }
      break;
    }
    case MessageType::kDropAck:
      break;
    case MessageType::kAck:
      text << (header_of<AckMessage>(entry.bytes).exact != 0 ? " exact" : "");
      break;
    case MessageType::kTransfer: {
      const auto message = header_of<TransferMessage>(entry.bytes);
      text << " v" << message.version << " rc" << message.rc << payload(message);
      break;
    }
    case MessageType::kNews:
      text << " rc" << header_of<NewsMessage>(entry.bytes).rc;
      break;
    case MessageType::kMark:
    case MessageType::kEcho:
      text << " " << header_of<SyncMessage>(entry.bytes).number;
      return text.str();
    case MessageType::kBarrier: {
      const auto message = header_of<BarrierMessage>(entry.bytes);
      text << (message.for_good != 0 ? " left for good" : "") << (message.failed != 0 ? " failed" : "");
      return text.str();
    }
    case MessageType::kRelease: {
      const auto message = header_of<ReleaseMessage>(entry.bytes);
      text << (message.all_left != 0 ? " all left" : "");
      if (message.failed != 0) text << " failed on n" << message.failed_node;
      return text.str();
    }
    case MessageType::kGoodbye:
      return text.str();
    case MessageType::kLost: {
      const auto message = header_of<LostMessage>(entry.bytes);
      text << " n" << message.node << (message.stalled != 0 ? " stalled" : "");
      return text.str();
    }
  }
  text << " key " << entry.key;
  return text.str();
}

}  // namespace adaps::simulation
