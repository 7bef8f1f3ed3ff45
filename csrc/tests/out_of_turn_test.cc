// Every message type, sent alone by a peer that knows the secret, in every state of the receiver. The tables
// of docs/concepts/protocol.md, section 3, contain the expected results: the message is accepted, or it is a
// ProtocolError, which closes the connection and names the sender.
#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "node/node_state.h"
#include "node/worker.h"
#include "node_fixtures.h"
#include "protocol/channel.h"
#include "protocol/id_listings.h"
#include "protocol/message.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

constexpr NodeId kNodes = 3;
constexpr NodeId kSender = 2;
constexpr std::uint64_t kRows = 64;

std::vector<TableSpec> tables(Technique technique = Technique::kAdaptive, RuleKind rule = RuleKind::kSgd) {
  TableSpec table{.name = "t", .rows = kRows, .length = 1, .rule = {.kind = rule}};
  table.management.technique = technique;
  return {table};
}

Settings settings(NodeId rank) { return {.rank = rank, .nodes = kNodes, .channels = 2, .timing = false}; }

// --- messages about a key ---

// The state of a key at the receiver, by the events that led to it.
struct KeyState {
  NodeId home;
  bool wanted = false;        // this node has signalled intent
  bool copied = false;        // the home node has sent a copy
  bool dropped = false;       // the intent has ended, so this node has sent DROP
  bool written = false;       // this node has written the row
  NodeId wanted_by = kNodes;  // another node that has signalled intent
};
constexpr KeyState kUntouched{.home = 1};
constexpr KeyState kElsewhere{.home = kSender};
constexpr KeyState kPending{.home = kSender, .wanted = true};
constexpr KeyState kOwned{.home = 1, .written = true};
constexpr KeyState kHeldBySender{.home = 1, .wanted = true, .wanted_by = kSender};
constexpr KeyState kGivenAway{.home = 1, .wanted_by = 0};
constexpr KeyState kKeyStates[] = {
    kUntouched,
    kElsewhere,
    kPending,
    {.home = kSender, .wanted = true, .copied = true},                   // a replica of a row of the sender
    {.home = 0, .wanted = true, .copied = true},                         // a replica of a row of node 0
    {.home = kSender, .wanted = true, .copied = true, .dropped = true},  // DROP was sent to the sender
    {.home = 0, .wanted = true, .copied = true, .dropped = true},        // DROP was sent to node 0
    kOwned,
    kHeldBySender,
    kGivenAway,
};

// All kinds of requests, and the content of the answer to each.
struct RequestKind {
  OperationKind kind;
  Answered content;
  std::size_t floats;  // floats after the request, for a row with a value and a state of one float each
};
constexpr RequestKind kRequestKinds[] = {
    {OperationKind::kPull, Answered::kValue, 0},
    {OperationKind::kPush, Answered::kNothing, 1},
    {OperationKind::kPushGradients, Answered::kNothing, 1},
    {OperationKind::kSet, Answered::kNothing, 1},
    {OperationKind::kPullState, Answered::kState, 0},
    {OperationKind::kSetState, Answered::kNothing, 1},
};

// Node 1, with one key that is in a given state.
class Receiver {
 public:
  explicit Receiver(const KeyState& state, const std::vector<TableSpec>& specs = tables())
      : node_(specs, settings(1)), worker_(node_, 0) {
    for (const auto& partition : node_.partitions) partition->set_waker([] {});
    key_ = keys_at(node_.directory, state.home, 1).front();
    channel_ = node_.channels[static_cast<std::size_t>(node_.directory.channel(key_))].get();
    if (state.written) call(OperationKind::kPush);
    if (state.wanted) worker_.intent(std::span(&key_, 1), 0, 1);
    if (state.wanted) tick();
    const SetupMessage copy{.payload = Payload::kValue, .key = key_, .version = 1};
    if (state.copied) channel_->on_frame(state.home, frame_of(copy, 1));
    if (state.dropped) worker_.advance_clock();
    if (state.dropped) tick();
    const IntentMessage intent{.origin = state.wanted_by, .key = key_};
    if (state.wanted_by != kNodes) channel_->on_frame(state.wanted_by, frame_of(intent));
  }

