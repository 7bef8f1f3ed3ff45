#include "common/stats.h"

namespace adaps {

const char* name_of(TraceKind kind) {
  static constexpr const char* kNames[] = {"alloc",          "intent_start",    "intent_stop",
                                           "replica_set_up", "replica_dropped", "relocated_here",
                                           "relocated_away"};
  return name_in(kNames, kind);
}

const char* name_of(Technique technique) {
  static constexpr const char* kNames[] = {"adaptive", "replication", "relocation", "static",
                                           "full_replication"};
  return name_in(kNames, technique);
}

const char* name_of(Wire wire) {
  static constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "int8"};
  return name_in(kNames, wire);
}

const char* name_of(NonFinite policy) {
  static constexpr const char* kNames[] = {"raise", "skip", "pass"};
  return name_in(kNames, policy);
}

}  // namespace adaps
