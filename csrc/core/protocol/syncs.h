// The part of wait_sync that waits for other nodes' writes: MARK and ECHO (docs/concepts/protocol.md, section
// 7b).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/decisions.h"
#include "protocol/flusher.h"
#include "protocol/message.h"
#include "protocol/operation.h"
#include "protocol/refreshes.h"

namespace adaps {

class Syncs {
 public:
  Syncs(ChannelContext& channel, Refreshes& refreshes, Flusher& flusher)
      : channel_(channel), refreshes_(refreshes), flusher_(flusher) {}

  void begin(Operation& operation);
  void on_mark(NodeId from, const SyncMessage& message);
  // Patient calls of this node, and MARKs of such calls of other nodes, wait for a flush in a round. All
  // nodes make these calls after the same steps. If each of them had its own flush, an owner with n holders
  // would send each of its rows n times to all of them. Returns the changes that must be flushed now.
  Beyond needed_for_patient() const;
  bool has_patient_calls() const { return !patient_calls_.empty(); }
  // Time when the next patient call begins at the latest, although its worker's clock has not advanced.
  // kNever if this time has passed.
  Micros latest_begin() const;
  // Whether a worker waits for one of these calls now.
  bool hurries() const;
  // Called when a flush has begun: sends MARKs and ECHOs when it ends.
  void take_up_patient(Beyond flushed);
  void on_echo(NodeId from, const SyncMessage& message);
  // Sends MARKs and ECHOs whose preceding changes are flushed.
  void send_flushed();
  // Sends ECHOs whose preceding refreshes were sent.
  void send_echoes();

 private:
  // Maximum time until a patient call begins, if its worker's clock does not advance.
  static constexpr Micros kPatience = 10'000;

  // A MARK or an ECHO that must be sent after all changes that existed when it was requested.
  struct AfterFlush {
    std::uint64_t end;  // position of the last of these changes in the flushes
    Operation* sync;    // the wait_sync of a MARK; null for an ECHO
    NodeId to;
    std::uint32_t number;
    bool patient;  // of an ECHO
  };
  // An ECHO that must be sent after flushed changes and after `held_back` refreshes that were held back for
  // the node.
  struct BehindHeldBack {
    NodeId to;
    std::uint32_t number;
    bool patient;
    std::uint64_t held_back;
  };
  struct PatientCall {
    Operation* operation;
    Micros since;
  };
  bool is_due(const PatientCall& call) const;
  void after_flush(const AfterFlush& message);
  void send_mark(std::vector<Operation*>& calls);

  ChannelContext& channel_;
  Refreshes& refreshes_;
  Flusher& flusher_;
  std::deque<AfterFlush> after_flush_;
  std::vector<BehindHeldBack> echoes_;
  std::vector<PatientCall> patient_calls_;
  std::vector<PatientMark> patient_marks_;
  std::vector<PendingSync> syncs_;
  std::uint32_t next_mark_ = 0;
};

}  // namespace adaps
