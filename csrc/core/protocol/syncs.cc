#include "protocol/syncs.h"

#include <algorithm>
#include <string>
#include <utility>

namespace adaps {

void Syncs::begin(Operation& operation) {
  if (operation.patient.load()) {
    patient_calls_.push_back({&operation, channel_.now});
    return;
  }
  flusher_.flush(Beyond::kEverything);
  after_flush({flusher_.end(), &operation, 0, 0, false});
}

void Syncs::on_mark(NodeId from, const SyncMessage& message) {
  if (message.patient != 0) {
    decisions().keep_mark(patient_marks_, {from, message.number});
    return;
  }
  refreshes_.expect_echo(from);
  after_flush({decisions().flush_before_echo(flusher_), nullptr, from, message.number, false});
}

std::uint64_t Decisions::flush_before_echo(Flusher& flusher) const {
  flusher.flush(Beyond::kEverything);
  return flusher.end();
}

std::uint64_t Decisions::end_for_patient(const Flusher& flusher) const { return flusher.end(); }

// When the worker's clock has advanced, intents for its last step have ended. A replica that was only needed
// for this step is dropped with its change, so the change needs no other message.
bool Syncs::is_due(const PatientCall& call) const {
  const auto worker = static_cast<std::size_t>(call.operation->worker);
  return !call.operation->patient.load() || channel_.now >= call.since + kPatience ||
         channel_.node.workers[worker]->clock.load(std::memory_order_relaxed) > call.operation->clock;
}

Micros Syncs::latest_begin() const {
  if (patient_calls_.empty()) return kNever;
  const Micros latest = patient_calls_.front().since + kPatience;
  return latest > channel_.now ? latest : kNever;
}

bool Syncs::hurries() const {
  return std::any_of(patient_calls_.begin(), patient_calls_.end(),
                     [](const PatientCall& call) { return !call.operation->patient.load(); });
}

Beyond Syncs::needed_for_patient() const {
  const bool begins = std::any_of(patient_calls_.begin(), patient_calls_.end(),
                                  [this](const PatientCall& call) { return is_due(call); });
  const bool answers = decisions().all_refreshes_are_due(!patient_marks_.empty());
  return (begins ? Beyond::kChanges : Beyond::kNothing) | (answers ? Beyond::kRefreshes : Beyond::kNothing);
}

void Syncs::take_up_patient(Beyond flushed) {
  const std::uint64_t end = decisions().end_for_patient(flusher_);
  if (includes(flushed, Beyond::kChanges)) {
    for (const PatientCall& call : std::exchange(patient_calls_, {}))
      after_flush_.push_back({end, call.operation, 0, 0, false});
  }
  if (patient_marks_.empty()) return;
  for (const PatientMark& mark : decisions().take_marks(patient_marks_))
    after_flush_.push_back({end, nullptr, mark.from, mark.number, true});
}

void Syncs::after_flush(const AfterFlush& message) {
  after_flush_.push_back(message);
  send_flushed();
}

void Syncs::send_flushed() {
  std::vector<Operation*> calls;
  while (!after_flush_.empty() && after_flush_.front().end <= flusher_.flushed()) {
    const AfterFlush message = after_flush_.front();
    after_flush_.pop_front();
    if (message.sync != nullptr) {
      calls.push_back(message.sync);
    } else {
      const std::uint64_t held_back = decisions().held_back_before_echo(refreshes_.held_back(message.to));
      echoes_.push_back({message.to, message.number, message.patient, held_back});
    }
  }
  send_mark(calls);
  send_echoes();
}

// Sends ECHOs in the order of their MARKs. An earlier ECHO to a node never waits for more refreshes than a
// later one.
void Syncs::send_echoes() {
  std::erase_if(echoes_, [&](const BehindHeldBack& echo) {
    if (refreshes_.sent_later(echo.to) < echo.held_back) return false;
    channel_.outbox.append(echo.to, SyncMessage{.type = MessageType::kEcho, .number = echo.number});
    if (!echo.patient) refreshes_.echo_sent(echo.to);
    return true;
  });
}

// Sends one MARK for all of these calls.
void Syncs::send_mark(std::vector<Operation*>& calls) {
  const NodeId nodes = channel_.node.settings.nodes;
  if (nodes == 1) {
    for (Operation* call : calls) call->finish();
    return;
  }
  std::erase_if(calls, [&](Operation* call) { return !decisions().needs_own_mark(syncs_, *call); });
  if (calls.empty()) return;
  const std::uint32_t number = next_mark_++;
  const bool patient =
      std::all_of(calls.begin(), calls.end(), [](const Operation* call) { return call->patient.load(); });
  const SyncMessage mark{.patient = static_cast<std::uint8_t>(patient), .number = number};
  NodeSet awaited(nodes);
  for (NodeId peer = 0; peer < nodes; ++peer) {
    if (peer == channel_.rank) continue;
    awaited.insert(peer);
    channel_.outbox.append(peer, mark);
  }
  for (Operation* call : calls) syncs_.push_back({call, number, awaited});
}

void Syncs::on_echo(NodeId from, const SyncMessage& message) {
  bool known = false;
  std::erase_if(syncs_, [&](PendingSync& sync) {
    if (sync.number != message.number || !sync.awaited.contains(from)) return false;
    known = true;
    sync.awaited.erase(from);
    if (!sync.awaited.empty()) return false;
    sync.operation->finish();
    return true;
  });
  if (!known)
    throw ProtocolError(from, "echoes mark " + std::to_string(message.number) +
                                  ", which this node did not send or which it has echoed already");
}

}  // namespace adaps