  Key key() const { return key_; }
  // Makes a call of the worker, which sends a request if another node owns the key.
  void call(OperationKind kind) {
    worker_.run(kind, std::span(&key_, 1), &floats_, &floats_, 1, true);
    tick();
  }
  // Handles a frame of the sender; returns the reason if it is refused.
  std::string handle(const Frame& frame) {
    try {
      channel_->on_frame(kSender, frame);
      tick();
    } catch (const ProtocolError& error) {
      return error.what();
    }
    return "";
  }

 private:
  void tick() {
    channel_->set_now(now_ += 1'000'000);
    channel_->on_tick();
  }

  NodeState node_;
  Worker worker_;
  Key key_ = 0;
  float floats_ = 1;
  Channel* channel_ = nullptr;
  Micros now_ = 1'000'000;
};

RequestMessage request_of(NodeId origin, Key key, OperationKind kind = OperationKind::kPull) {
  RequestMessage message;
  message.origin = origin;
  message.key = key;
  message.kind = static_cast<std::uint64_t>(kind);
  message.count = 1;
  return message;
}

Frame about(MessageType type, Key key) {
  switch (type) {
    case MessageType::kRequest:
      return frame_of(request_of(kSender, key));
    case MessageType::kIntent:
      return frame_of(IntentMessage{.origin = kSender, .key = key});
    case MessageType::kAnswer:
      return frame_of(AnswerMessage{.content = Answered::kValue}, 1);
    case MessageType::kSetup:
      return frame_of(SetupMessage{.key = key, .rc = 1, .version = 9}, 1);
    case MessageType::kRefresh:
      return frame_of(RefreshMessage{.key = key, .version = 9}, 1);
    case MessageType::kDelta:
    case MessageType::kDrop:
      return frame_of(DeltaMessage{.type = type, .key = key}, 1);
    case MessageType::kAck:
    case MessageType::kDropAck:
      return frame_of(AckMessage{.type = type, .key = key});
    case MessageType::kTransfer:
      return frame_of(TransferMessage{.key = key, .rc = 1, .version = 9}, 1);
    case MessageType::kNews:
      return frame_of(NewsMessage{.key = key, .rc = 9});
    default:
      return {};
  }
}

// One letter for each state of kKeyStates: t (tolerated) if the message is accepted, v if it is a violation.
struct KeyRow {
  MessageType type;
  std::string_view outcomes;
};
constexpr KeyRow kKeyRows[] = {
    {MessageType::kRequest, "tttttttttt"}, {MessageType::kIntent, "ttttttttvt"},
    {MessageType::kAnswer, "vvvvvvvvvv"},  {MessageType::kSetup, "vvtvvvvvvv"},
    {MessageType::kRefresh, "vvvtvttvvv"}, {MessageType::kDelta, "tttttttttt"},
    {MessageType::kAck, "vvvvvvvvvv"},     {MessageType::kDrop, "tttttttttt"},
    {MessageType::kDropAck, "vvvvvttvvv"}, {MessageType::kTransfer, "vvttvttvvv"},
    {MessageType::kNews, "vvvvvvvttt"},
};

// --- messages about the cluster ---

enum class Phase { kTraining, kAtBarrier, kLeft, kClosed };
constexpr std::array kPhases = {Phase::kTraining, Phase::kAtBarrier, Phase::kLeft, Phase::kClosed};

struct Member {
  Member(NodeId rank, Phase phase) : node(tables(), settings(rank)) {
    for (const auto& partition : node.partitions) partition->set_waker([] {});
    if (phase == Phase::kTraining) return;
    node.partitions[0]->submit_arrival(phase != Phase::kAtBarrier);
    node.channels[0]->on_tick();
    if (phase != Phase::kClosed) return;
    if (rank == 0) {
      for (NodeId peer = 1; peer < kNodes; ++peer)
        node.channels[0]->on_frame(peer, frame_of(BarrierMessage{.for_good = 1}));
    } else {
      node.channels[0]->on_frame(0, frame_of(ReleaseMessage{.all_left = 1}));
    }
  }
  bool closed() const { return node.channels[0]->membership().closed(); }

  NodeState node;
};

// A message about the cluster and the situations in which it is accepted. Each string has one letter for each
// of kPhases. The strings are for node 0 as the receiver and node 2 as the sender, for node 1 and node 0, and
// for node 1 and node 2.
struct ClusterRow {
  const char* name;
  MessageType type;
  Frame frame;
  std::string_view at_counting, from_counting, between_others;
  bool on_any_channel;
};

