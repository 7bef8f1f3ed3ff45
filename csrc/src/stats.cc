#include "adaps/stats.h"

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

}  // namespace adaps
