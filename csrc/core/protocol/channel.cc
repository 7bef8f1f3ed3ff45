#include "protocol/channel.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "protocol/frame_wait.h"
#include "protocol/prefetcher.h"

namespace adaps {

Channel::Channel(NodeContext& node, int index)
    : context_(node, index),
      membership_(node, context_.outbox, index),
      stored_rows_(context_),
      refreshes_(context_),
      replicas_(context_, refreshes_, parked_),
      ownership_(context_, stored_rows_, replicas_),
      intent_handler_(context_, stored_rows_, ownership_, replicas_),
      requests_(context_, stored_rows_, refreshes_, replicas_, parked_),
      id_requests_(context_),
      retirement_(context_, stored_rows_, ownership_),
      id_listings_(context_),
      flusher_(context_, replicas_),
      syncs_(context_, refreshes_, flusher_),
      round_distance_(node.settings.round_distance()),
      last_round_(-round_distance_) {
  context_.outbox.set_wait(frame_wait(node.settings, 0.0));
}

// --- submissions ---

void Channel::take_submissions() {
  more_submitted_ = !batch_.done();
  if (!more_submitted_) {
    batch_ = {partition().take()};
    const std::vector<KeyRequest*> next_parts = requests_.take_next_parts();
    batch_.requests.insert(batch_.requests.begin(), next_parts.begin(), next_parts.end());
    batch_.begins_round = std::any_of(
        batch_.requests.begin(), batch_.requests.end(),
        [](const KeyRequest* request) { return request->operation->kind == OperationKind::kLocalize; });
  }
  // Intents are taken after the requests. A worker that waits for keys has signalled intent for them before
  // it submitted the request, so every request that was taken has its intent among the intents that are taken
  // now.
  partition().intents.take_submitted();
}

void Channel::work_off_batch() {
  const NodeContext& node = context_.node;
  WorkSlice& slice = context_.slice;
  slice.begin();
  if (std::exchange(batch_.begins_round, false)) {
    run_round();
    batch_.follows_intents = true;
    slice.begin();
  }
  for (IdRequest* request : std::exchange(batch_.id_requests, {})) id_requests_.send(*request);
  for (Operation* operation : std::exchange(batch_.id_listings, {})) id_listings_.begin(*operation);
  if (batch_.follows_intents && partition().intents.acting() && !node.frozen.load()) return;
  while (batch_.next < batch_.requests.size()) {
    if (slice.is_used_up()) return;
    KeyRequest& request = *batch_.requests[batch_.next++];
    slice.spend(request.occurrences * node.tables.find(request.key, context_.table_hint).length());
    requests_.attempt(request);
    send_first(batch_.next, batch_.requests.size() - batch_.next >= batch_.next);
  }
  for (Operation* operation : std::exchange(batch_.syncs, {})) syncs_.begin(*operation);
  for (const bool for_good : std::exchange(batch_.arrivals, {})) membership_.arrived(for_good, context_.now);
  if (std::exchange(batch_.goodbye, false) && !membership_.goodbye_sent()) membership_.say_goodbye();
}

// --- driving ---

Micros Channel::on_tick() {
  const Partition::Driving driving(partition());
  partition().begin_tick();
  const Micros now = context_.now;
  const IntentQueues& intents = partition().intents;
  WorkSlice& slice = context_.slice;
  context_.backlog.look(now);
  for (const Key key : stored_rows_.work()) continue_with_row(key);
  take_submissions();
  work_off_batch();
  retirement_.run();
  id_requests_.serve_waiting();
  // Each kind of work has a separate slice, so that much work of one kind does not delay the others.
  const bool frozen = context_.node.frozen.load();
  slice.begin();
  if (!frozen) ownership_.take_up_postponed();
  slice.begin();
  if (!frozen) ownership_.take_up_kept_back();
  const bool permanent = intent_handler_.has_permanent();
  if (!frozen && permanent) intent_handler_.start_permanent();
  slice.begin();
  if (partition().round_requested() && now >= last_round_ + round_distance_) run_round();
  if (!frozen && (intents.acting() || now >= intents.due())) intent_handler_.act_on_intents(last_round_);
  slice.begin();
  refreshes_.send_held_back();
  syncs_.send_echoes();
  slice.begin();
  flusher_.send_kept_back();
  slice.begin();
  flush_if_due();
  if (now >= membership_.stall_due()) membership_.give_up_on_stalled();
  slice.begin();
  stored_rows_.write_out();
  send_with_frames();
  const bool more_calls = !batch_.done() || more_submitted_ || requests_.has_next_parts();
  const bool room = context_.backlog.may_go_on() || refreshes_.may_go_on() || flusher_.may_go_on();
  if (membership_.has_lost_peer() || flusher_.under_way() || more_calls || room) return now;
  if (!frozen && (intents.acting() || permanent || ownership_.has_postponed() || ownership_.may_go_on()))
    return now;
  Micros next = std::min({membership_.stall_due(), flusher_.next(), context_.outbox.next_departure(),
                          syncs_.latest_begin(), retirement_.due(), stored_rows_.next()});
  if (partition().round_requested()) next = std::min(next, last_round_ + round_distance_);
  if (!frozen) next = std::min(next, intents.due());
  return next;
}

void Channel::run_round() {
  partition().begin_round();
  partition().intents.begin_round(context_.now - last_round_);
  last_round_ = context_.now;
  context_.outbox.set_wait(frame_wait(context_.node.settings, partition().intents.pace()));
  context_.counters.rounds.add();
  if (!context_.node.frozen.load()) intent_handler_.act_on_intents(last_round_);
  flusher_.request();
  if (flusher_.due()) flush(needed_for_syncs());
}

// A wait_sync waits for the next round only if no worker waits for it yet.
void Channel::flush_if_due() {
  const Beyond needed = needed_for_syncs();
  if (needed != Beyond::kNothing) flusher_.request_for_sync();
  if (flusher_.due() || (needed != Beyond::kNothing && hurries())) flush(needed);
  if (!flusher_.under_way()) return;
  flusher_.continue_flush();
  syncs_.send_flushed();
}

bool Channel::hurries() const { return context_.node.epochs.anyone_hurries() || syncs_.hurries(); }

Beyond Channel::needed_for_syncs() const {
  const bool waits = decisions().all_are_due(context_.node.epochs.anyone_waits());
  if (waits && hurries() && flusher_.has_dirty(Beyond::kEverything)) return Beyond::kEverything;
  const bool has_changes = !syncs_.has_patient_calls() && flusher_.has_dirty(Beyond::kChanges);
  return syncs_.needed_for_patient() | (waits && has_changes ? Beyond::kChanges : Beyond::kNothing);
}

void Channel::flush(Beyond beyond) {
  flusher_.flush(beyond);
  syncs_.take_up_patient(beyond);
  syncs_.send_flushed();
}

// Adds changes and refreshes that were kept until a frame leaves.
void Channel::send_with_frames() {
  Outbox& outbox = context_.outbox;
  if (!outbox.lets_wait()) return;
  // When all workers have left, their remaining changes are sent.
  if (decisions().leaves_for_sync(context_.node.epochs.anyone_hurries()) || context_.node.barrier.all_left())
    outbox.leave_all_now();
  const std::uint64_t before = outbox.appended();
  context_.slice.begin();
  outbox.fetch_expected([this](NodeId to) {
    if (!decisions().goes_with_frame()) return;
    refreshes_.send_held_back(to);
    flusher_.send_kept_back(to);
  });
  flusher_.count(outbox.appended() - before);
  syncs_.send_echoes();
}

// Sends the first frames early, so that the worker that waits for many rows wakes up while the others are
// processed.
void Channel::send_first(std::size_t requests, bool many_left) {
  if (requests == context_.node.settings.first_requests && many_left && send_drained_) send_drained_();
}

void Channel::settle(Key key) {
  requests_.retry(key);
  replicas_.drop_if_unwanted(key);
}

void Channel::continue_with_row(Key key) {
  requests_.retry(key);
  for (const StoredRows::Waiting& waiting : stored_rows_.take_waiting(key)) {
    if (const auto* request = std::get_if<RequestMessage>(&waiting.message)) {
      Reader reader(std::as_bytes(std::span(waiting.payload)));
      requests_.on_request(waiting.from, *request, reader);
    } else {
      ownership_.on_intent(waiting.from, std::get<IntentMessage>(waiting.message));
    }
  }
}

void Channel::on_frame(NodeId from, std::span<const std::byte> payload) {
  const Partition::Driving driving(partition());
  context_.slice.begin();
  Reader reader(payload);
  Prefetcher prefetcher(context_.node.store, context_.partition.tables, requests_.awaiting(), payload);
  std::uint64_t messages = 0;
  std::uint64_t upkeep = 0;
  std::size_t requests = 0;
  while (!reader.at_end()) {
    ++messages;
    upkeep += is_upkeep(reader.peek_type()) ? 1 : 0;
    prefetcher.step();
    switch (reader.peek_type()) {
      case MessageType::kRequest:
        requests_.on_request(from, reader.read<RequestMessage>(), reader);
        send_first(++requests, 2 * reader.bytes_left() >= payload.size());
        break;
      case MessageType::kIntent:
        ownership_.on_intent(from, reader.read<IntentMessage>());
        break;
      case MessageType::kAnswer:
        requests_.on_answer(from, reader.read<AnswerMessage>(), reader);
        break;
      case MessageType::kSetup: {
        const auto& message = reader.read<SetupMessage>();
        replicas_.on_setup(from, message, reader);
        settle(message.key);
        break;
      }
      case MessageType::kRefresh:
        replicas_.on_refresh(from, reader.read<RefreshMessage>(), reader);
        break;
      case MessageType::kDelta:
        ownership_.on_delta(from, reader.read<DeltaMessage>(), reader);
        break;
      case MessageType::kAck: {
        const auto& message = reader.read<AckMessage>();
        replicas_.on_ack(from, message);
        settle(message.key);
        break;
      }
      case MessageType::kDrop:
        ownership_.on_drop(from, reader.read<DeltaMessage>(), reader);
        break;
      case MessageType::kDropAck: {
        const auto& message = reader.read<AckMessage>();
        ownership_.on_drop_ack(message);
        requests_.retry(message.key);
        break;
      }
      case MessageType::kTransfer: {
        const auto& message = reader.read<TransferMessage>();
        ownership_.on_transfer(from, message, reader);
        requests_.retry(message.key);
        break;
      }
      case MessageType::kNews:
        ownership_.on_news(from, reader.read<NewsMessage>());
        break;
      case MessageType::kMark:
        syncs_.on_mark(from, reader.read<SyncMessage>());
        break;
      case MessageType::kEcho:
        syncs_.on_echo(from, reader.read<SyncMessage>());
        break;
      case MessageType::kBarrier:
        membership_.on_barrier(from, reader.read<BarrierMessage>(), context_.now);
        break;
      case MessageType::kRelease:
        membership_.on_release(from, reader.read<ReleaseMessage>());
        break;
      case MessageType::kGoodbye:
        reader.read<GoodbyeMessage>();
        membership_.on_goodbye(from);
        break;
      case MessageType::kLost:
        membership_.on_lost(from, reader.read<LostMessage>());
        break;
      case MessageType::kResolve:
        id_requests_.on_resolve(from, reader.read<ResolveMessage>(), reader);
        break;
      case MessageType::kResolved:
        id_requests_.on_resolved(from, reader.read<ResolvedMessage>(), reader);
        break;
      case MessageType::kRetire:
        retirement_.on_retire(from, reader.read<RetireMessage>(), reader);
        break;
      case MessageType::kRetired:
        retirement_.on_retired(from, reader.read<RetiredMessage>(), reader);
        break;
      case MessageType::kListIds:
        id_listings_.on_list_ids(from, reader.read<ListIdsMessage>());
        break;
      case MessageType::kIds:
        id_listings_.on_ids(from, reader.read<IdsMessage>(), reader);
        break;
      default:
        throw ProtocolError("unknown message type " + std::to_string(static_cast<int>(reader.peek_type())));
    }
  }
  context_.counters.messages_received.add(messages);
  context_.counters.upkeep_received.add(upkeep);
}

}  // namespace adaps
