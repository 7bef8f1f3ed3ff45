#include "adaps/stats.h"

#include "adaps/message.h"

namespace adaps {

const char* name_of(TraceKind kind) {
  switch (kind) {
    case TraceKind::kAlloc:
      return "alloc";
    case TraceKind::kIntentStart:
      return "intent_start";
    case TraceKind::kIntentStop:
      return "intent_stop";
    case TraceKind::kReplicaSetUp:
      return "replica_set_up";
    case TraceKind::kReplicaDropped:
      return "replica_dropped";
    case TraceKind::kRelocatedHere:
      return "relocated_here";
    case TraceKind::kRelocatedAway:
      return "relocated_away";
  }
  return "unknown";
}

const char* name_of(Technique technique) {
  switch (technique) {
    case Technique::kAdaptive:
      return "adaptive";
    case Technique::kReplication:
      return "replication";
    case Technique::kRelocation:
      return "relocation";
    case Technique::kStatic:
      return "static";
    case Technique::kFullReplication:
      return "full_replication";
  }
  return "unknown";
}

const char* name_of(NonFinite policy) {
  switch (policy) {
    case NonFinite::kRaise:
      return "raise";
    case NonFinite::kSkip:
      return "skip";
    case NonFinite::kPass:
      return "pass";
  }
  return "unknown";
}

const char* name_of(MessageType type) {
  switch (type) {
    case MessageType::kRequest:
      return "request";
    case MessageType::kIntent:
      return "intent";
    case MessageType::kAnswer:
      return "answer";
    case MessageType::kSetup:
      return "setup";
    case MessageType::kRefresh:
      return "refresh";
    case MessageType::kDelta:
      return "delta";
    case MessageType::kAck:
      return "ack";
    case MessageType::kDrop:
      return "drop";
    case MessageType::kDropAck:
      return "drop_ack";
    case MessageType::kTransfer:
      return "transfer";
    case MessageType::kNews:
      return "news";
    case MessageType::kMark:
      return "mark";
    case MessageType::kEcho:
      return "echo";
    case MessageType::kBarrier:
      return "barrier";
    case MessageType::kRelease:
      return "release";
    case MessageType::kGoodbye:
      return "goodbye";
    case MessageType::kLost:
      return "lost";
  }
  return "unknown";
}

}  // namespace adaps
