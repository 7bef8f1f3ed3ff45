#include "simulation/entries.h"

#include <cctype>
#include <iterator>
#include <sstream>
#include <type_traits>

#include "protocol/prefetcher.h"
#include "protocol/wire_encoding.h"
#include "simulation/content.h"
#include "simulation/text.h"
#include "simulation/violation.h"

namespace adaps::simulation {

namespace {

// Whether messages of a type have the format of `Message`. Some types share the format of another one.
template <typename Message>
bool has_format(MessageType type) {
  if (type == MessageType::kDrop) type = MessageType::kDelta;
  if (type == MessageType::kDropAck) type = MessageType::kAck;
  if (type == MessageType::kEcho) type = MessageType::kMark;
  return type == Message{}.type;
}

template <typename First, typename... Others, typename Function>
auto visit_one(MessageType type, std::span<const std::byte> bytes, Function function) {
  if constexpr (sizeof...(Others) > 0) {
    if (!has_format<First>(type)) return visit_one<Others...>(type, bytes, function);
  }
  if (!has_format<First>(type)) throw Violation("a message of type ", static_cast<int>(type));
  return function(Reader(bytes).read<First>());
}

// Calls function(message) with the message at the start of `bytes`, decoded to its format.
template <typename Function>
auto visit(MessageType type, std::span<const std::byte> bytes, Function function) {
  return visit_one<RequestMessage, IntentMessage, AnswerMessage, SetupMessage, RefreshMessage, DeltaMessage,
                   AckMessage, TransferMessage, NewsMessage, SyncMessage, BarrierMessage, ReleaseMessage,
                   GoodbyeMessage, LostMessage, ResolveMessage, ResolvedMessage, RetireMessage,
                   RetiredMessage, ListIdsMessage, IdsMessage>(type, bytes, function);
}

template <typename Message, typename Expected>
constexpr bool is_a = std::is_same_v<std::remove_cvref_t<Message>, Expected>;

// Returns the number of floats that follow a message about a key.
template <typename Message>
std::size_t floats_after(const Message& message, const Table& table, Key key) {
  if constexpr (is_a<Message, RequestMessage>) {
    return payload_floats(message, table).value_or(0);
  } else if constexpr (is_a<Message, AnswerMessage>) {
    return payload_floats(message, table, key);
  } else if constexpr (is_a<Message, RefreshMessage>) {
    return payload_floats(message.encoded != 0, table, key, table.width());
  } else if constexpr (is_a<Message, DeltaMessage>) {
    return payload_floats(message, table, key).value_or(0);
  } else if constexpr (requires { message.payload; }) {
    return payload_floats(message.payload, table, key);
  } else {
    return 0;
  }
}

template <typename Message>
bool is_encoded(const Message& message) {
  if constexpr (requires { message.encoded; }) return message.encoded != 0;
  if constexpr (requires { message.change; }) return message.change == Change::kEncoded;
  if constexpr (requires { message.payload; }) return message.payload == Payload::kEncoded;
  return false;
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

std::string describe_payload(const Entry& entry, std::size_t header, bool encoded, std::size_t length) {
  const auto bytes = entry.bytes.subspan(header);
  return encoded ? joined(" encoded in ", bytes.size(), " bytes") : describe_floats(bytes, length);
}

}  // namespace

Entry EntryCutter::cut(NodeId from, NodeId to, std::span<const std::byte>& rest) {
  Entry entry{static_cast<MessageType>(rest.front()), 0, {}};
  const std::size_t bytes = visit(entry.type, rest, [&](const auto& message) -> std::size_t {
    if constexpr (is_a<decltype(message), AnswerMessage>) {
      entry.key = request_keys_[to].at(message.request);
    } else if constexpr (requires { message.key; }) {
      entry.key = message.key;
    } else if constexpr (is_a<decltype(message), ResolveMessage> || is_a<decltype(message), IdsMessage>) {
      return sizeof(message) + message.count * sizeof(std::int64_t);
    } else if constexpr (is_a<decltype(message), RetireMessage>) {
      return sizeof(message) + message.count * (sizeof(std::int64_t) + sizeof(std::uint32_t));
    } else if constexpr (is_a<decltype(message), ResolvedMessage> ||
                         is_a<decltype(message), RetiredMessage>) {
      return sizeof(message) + message.count * sizeof(std::uint32_t);
    } else {
      return sizeof(message);
    }
    if constexpr (is_a<decltype(message), RequestMessage>) {
      if (message.origin == from) {
        std::vector<Key>& keys = request_keys_[from];
        if (keys.size() <= message.request) keys.resize(message.request + 1);
        keys[message.request] = entry.key;
      }
    }
    return sizeof(message) + floats_after(message, tables_.find(entry.key), entry.key) * sizeof(float);
  });
  entry.bytes = rest.first(bytes);
  rest = rest.subspan(bytes);
  return entry;
}

std::string describe(const Entry& entry, const Tables& tables) {
  std::ostringstream text;
  for (const char* c = name_of(entry.type); *c != '\0'; ++c) text << static_cast<char>(std::toupper(*c));
  const std::size_t length = tables.find(entry.key).length();
  visit(entry.type, entry.bytes, [&](const auto& message) {
    using Message = std::remove_cvref_t<decltype(message)>;
    if constexpr (is_a<Message, RequestMessage>) {
      static constexpr const char* kKinds[] = {"pull", "push", "push_gradients", "set",      "?",
                                               "?",    "?",    "pull_state",     "set_state"};
      text << " " << (message.kind < std::size(kKinds) ? kKinds[message.kind] : "?");
    }
    if constexpr (requires { message.route; })
      text << " of node " << message.origin << ", hops " << static_cast<int>(message.route.hops);
    if constexpr (requires { message.version; }) text << " v" << message.version;
    if constexpr (requires { message.rc; }) text << " rc" << message.rc;
    if constexpr (requires { message.exact; }) text << (message.exact != 0 ? " exact" : "");
    if constexpr (requires { message.number; }) text << " " << message.number;
    if constexpr (requires { message.for_good; }) text << (message.for_good != 0 ? " left for good" : "");
    if constexpr (requires { message.all_left; }) text << (message.all_left != 0 ? " all left" : "");
    if constexpr (requires { message.failed; }) text << (message.failed != 0 ? " failed" : "");
    if constexpr (requires { message.failed_node; }) text << " on n" << message.failed_node;
    if constexpr (requires { message.stalled; })
      text << " n" << message.node << (message.stalled != 0 ? " stalled" : "");
    if constexpr (requires { message.change; }) {
      if (message.change == Change::kGradient) {
        const auto gradient = entry.bytes.subspan(sizeof(message));
        text << " gradient at v" << Reader(gradient).read<GradientHeader>().base
             << describe_floats(gradient.subspan(sizeof(GradientHeader)), length) << " key " << entry.key;
        return;
      }
    }
    if constexpr (requires { message.key; } || is_a<Message, AnswerMessage>)
      text << describe_payload(entry, sizeof(message), is_encoded(message), length) << " key " << entry.key;
  });
  return text.str();
}

}  // namespace adaps::simulation
