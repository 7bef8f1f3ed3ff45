// Messages between nodes, in their format in a frame (docs/concepts/protocol.md, section 3). They are
// little-endian. The size of every entry is a multiple of four bytes, so that values can be used in place.
// The key's table determines the number of floats after an entry.
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
  kResolve,      // any -> the node that assigns rows to the ids
  kResolved,     // the node that assigns rows -> any
  kRetire,       // the node that assigns rows -> any
  kRetired,      // any -> the node that assigns rows
  kListIds,      // any -> any
  kIds,          // any -> any
};
inline constexpr std::size_t kMessageTypes = static_cast<std::size_t>(MessageType::kIds) + 1;
const char* name_of(MessageType type);
// Whether a message of this type concerns one key.
inline constexpr bool is_about_a_key(MessageType type) { return type <= MessageType::kNews; }
// Whether a message of this type determines a row's location, moves or copies the row, or updates copies.
inline constexpr bool is_upkeep(MessageType type) {
  return is_about_a_key(type) && type != MessageType::kRequest && type != MessageType::kAnswer;
}

// Route of a request: number of hops so far (saturating), and whether it was already sent via the home node.
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
  std::uint64_t key : 63 = 0;
  std::uint64_t for_good : 1 = 0;
};
// The floats that follow an answer.
enum class Answered : std::uint8_t { kNothing, kValue, kState };
struct AnswerMessage {  // followed by the value or state that is read; `request` identifies the key
  MessageType type = MessageType::kAnswer;
  Answered content = Answered::kNothing;
  std::uint8_t encoded = 0;  // they are in the row's wire
  std::uint8_t unused = 0;
  std::uint32_t request = 0;
  Version version = 0;
  RelocationCount rc = 0;
};
// The form of the value in a message. Initial values are not sent, because the receiver computes them. An
// encoded value is in the row's wire, which is not float32 in this case. Any other value is in its table's
// storage format.
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
// The form of a holder's change in a message to the owner. If the optimizer state is as long as the value, a
// gradient takes about half as many floats as the change that it causes. Therefore a single gradient is sent
// instead of its change, and the owner applies it in the same way as the holder did.
enum class Change : std::uint8_t { kNone, kDelta, kGradient, kEncoded };
struct GradientHeader {
  float learning_rate;
  std::uint32_t number;  // number of the step; see UpdateStep
  Version base;          // version of the row to which the holder applied the gradient
};
struct DeltaMessage {  // kDelta, kDrop; followed by a change's floats, or a GradientHeader and length floats
  MessageType type = MessageType::kDelta;
  Change change = Change::kDelta;
  std::uint16_t hyperparameters = 0;  // fingerprint of a gradient's hyperparameters
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
  std::uint8_t patient = 0;  // kMark, 1: no worker waits for the ECHO yet
  std::uint8_t unused[2] = {};
  std::uint32_t number = 0;  // chosen by the node that calls wait_sync
};
struct BarrierMessage {
  MessageType type = MessageType::kBarrier;
  std::uint8_t for_good = 0;  // 1: all workers of the sender have left; 0: they are at a barrier
  std::uint8_t failed = 0;    // 1: a worker at the barrier reported a failure
  std::uint8_t unused = 0;
};
struct ReleaseMessage {
  MessageType type = MessageType::kRelease;
  std::uint8_t all_left = 0;  // 1: every node has left the cluster; 0: the barrier is over
  std::uint8_t failed = 0;    // 1: a worker on `failed_node` reported a failure
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
  // 1: the node is alive but does not arrive at a barrier or the end; 0: it is gone
  std::uint8_t stalled = 0;
  NodeId node = 0;
};
struct ResolveMessage {  // followed by `count` ids of 8 bytes
  MessageType type = MessageType::kResolve;
  std::uint8_t only_finds = 0;  // 1: ids without a row get none
  std::uint8_t unused[2] = {};
  std::uint32_t request = 0;
  std::uint32_t table = 0;
  std::uint32_t count = 0;
};
struct ResolvedMessage {  // followed by `count` row numbers of 4 bytes, or kNoRow, in the order of the ids
  MessageType type = MessageType::kResolved;
  std::uint8_t unused[3] = {};
  std::uint32_t request = 0;
  std::uint32_t count = 0;  // 0 if the sender's share of the table has too few free rows
};
// An id that is not admitted, or has no row and shall get none.
inline constexpr std::uint32_t kNoRow = 0xffffffff;
struct RetireMessage {  // followed by `count` ids of 8 bytes, and `count` row numbers of 4 bytes
  MessageType type = MessageType::kRetire;
  std::uint8_t unused[3] = {};
  std::uint32_t table = 0;
  std::uint32_t count = 0;
};
struct RetiredMessage {  // followed by `count` answers of 4 bytes, in the order of the rows
  MessageType type = MessageType::kRetired;
  std::uint8_t unused[3] = {};
  std::uint32_t table = 0;
  std::uint32_t count = 0;
};
// Answer of a node that is asked to give up a row, from the best for the asking node to the worst.
enum class GivenUp : std::uint32_t { kYes, kBusy, kInUse };
struct ListIdsMessage {
  MessageType type = MessageType::kListIds;
  std::uint8_t unused[3] = {};
  std::uint32_t request = 0;
  std::uint32_t table = 0;
  std::uint32_t first = 0;  // the first row whose id is requested
};
struct IdsMessage {  // followed by `count` ids of 8 bytes
  MessageType type = MessageType::kIds;
  std::uint8_t unused[3] = {};
  std::uint32_t request = 0;
  std::uint32_t count = 0;
  std::uint32_t next = 0;  // the first row of the next request; the table's number of rows at the end
};
#pragma pack(pop)
inline constexpr std::size_t kGradientHeader = sizeof(GradientHeader) / sizeof(float);

// The longest row fits into a frame with any message.
static_assert(std::max({sizeof(SetupMessage), sizeof(TransferMessage), sizeof(AnswerMessage),
                        sizeof(RequestMessage), sizeof(DeltaMessage) + sizeof(GradientHeader)}) <=
              kMaxFrameBytes - kMaxRowFloats * sizeof(float));
// Maximum number of gradients in a request.
inline constexpr std::uint32_t kMaxGradients = (1U << 16) - 1;

// Reads the entries of a frame. Throws ProtocolError if the frame ends too early.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> frame) : rest_(frame) {}

  bool at_end() const { return rest_.empty(); }
  std::size_t bytes_left() const { return rest_.size(); }
  MessageType peek_type() const {
    require(1);
    return static_cast<MessageType>(rest_.front());
  }

  // Returns the message in place. A copy would be written in parts and then read across them. Such a read
  // waits until all earlier stores, including those of rows, have left the processor's store buffer.
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
