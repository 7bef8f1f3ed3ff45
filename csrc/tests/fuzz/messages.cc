// Fuzzes a channel with keys in every state. Two peers send the messages of the input.
#include <array>
#include <cstring>
#include <memory>

#include "node/node_state.h"
#include "node/worker.h"
#include "protocol/channel.h"
#include "protocol/id_listings.h"
#include "protocol/message.h"
#include "protocol/wire_encoding.h"
#include "target.h"

namespace adaps::fuzz {

namespace {

constexpr NodeId kNodes = 3;
constexpr std::uint64_t kRows = 12;
constexpr std::size_t kLength = 2;
constexpr std::size_t kWidth = 2 * kLength;
// Each lossy wire has a table, whose keys come after the keys of the first tables.
constexpr Wire kLossy[] = {Wire::kBfloat16, Wire::kFloat16, Wire::kInt8};
constexpr std::uint64_t kLossyRows = 4;
// The next table has rows with different managements.
constexpr std::uint64_t kMixedRows = 4;
// The next table has packed values.
constexpr std::uint64_t kPackedRows = 4;
constexpr Key kFirstPacked = kRows + std::size(kLossy) * kLossyRows + kMixedRows;
constexpr Key kAllKeys = kFirstPacked + kPackedRows;
// The last two tables have ids, some of which the worker of the fuzzed node requests.
constexpr std::uint64_t kRowsWithIds = 24;
constexpr std::uint32_t kTableWithIds = 6;
constexpr std::uint32_t kTableOfRetired = 7;
constexpr std::array<std::int64_t, 8> kIds = {0, -1, 1, 2, 3, 4, 5, 6};
// Number of keys that the worker of the fuzzed node pushes and pulls, and whose states it pulls.
constexpr std::size_t kUsed = 16;

std::vector<TableSpec> tables() {
  TableSpec table{.name = "t", .rows = kRows, .length = kLength, .rule = {.kind = RuleKind::kAdagrad}};
  std::vector<TableSpec> all{table};
  for (const Wire wire : kLossy) {
    table.name = name_of(wire);
    table.rows = kLossyRows;
    table.management.wire = wire;
    all.push_back(table);
  }
  table.name = "mixed";
  table.rows = kMixedRows;
  table.managed = {{1, {Technique::kStatic}},
                   {2, {Technique::kRelocation, Wire::kInt8}},
                   {3, {Technique::kReplication, Wire::kBfloat16}},
                   {4, {}}};
  all.push_back(table);
  table.name = "packed";
  table.rows = kPackedRows;
  table.management = {};
  table.managed.clear();
  table.dtype = Dtype::kBfloat16;
  all.push_back(table);
  table.name = "ids";
  table.rows = kRowsWithIds;
  table.management.technique = Technique::kAdaptive;
  table.has_ids = true;
  all.push_back(table);
  table.name = "retired";
  table.evict = Evict::kLru;
  all.push_back(table);
  return all;
}

// An input: rank and technique, and then repeatedly a sender, a length in units of four bytes, and a frame.
struct Script {
  Bytes bytes;

  Script(std::uint8_t rank, std::uint8_t technique)
      : bytes{static_cast<std::byte>(rank), static_cast<std::byte>(technique)} {}