const std::vector<ClusterRow>& cluster_rows() {
  static const std::vector<ClusterRow> rows = {
      {"MARK", MessageType::kMark, frame_of(SyncMessage{.type = MessageType::kMark}), "tttt", "tttt", "tttt",
       true},
      {"MARK, patient", MessageType::kMark, frame_of(SyncMessage{.patient = 1}), "tttt", "tttt", "tttt",
       true},
      {"ECHO", MessageType::kEcho, frame_of(SyncMessage{.type = MessageType::kEcho}), "vvvv", "vvvv", "vvvv",
       true},
      {"BARRIER", MessageType::kBarrier, frame_of(BarrierMessage{}), "tttv", "vvvv", "vvvv", false},
      {"BARRIER for good", MessageType::kBarrier, frame_of(BarrierMessage{.for_good = 1}), "tttv", "vvvv",
       "vvvv", false},
      {"RELEASE", MessageType::kRelease, frame_of(ReleaseMessage{}), "vvvv", "vttv", "vvvv", false},
      {"RELEASE of all", MessageType::kRelease, frame_of(ReleaseMessage{.all_left = 1}), "vvvv", "vvtv",
       "vvvv", false},
      {"GOODBYE", MessageType::kGoodbye, frame_of(GoodbyeMessage{}), "vvvt", "vvtt", "vvtt", true},
      {"LOST", MessageType::kLost, frame_of(LostMessage{.node = 0}), "tttt", "tttt", "tttt", true},
      {"RESOLVE", MessageType::kResolve, frame_of(ResolveMessage{.count = 1}, 2), "vvvv", "vvvv", "vvvv",
       true},
      {"RESOLVED", MessageType::kResolved, frame_of(ResolvedMessage{}), "vvvv", "vvvv", "vvvv", true},
      {"RETIRE", MessageType::kRetire, frame_of(RetireMessage{.count = 1}, 3), "vvvv", "vvvv", "vvvv", true},
      {"RETIRED", MessageType::kRetired, frame_of(RetiredMessage{.count = 1}, 1), "vvvv", "vvvv", "vvvv",
       true},
      {"LIST_IDS", MessageType::kListIds, frame_of(ListIdsMessage{}), "vvvv", "vvvv", "vvvv", true},
      {"IDS", MessageType::kIds, frame_of(IdsMessage{}), "vvvv", "vvvv", "vvvv", true},
      {"LOST, stalled", MessageType::kLost, frame_of(LostMessage{.stalled = 1, .node = 0}), "vvvv", "tttt",
       "vvvv", true},
  };
  return rows;
}

void check_cluster_row(const ClusterRow& row, NodeId to, NodeId from, std::string_view outcomes) {
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    for (const std::size_t channel : {0U, 1U}) {
      Member member(to, kPhases[i]);
      const bool was_closed = member.closed();
      std::string refused;
      try {
        member.node.channels[channel]->on_frame(from, row.frame);
      } catch (const ProtocolError& error) {
        refused = error.what();
      }
      const bool tolerated = outcomes[i] == 't' && (row.on_any_channel || channel == 0);
      const std::string where = std::string(row.name) + " from " + std::to_string(from) + " to " +
                                std::to_string(to) + " in phase " + std::to_string(i) + " on channel " +
                                std::to_string(channel);
      if (refused.empty() != tolerated) check::fail(__FILE__, __LINE__, where + ": " + refused);
      const bool ends = row.frame == frame_of(ReleaseMessage{.all_left = 1}) && tolerated;
      if (member.closed() != (was_closed || ends)) check::fail(__FILE__, __LINE__, where + " ends the job");
    }
  }
}

}  // namespace

TEST(the_tables_have_every_message_type) {
  std::vector<bool> found(kMessageTypes);
  for (const KeyRow& row : kKeyRows) found[static_cast<std::size_t>(row.type)] = true;
  for (const ClusterRow& row : cluster_rows()) found[static_cast<std::size_t>(row.type)] = true;
  for (std::size_t type = 1; type < kMessageTypes; ++type) CHECK(found[type]);
}

