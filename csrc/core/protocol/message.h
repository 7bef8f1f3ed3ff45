// Messages between nodes, as they lie in a frame (docs/concepts/protocol.md, section 3). Little-endian; every
// entry is a multiple of four bytes, so that values can be used where they lie. How many floats follow an
// entry is fixed by its table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "common/types.h"
#include "protocol/operation.h"
#include "store/table.h"
#include "transport/transport.h"

namespace adaps {

enum class MessageType : std::uint8_t {
  kRequest = 1,  // a worker's call: any node -> owner, routed
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
// Whether a message of this type concerns one key.
inline constexpr bool is_about_a_key(MessageType type) { return type <= MessageType::kNews; }
// Whether it says where a row is to be, moves or copies it, or keeps copies alike.
inline constexpr bool is_upkeep(MessageType type) {
  return is_about_a_key(type) && type != MessageType::kRequest && type != MessageType::kAnswer;
}

// Route of a request: hops so far (saturating), and whether it was sent by way of the home node already.
struct Route {
  std::uint8_t hops : 7;
  std::uint8_t via_home : 1;
};

#pragma pack(push, 1)
struct RequestMessage {  // followed by count * length floats (push, gradients), length floats (set), those
                         // of a state (set_state), none (pull, pull_state)
  MessageType type = MessageType::kRequest;
  Route route{};
  NodeId origin = 0;
  std::uint32_t request = 0;
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
// The floats that follow an answer.
enum class Answered : std::uint8_t { kNothing, kValue, kState };
struct AnswerMessage {  // followed by what a pull or pull_state reads; the origin knows its request's key
  MessageType type = MessageType::kAnswer;
  Answered content = Answered::kNothing;
  std::uint8_t encoded = 0;  // they are in the row's wire
  std::uint8_t unused = 0;
  std::uint32_t request = 0;
  Version version = 0;
  RelocationCount rc = 0;
};
// Whether a message carries a value. Initial content is not sent: the receiver computes it. An encoded value
// is in the wire of its row, which is not float32 then; any other is as its table stores it.
enum class Payload : std::uint8_t { kNone, kValue, kInitial, kEncoded };

struct SetupMessage {  // followed by the row if payload is kValue or kEncoded; it is never kNone
  MessageType type = MessageType::kSetup;
  Payload payload = Payload::kValue;
  std::uint16_t unused = 0;
  std::uint64_t key = 0;
  RelocationCount rc = 0;
  Version version = 0;
};
struct RefreshMessage {  // followed by the row
  MessageType type = MessageType::kRefresh;
  std::uint8_t encoded = 0;
  std::uint8_t unused[2] = {};
  std::uint64_t key = 0;
  Version version = 0;
};
// How a holder tells the owner what it changed. With optimizer state as long as the value, a gradient is
// about half as long as the change that it makes: if a single gradient was applied, it is sent instead, and
// the owner applies it as the holder did.
enum class Change : std::uint8_t { kNone, kDelta, kGradient, kEncoded };
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
struct TransferMessage {  // followed by the row if payload is kValue; it is never kEncoded
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
struct SyncMessage {  // kMark, kEcho
  MessageType type = MessageType::kMark;
  std::uint8_t unused[3] = {};
  std::uint32_t number = 0;  // of the wait_sync, which its node chose
};
struct BarrierMessage {
  MessageType type = MessageType::kBarrier;
  std::uint8_t for_good = 0;  // 1: all workers of the sender have left; 0: they are at a barrier
  std::uint8_t failed = 0;    // 1: at the barrier one of them said that something failed
  std::uint8_t unused = 0;
};
struct ReleaseMessage {
  MessageType type = MessageType::kRelease;
  std::uint8_t all_left = 0;  // 1: every node has left the cluster; 0: the barrier is over
  std::uint8_t failed = 0;    // 1: something failed on `failed_node`
  std::uint8_t unused = 0;
  NodeId failed_node = 0;
  std::uint16_t unused_2 = 0;
};
struct GoodbyeMessage {  // the sender closes its connection next
  MessageType type = MessageType::kGoodbye;
  std::uint8_t unused[3] = {};
};
struct LostMessage {  // the sender has lost a node and will end
  MessageType type = MessageType::kLost;
  std::uint8_t stalled = 0;  // 1: it lives, but does not come to a barrier or the end; 0: it is gone
  NodeId node = 0;
};
#pragma pack(pop)
inline constexpr std::size_t kGradientHeader = sizeof(GradientHeader) / sizeof(float);

// The longest row fits into a frame, whatever message it goes with.
static_assert(std::max({sizeof(SetupMessage), sizeof(TransferMessage), sizeof(AnswerMessage),
                        sizeof(RequestMessage), sizeof(DeltaMessage) + sizeof(GradientHeader)}) <=
              kMaxFrameBytes - kMaxRowFloats * sizeof(float));
// Most gradients that a request can count.
inline constexpr std::uint32_t kMaxGradients = (1U << 16) - 1;

// Reads the entries of a frame; throws ProtocolError where it ends too early.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> frame) : rest_(frame) {}

  bool at_end() const { return rest_.empty(); }
  std::size_t bytes_left() const { return rest_.size(); }
  MessageType peek_type() const {
    require(1);
    return static_cast<MessageType>(rest_.front());
  }

  // The message where it lies in the frame. A copy would be written in parts and read across them, which
  // waits until all that was stored before, rows among it, has left the processor's store buffer.
  template <typename Message>
  const Message& read() {
    static_assert(alignof(Message) == 1 && std::is_trivially_copyable_v<Message>);
    require(sizeof(Message));
    const auto& message = *reinterpret_cast<const Message*>(rest_.data());
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