  template <typename Message>
  Script& send(std::uint8_t from, const Message& message, std::size_t floats = 0) {
    bytes.push_back(static_cast<std::byte>(from));
    bytes.push_back(static_cast<std::byte>(sizeof(Message) / 4 + floats));
    const auto raw = std::as_bytes(std::span(&message, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
    for (std::size_t i = 0; i < floats; ++i) {
      const float x = 0.5F * static_cast<float>(i);
      const auto piece = std::as_bytes(std::span(&x, 1));
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    }
    return *this;
  }
  // Returns the input, and begins another one with the same rank and technique.
  Bytes take() {
    Bytes taken = bytes;
    bytes.resize(2);
    return taken;
  }
};

RequestMessage request(NodeId origin, Key key, OperationKind kind, std::uint16_t count = 1) {
  RequestMessage message;
  message.origin = origin;
  message.key = key;
  message.kind = static_cast<std::uint64_t>(kind);
  message.count = count;
  return message;
}

IntentMessage intent(NodeId origin, Key key) {
  IntentMessage message;
  message.origin = origin;
  message.key = key;
  return message;
}

template <typename Message>
Message keyed(MessageType type, Key key) {
  Message message;
  message.type = type;
  message.key = key;
  return message;
}

template <typename Message>
Message encoded_row(MessageType type, Key key) {
  auto message = keyed<Message>(type, key);
  message.payload = Payload::kEncoded;
  return message;
}

DeltaMessage changed(MessageType type, Key key, Change change) {
  auto message = keyed<DeltaMessage>(type, key);
  message.change = change;
  return message;
}

}  // namespace

std::vector<Bytes> examples() {
  std::vector<Bytes> all;
  for (std::uint8_t rank = 0; rank < 2; ++rank) {
    for (std::uint8_t technique = 0; technique < 4; ++technique) {
      Script script(rank, technique);
      for (Key key = 0; key < kRows; ++key) {
        script.send(0, request(1, key, OperationKind::kPull))
            .send(0, request(2, key, OperationKind::kPush), kLength)
            .send(1, request(2, key, OperationKind::kPushGradients, 2), 2 * kLength)
            .send(1, request(2, key, OperationKind::kSet), kLength)
            .send(1, request(2, key, OperationKind::kPullState))
            .send(1, request(2, key, OperationKind::kSetState), kWidth - kLength)
            .send(1, intent(2, key))
            .send(0, keyed<SetupMessage>(MessageType::kSetup, key), kWidth)
            .send(0, keyed<TransferMessage>(MessageType::kTransfer, key), kWidth)
            .send(1, keyed<DeltaMessage>(MessageType::kDelta, key), kWidth)
            .send(1, keyed<DeltaMessage>(MessageType::kDrop, key), kWidth)
            .send(1, changed(MessageType::kDelta, key, Change::kGradient), kGradientHeader + kLength)
            .send(1, keyed<NewsMessage>(MessageType::kNews, key))
            .send(0, keyed<AckMessage>(MessageType::kDropAck, key));
        all.push_back(script.take());
      }
      const Tables all_tables(tables());
      for (Key key = 0; key < kAllKeys; ++key) {  // tables with the wire float32 are refused
        const Table& table = all_tables.find(key);
        const Wire wire = table.management(key).wire;
        const std::size_t row = encoded_floats(table, wire, table.width());
        RefreshMessage refresh = keyed<RefreshMessage>(MessageType::kRefresh, key);
        refresh.version = 9;
        refresh.encoded = 1;
        all.push_back(script.send(0, encoded_row<SetupMessage>(MessageType::kSetup, key), row)
                          .send(0, refresh, row)
                          .send(0, keyed<AckMessage>(MessageType::kAck, key))
                          .send(1, changed(MessageType::kDelta, key, Change::kEncoded), row)
                          .send(1, changed(MessageType::kDrop, key, Change::kEncoded), row)
                          .send(0, AnswerMessage{.content = Answered::kValue, .encoded = 1},
                                encoded_floats(table, wire, table.length()))
                          .take());
        all.push_back(script.send(1, intent(2, key))
                          .send(1, changed(MessageType::kDelta, key, Change::kEncoded), row)
                          .send(0, encoded_row<TransferMessage>(MessageType::kTransfer, key), row)
                          .take());
      }
      for (const Key key : {Key{1}, Key{5}, kFirstPacked, kFirstPacked + 1}) {
        const Table& table = all_tables.find(key);
        RefreshMessage refresh = keyed<RefreshMessage>(MessageType::kRefresh, key);
        refresh.version = 9;
        const std::size_t row = table.stored_words(kWidth);
        all.push_back(script.send(0, keyed<SetupMessage>(MessageType::kSetup, key), row)
                          .send(0, refresh, row)
                          .send(0, keyed<AckMessage>(MessageType::kAck, key))
                          .send(0, AnswerMessage{.content = Answered::kValue}, table.value_words())
                          .take());
        all.push_back(script.send(0, keyed<TransferMessage>(MessageType::kTransfer, key), row).take());
      }
      for (std::uint32_t number = 0; number < 3 * kUsed; ++number) {
        AnswerMessage answer{.content = Answered::kState};
        answer.request = number;
        all.push_back(script.send(0, answer, kWidth - kLength).take());
      }
      for (std::uint32_t number = 0; number < kIds.size(); ++number) {
        ResolvedMessage answer{.request = number, .count = number % 3};
        script.send(number % 2, ResolveMessage{.table = kTableWithIds, .count = 1 + number}, 2 * (1 + number))
            .send(number % 2, answer, answer.count)
            .send(number % 2, ResolveMessage{.table = kTableOfRetired, .count = 1}, 2)
            .send(number % 2, RetireMessage{.table = kTableOfRetired, .count = 1}, 3)
            .send(number % 2, RetiredMessage{.table = kTableOfRetired, .count = 1}, 1);
        all.push_back(script.take());
      }
      for (std::uint32_t number = 0; number < kNodes; ++number) {
        script.send(number % 2, ListIdsMessage{.table = kTableWithIds, .first = 8 * number})
            .send(number % 2, IdsMessage{.request = number % 2, .count = number, .next = 3 + number},
                  2 * number)
            .send(number % 2, IdsMessage{.request = number % 2, .count = 1, .next = kRowsWithIds}, 2);
        all.push_back(script.take());
      }
      for (const MessageType type : {MessageType::kMark, MessageType::kEcho}) {
        for (std::uint32_t number = 0; number < 4; ++number)
          script.send(
              number % 2,
              SyncMessage{.type = type, .patient = static_cast<std::uint8_t>(number / 2), .number = number});
      }
      for (std::uint8_t flags = 0; flags < 4; ++flags) {
        const std::uint8_t first = flags % 2;
        const std::uint8_t second = flags / 2;
        BarrierMessage barrier{.for_good = first, .failed = second};
        ReleaseMessage release{.all_left = first, .failed = second};
        release.failed_node = flags;  // 3 is not in the cluster
        LostMessage lost{.stalled = first, .node = flags};
        // Node 0 counts arrivals. Node 1 accepts messages from sender 1.
        if (rank == 0) {
          script.send(first, barrier);
        } else {
          script.send(1, release);
        }
        script.send(first, GoodbyeMessage{}).send(first, lost);
      }
      all.push_back(script.bytes);
    }
  }
  return all;
}

void run(std::span<const std::byte> input) {
  Source source(input);
  Settings settings{.rank = static_cast<NodeId>(source.byte() % kNodes),
                    .nodes = kNodes,
                    .technique = static_cast<Technique>(source.byte() % 5),
                    .timing = false};
  NodeState node(tables(), settings);
  Channel& channel = *node.channels[0];
  channel.partition().set_waker([] {});
  Worker worker(node, 0);

  // Some keys have intent, some are requested, and some were written.
  const std::array<Key, 18> wanted = {0, 1, 2, 3, 4, 5, 12, 13, 16, 17, 20, 21, 24, 25, 26, 27, 28, 29};
  const std::array<Key, kUsed> used = {1, 3, 5, 7, 9, 11, 13, 14, 17, 18, 21, 22, 25, 26, 29, 30};
  static_assert(used.size() <= wanted.size());
  std::array<float, wanted.size() * kLength> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.3F * static_cast<float>(i);
  std::array<std::int64_t, kIds.size()> rows{};
  Operation listing(OperationKind::kUsedIds, 0, node.workers[0]->completion);
  listing.id_listing = std::make_unique<IdListing>(&node.tables[kTableWithIds]);
  Micros now = 1'000'000;
  try {
    channel.set_now(now);
    worker.rows_of(node.tables[kTableWithIds], kIds, rows, true);
    start_used_ids(node, listing);
    channel.partition().submit_id_listing(listing);
    worker.intent(wanted, 0, 100);
    worker.push(used, values.data(), used.size() * kLength, true);
    worker.pull(used, values.data(), used.size() * kLength, true);
    worker.pull_state(used, values.data(), used.size() * (kWidth - kLength), true);
    channel.on_tick();
    while (!source.empty()) {
      const auto from = static_cast<NodeId>((settings.rank + 1 + source.byte() % (kNodes - 1)) % kNodes);
      const auto bytes = source.take(std::size_t{4} * source.byte());
      const Bytes frame(bytes.begin(), bytes.end());  // aligned, as in the receive buffer
      channel.set_now(now += 5'000);
      channel.on_frame(from, frame);
      worker.push(wanted, values.data(), values.size(), true);
      channel.on_tick();
      channel.outbox().drain([&](NodeId to, const Frame&) {
        if (to >= kNodes || to == settings.rank) broken("what is sent has a receiver");
      });
      if (channel.membership().closed()) broken("a job ends while a node trains");
      if (node.barrier.failed_node().value_or(0) >= kNodes) broken("a node that failed is in the cluster");
    }
  } catch (const ProtocolError&) {
    // In a real node, the connection would be closed and the node would fail with a lost peer.
  } catch (const PeerLost&) {
    // A peer sent a message that a node was lost.
  }
  node.fail(0, "the end");
}

}  // namespace adaps::fuzz