TEST(a_message_about_a_key_is_tolerated_or_a_violation_as_the_table_says) {
  for (const KeyRow& row : kKeyRows) {
    REQUIRE(row.outcomes.size() == std::size(kKeyStates));
    for (std::size_t i = 0; i < std::size(kKeyStates); ++i) {
      Receiver receiver(kKeyStates[i]);
      const std::string refused = receiver.handle(about(row.type, receiver.key()));
      if (refused.empty() != (row.outcomes[i] == 't'))
        check::fail(__FILE__, __LINE__,
                    std::string(name_of(row.type)) + " in state " + std::to_string(i) + ": " + refused);
    }
  }
}

TEST(a_message_about_the_cluster_is_tolerated_or_a_violation_as_the_table_says) {
  for (const ClusterRow& row : cluster_rows()) {
    check_cluster_row(row, 0, kSender, row.at_counting);
    check_cluster_row(row, 1, 0, row.from_counting);
    check_cluster_row(row, 1, kSender, row.between_others);
  }
}

TEST(what_may_come_once_is_a_violation_the_second_time) {
  Member counting(0, Phase::kTraining);
  Channel& channel = *counting.node.channels[0];
  channel.on_frame(2, frame_of(BarrierMessage{}));
  CHECK_THROWS(channel.on_frame(2, frame_of(BarrierMessage{})), ProtocolError, "rank 2 arrives twice");
  channel.on_frame(2, frame_of(BarrierMessage{.for_good = 1}));
  CHECK_THROWS(channel.on_frame(2, frame_of(BarrierMessage{})), ProtocolError, "after it has left");

  Member left(1, Phase::kLeft);
  left.node.channels[1]->on_frame(2, frame_of(GoodbyeMessage{}));
  CHECK_THROWS(left.node.channels[1]->on_frame(2, frame_of(GoodbyeMessage{})), ProtocolError,
               "goodbye twice");
}

TEST(only_a_node_that_said_goodbye_may_close_its_connection) {
  Member left(1, Phase::kLeft);
  Channel& channel = *left.node.channels[1];
  channel.on_frame(2, frame_of(GoodbyeMessage{}));
  channel.on_peer_down(2, "it closed the connection");
  CHECK(!channel.membership().has_lost_peer());
  channel.on_peer_down(0, "it closed the connection");
  CHECK(channel.membership().has_lost_peer());
}

TEST(each_node_echoes_a_mark_once) {
  NodeState node(tables(), settings(1));
  for (const auto& partition : node.partitions) partition->set_waker([] {});
  Worker worker(node, 0);
  worker.hurry(worker.wait_sync(true));
  Channel& channel = *node.channels[0];
  channel.on_tick();
  const SyncMessage echo{.type = MessageType::kEcho, .number = 0};
  channel.on_frame(2, frame_of(echo));
  CHECK_THROWS(channel.on_frame(2, frame_of(echo)), ProtocolError, "rank 2 echoes mark 0");
  channel.on_frame(0, frame_of(echo));
  node.fail(0, "the end");
}

namespace {

// Node 1 of a cluster with a table of ids, and its first channel.
struct Assigning {
  Assigning() : node({{.name = "t", .rows = 9, .length = 1, .has_ids = true}}, settings(1)), worker(node, 0) {
    for (const auto& partition : node.partitions) partition->set_waker([] {});
  }
  // An id that a node assigns and whose requests use the first channel.
  std::int64_t id_of(NodeId rank) const { return next_id_of(rank, 0); }
  std::int64_t next_id_of(NodeId rank, std::int64_t id) const {
    while (node.directory.node_of_id(id) != rank || node.directory.channel(static_cast<Key>(id)) != 0) ++id;
    return id;
  }
  std::string handle(NodeId from, const Frame& frame) {
    try {
      node.channels[0]->on_frame(from, frame);
    } catch (const ProtocolError& error) {
      return error.what();
    }
    return "";
  }

  NodeState node;
  Worker worker;
};

Frame resolve(std::int64_t id, std::uint32_t count = 1) {
  Frame frame = frame_of(ResolveMessage{.count = count}, 2);
  std::memcpy(frame.data() + sizeof(ResolveMessage), &id, sizeof(id));
  return frame;
}

Frame resolved(std::uint32_t row, std::uint32_t count = 1) {
  Frame frame = frame_of(ResolvedMessage{.count = count}, count);
  if (count > 0) std::memcpy(frame.data() + sizeof(ResolvedMessage), &row, sizeof(row));
  return frame;
}

}  // namespace

