// Messages between nodes, as they lie in a frame (docs/design/protocol.md, section 3). Little-endian; every
// entry is a multiple of four bytes, so that values can be used where they lie. How many floats follow an
// entry is fixed by its table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "adaps/operation.h"
#include "adaps/transport.h"
#include "adaps/types.h"

namespace adaps {

enum class MessageType : std::uint8_t {
  kRequest = 1,  // pull, push, push_gradients, set: any node -> owner, routed
  kIntent,       // any node -> owner, routed
  kAnswer,       // owner -> origin
  kSetup,        // owner -> new holder
  kRefresh,      // owner -> holder
  kDelta,        // holder -> owner
  kAck,          // owner -> holder
  kDrop,         // holder -> owner
  kDropAck,      // owner -> former holder
  kTransfer,     // old owner -> new owner
  kNews,         // new owner -> home
  kMark,         // any -> any
  kEcho,         // any -> any
  kBarrier,      // any -> node 0
  kRelease,      // node 0 -> any
  kGoodbye,      // any -> any
  kLost,         // any -> any
};
inline constexpr std::size_t kMessageTypes = static_cast<std::size_t>(MessageType::kLost) + 1;
const char* name_of(MessageType type);

// Route of a request: hops so far (saturating), and whether it was sent by way of the home node already.
struct Route {
  std::uint8_t hops : 7;
  std::uint8_t via_home : 1;
};

#pragma pack(push, 1)
struct RequestMessage {  // followed by count * length floats (push, gradients), length floats (set), none
                         // (pull)
  MessageType type = MessageType::kRequest;
  Route route{};
  NodeId origin = 0;
  std::uint32_t unit = 0;
  std::uint64_t key : 44;
  std::uint64_t kind : 4;
  std::uint64_t count : 16;
};
struct IntentMessage {
  MessageType type = MessageType::kIntent;
  Route route{};
  NodeId origin = 0;
  std::uint64_t key = 0;
};
struct AnswerMessage {  // followed by length floats for a pull; the origin knows the key of its unit
  MessageType type = MessageType::kAnswer;
  std::uint8_t has_value = 0;
  std::uint16_t unused = 0;
  std::uint32_t unit = 0;
  Version version = 0;
  RelocationCount rc = 0;
};
// What of a value a message carries. The initial content is not sent: its receiver makes it.
enum class Payload : std::uint8_t { kNone, kValue, kInitial };

struct SetupMessage {  // followed by width floats if payload is kValue; it is never kNone
  MessageType type = MessageType::kSetup;
  Payload payload = Payload::kValue;
  std::uint16_t unused = 0;
  std::uint64_t key = 0;
  RelocationCount rc = 0;
  Version version = 0;
};
struct RefreshMessage {  // followed by width floats
  MessageType type = MessageType::kRefresh;
  std::uint8_t unused[3] = {};
  std::uint64_t key = 0;
  Version version = 0;
};
// How a holder tells its owner what it changed. Where a value has optimizer state of its size, a gradient is
// about half as long as the change that it makes: if there was just one, it goes itself, and the owner
// applies it as the holder did.
enum class Change : std::uint8_t { kNone, kDelta, kGradient };
struct GradientHeader {
  float learning_rate;
  std::uint32_t number;  // of the step; see UpdateStep
  Version base;          // the version that the holder applied it to
};
struct DeltaMessage {  // kDelta, kDrop; followed by a change's floats, or a GradientHeader and length floats
  MessageType type = MessageType::kDelta;
  Change change = Change::kDelta;
  std::uint16_t hyperparameters = 0;  // of a gradient: the fingerprint of what it was applied with
  std::uint64_t key = 0;
  RelocationCount rc = 0;
};
struct AckMessage {  // kAck, kDropAck
  MessageType type = MessageType::kAck;
  std::uint8_t exact = 0;
  std::uint16_t unused = 0;
  std::uint64_t key = 0;
};
struct TransferMessage {  // followed by width floats if payload is kValue
  MessageType type = MessageType::kTransfer;
  Payload payload = Payload::kValue;
  std::uint16_t unused = 0;
  std::uint64_t key = 0;
  RelocationCount rc = 0;
  Version version = 0;
};
struct NewsMessage {
  MessageType type = MessageType::kNews;
  std::uint8_t unused[3] = {};
  std::uint64_t key = 0;
  RelocationCount rc = 0;
};
// kMark, kEcho: names a wait_sync. kBarrier: 0 the node is at a barrier, 1 it has left for good, 2 it is at a
// barrier and something failed there. kRelease: 0 go on, 1 every node has left, 2 + n something failed on
// node n. kGoodbye: the sender closes its connection next. kLost: the sender has lost the node of this rank
// and will end; with 2^16 added, that node lives but has stalled.
struct NumberMessage {
  MessageType type = MessageType::kMark;
  std::uint8_t unused[3] = {};
  std::uint32_t number = 0;
};
#pragma pack(pop)
inline constexpr std::size_t kGradientHeader = sizeof(GradientHeader) / sizeof(float);

// Value and optimizer state of the longest row: whatever message it goes with fits into a frame.
inline constexpr std::size_t kMaxRowFloats = kMaxFrameBytes / sizeof(float) - 16;
static_assert(std::max({sizeof(SetupMessage), sizeof(TransferMessage), sizeof(AnswerMessage),
                        sizeof(RequestMessage), sizeof(DeltaMessage) + sizeof(GradientHeader)}) <=
              16 * sizeof(float));
// Most gradients that a request can count.
inline constexpr std::uint32_t kMaxGradients = (1U << 16) - 1;

// Reads the entries of a frame; throws ProtocolError where it ends too early.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> frame) : rest_(frame) {}

  bool at_end() const { return rest_.empty(); }
  MessageType peek_type() const {
    require(1);
    return static_cast<MessageType>(rest_.front());
  }

  template <typename Message>
  Message read() {
    require(sizeof(Message));
    Message message;
    std::memcpy(&message, rest_.data(), sizeof(Message));
    rest_ = rest_.subspan(sizeof(Message));
    return message;
  }
  std::span<const float> floats(std::size_t count) {
    require(count * sizeof(float));
    const auto* first = reinterpret_cast<const float*>(rest_.data());
    rest_ = rest_.subspan(count * sizeof(float));
    return {first, count};
  }

 private:
  void require(std::size_t bytes) const {
    if (rest_.size() < bytes) throw ProtocolError("a frame ends inside a message");
  }

  std::span<const std::byte> rest_;
};

}  // namespace adaps
