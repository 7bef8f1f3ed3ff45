#include "common/stats.h"

#include <pthread.h>

#include <algorithm>

namespace adaps {

namespace {

double micros_of(clockid_t clock) {
  timespec time{};
  if (clock_gettime(clock, &time) != 0) return 0.0;
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

}  // namespace

void ThreadTime::begin() {
  clockid_t clock = kNone;
  if (pthread_getcpuclockid(pthread_self(), &clock) == 0) clock_.store(clock);
}

void ThreadTime::end() {
  ended_.store(micros_of(CLOCK_THREAD_CPUTIME_ID));
  clock_.store(kNone);
}

double ThreadTime::micros() const {
  const clockid_t clock = clock_.load();
  const double running = clock == kNone ? 0.0 : micros_of(clock);
  // The thread may have ended in between, and then its clock no longer exists.
  return std::max(running, ended_.load());
}

const char* name_of(TraceKind kind) {
  static constexpr const char* kNames[] = {"alloc",          "intent_start",    "intent_stop",
                                           "replica_set_up", "replica_dropped", "relocated_here",
                                           "relocated_away", "retired"};
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