TEST(rows_are_requested_from_the_node_that_assigns_them) {
  Assigning receiver;
  CHECK_EQ(receiver.handle(kSender, resolve(receiver.id_of(1))), "");
  CHECK_EQ(receiver.node.tables[0].ids()->find(receiver.id_of(1)), std::int64_t{3});
  CHECK_CONTAINS(receiver.handle(kSender, resolve(receiver.id_of(0))), "another node assigns");
  CHECK_CONTAINS(receiver.handle(kSender, resolve(receiver.id_of(1), 0)), "of 0 ids");
  CHECK_CONTAINS(receiver.handle(kSender, resolve(receiver.id_of(1), 5000)), "of 5000 ids");
  Frame of_other_table = resolve(receiver.id_of(1));
  of_other_table[offsetof(ResolveMessage, table)] = std::byte{1};
  CHECK_CONTAINS(receiver.handle(kSender, of_other_table), "table 1, which has no ids");
}

TEST(rows_are_answered_once_by_the_node_that_was_asked_and_from_its_share) {
  for (const std::uint32_t wrong : {0U, 3U, 5U, 9U, 400U}) {
    Assigning receiver;
    const std::int64_t id = receiver.id_of(kSender);
    std::int64_t row = -1;
    const Ticket ticket = receiver.worker.rows_of(receiver.node.tables[0], {&id, 1}, {&row, 1}, true);
    receiver.node.channels[0]->on_tick();
    CHECK_CONTAINS(receiver.handle(0, resolved(6)), "did not receive");
    CHECK_CONTAINS(receiver.handle(kSender, resolved(6, 2)), "answers 2 of 1 ids");
    CHECK_CONTAINS(receiver.handle(kSender, resolved(wrong)), "another node assigns");
    CHECK_EQ(receiver.handle(kSender, resolved(6)), "");
    CHECK_CONTAINS(receiver.handle(kSender, resolved(6)), "did not receive");
    receiver.worker.wait(ticket);
    CHECK_EQ(row, std::int64_t{6});
  }
}

TEST(a_row_is_the_answer_for_one_id) {
  Assigning receiver;
  const std::int64_t first = receiver.id_of(kSender);
  const std::int64_t second = receiver.next_id_of(kSender, first + 1);
  const std::int64_t ids[] = {first, second};
  std::int64_t rows[] = {-1, -1};
  for (std::size_t i = 0; i < 2; ++i)
    receiver.worker.rows_of(receiver.node.tables[0], {&ids[i], 1}, {&rows[i], 1}, true);
  receiver.node.channels[0]->on_tick();
  Frame other = resolved(7);
  other[offsetof(ResolvedMessage, request)] = std::byte{1};
  CHECK_EQ(receiver.handle(kSender, other), "");
  CHECK_CONTAINS(receiver.handle(kSender, resolved(7)), "another id's");
  receiver.node.fail(kSender, "the end");
}

TEST(ids_of_used_rows_are_listed_from_any_existing_row_on) {
  Assigning receiver;
  CHECK_EQ(receiver.handle(kSender, frame_of(ListIdsMessage{})), "");
  CHECK_EQ(receiver.handle(kSender, frame_of(ListIdsMessage{.first = 8})), "");
  CHECK_CONTAINS(receiver.handle(kSender, frame_of(ListIdsMessage{.first = 9})),
                 "from row 9, which does not");
  CHECK_CONTAINS(receiver.handle(kSender, frame_of(ListIdsMessage{.table = 1})), "table 1, which has no ids");
}

TEST(ids_are_answered_once_by_the_node_that_was_asked_and_for_the_rows_that_were_asked_for) {
  Assigning receiver;
  Operation listing(OperationKind::kUsedIds, 0, receiver.node.workers[0]->completion);
  listing.id_listing = std::make_unique<IdListing>(&receiver.node.tables[0]);
  start_used_ids(receiver.node, listing);
  receiver.node.partitions[0]->submit_id_listing(listing);
  receiver.node.channels[0]->on_tick();
  const std::uint32_t request = 1;  // request 0 was sent to node 0
  const auto answer = [&](NodeId from, IdsMessage message, std::size_t floats = 0) {
    message.request = request;
    return receiver.handle(from, frame_of(message, floats));
  };
  CHECK_CONTAINS(answer(0, {.next = 9}), "did not receive");
  CHECK_CONTAINS(answer(kSender, {.next = 0}), "from row 0 up to row 0 of 9");
  CHECK_CONTAINS(answer(kSender, {.next = 10}), "from row 0 up to row 10 of 9");
  CHECK_CONTAINS(answer(kSender, {.count = 6, .next = 5}, 12), "answers 6 ids of 5 rows");
  CHECK_EQ(answer(kSender, {.count = 1, .next = 5}, 2), "");
  CHECK_CONTAINS(answer(kSender, {.next = 5}), "from row 5 up to row 5 of 9");
  CHECK_EQ(answer(kSender, {.count = 1, .next = 9}, 2), "");
  CHECK_CONTAINS(answer(kSender, {.next = 9}), "did not receive");
  CHECK(!listing.done.load());
  CHECK_EQ(receiver.handle(0, frame_of(IdsMessage{.next = 9})), "");
  CHECK(listing.done.load());
  CHECK_EQ(listing.id_listing->ids.size(), std::size_t{2});
}

