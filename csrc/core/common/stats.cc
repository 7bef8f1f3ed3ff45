#include "common/stats.h"

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

const char* name_of(Wire wire) {
  switch (wire) {
    case Wire::kFloat32:
      return "float32";
    case Wire::kBfloat16:
      return "bfloat16";
    case Wire::kFloat16:
      return "float16";
    case Wire::kInt8:
      return "int8";
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

}  // namespace adaps