TEST(a_row_without_an_id_is_not_used) {
  Assigning receiver;
  const Key key = share_of(9, kNodes, 1).first;
  Channel& channel = *receiver.node.channels[static_cast<std::size_t>(receiver.node.directory.channel(key))];
  CHECK_THROWS(channel.on_frame(kSender, frame_of(IntentMessage{.origin = kSender, .key = key})),
               ProtocolError, "which has no id");
}

TEST(a_message_that_no_node_passed_on_comes_from_its_origin) {
  for (const NodeId origin : {NodeId{0}, NodeId{1}, kNodes}) {
    Receiver receiver(kOwned);
    IntentMessage intent{.origin = origin, .key = receiver.key()};
    CHECK_CONTAINS(receiver.handle(frame_of(intent)), "did not send");
    const Frame request = frame_of(request_of(origin, receiver.key()));
    CHECK_CONTAINS(receiver.handle(request), "did not send");
  }
}

TEST(an_own_message_comes_back_only_while_it_is_open) {
  Receiver receiver(kElsewhere);
  IntentMessage intent{.origin = 1, .key = receiver.key()};
  intent.route.hops = 1;
  CHECK(!receiver.handle(frame_of(intent)).empty());
  RequestMessage request = request_of(1, receiver.key());
  request.route.hops = 1;
  CHECK_CONTAINS(receiver.handle(frame_of(request)), "not open");
}

TEST(an_intent_for_a_static_key_is_a_violation) {
  Receiver receiver(kUntouched, tables(Technique::kStatic));
  CHECK(!receiver.handle(about(MessageType::kIntent, receiver.key())).empty());
}

TEST(a_request_of_every_kind_is_tolerated_in_every_state) {
  const std::vector<TableSpec> with_state = tables(Technique::kAdaptive, RuleKind::kAdagrad);
  for (const RequestKind& kind : kRequestKinds) {
    for (const KeyState state : {kUntouched, kElsewhere, kPending, kOwned, kHeldBySender, kGivenAway}) {
      Receiver receiver(state, with_state);
      const RequestMessage request = request_of(kSender, receiver.key(), kind.kind);
      CHECK_EQ(receiver.handle(frame_of(request, kind.floats)), "");
    }
  }
}

TEST(a_request_of_an_unknown_kind_is_a_violation) {
  for (std::uint64_t kind = 0; kind < 16; ++kind) {
    const bool known = std::any_of(std::begin(kRequestKinds), std::end(kRequestKinds), [&](const auto& row) {
      return kind == static_cast<std::uint64_t>(row.kind);
    });
    if (known) continue;
    Receiver receiver(kOwned);
    RequestMessage request = request_of(kSender, receiver.key());
    request.kind = kind;
    CHECK_CONTAINS(receiver.handle(frame_of(request)), "unknown kind of request");
  }
}

TEST(an_answer_has_the_content_that_its_request_is_for) {
  const std::vector<TableSpec> with_state = tables(Technique::kAdaptive, RuleKind::kAdagrad);
  for (const RequestKind& kind : kRequestKinds) {
    for (const Answered content : {Answered::kNothing, Answered::kValue, Answered::kState}) {
      Receiver receiver(kElsewhere, with_state);
      receiver.call(kind.kind);
      const AnswerMessage answer{.content = content};
      const std::string refused = receiver.handle(frame_of(answer, content == Answered::kNothing ? 0 : 1));
      CHECK_EQ(refused.empty(), content == kind.content);
      if (content != kind.content) CHECK_CONTAINS(refused, "other contents");
    }
  }
}
