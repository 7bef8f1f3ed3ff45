// Counters of a node.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "common/types.h"

namespace adaps {

// A counter with one writing thread and any number of readers. It needs no locked instruction.
class Counter {
 public:
  void add(std::uint64_t n = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Processor time of a thread. The thread does no work for it while it runs: the reader asks the system.
class ThreadTime {
 public:
  // The thread calls these at its begin and at its end.
  void begin();
  void end();
  // Adds the time of a simulated thread.
  void add(double micros) { ended_.store(ended_.load(std::memory_order_relaxed) + micros); }
  double micros() const;

 private:
  static constexpr clockid_t kNone = CLOCK_REALTIME;  // no thread has this clock
  std::atomic<clockid_t> clock_{kNone};
  std::atomic<double> ended_{0.0};
};

// Number of keys of one operation, counted by the place that served them.
struct AccessCounters {
  Counter local;    // at the owner
  Counter replica;  // from a replica on this node
  Counter remote;   // by a message
};

// Counters of one table, written by one worker thread.
struct TableAccesses {
  AccessCounters pulled, pushed, set;
  AccessCounters sampled;    // pulled rows that belong to samples
  Counter sampled_fallback;  // rows of local samples that were drawn from all rows
  Counter ids_resolved;      // ids whose rows another node was asked for
};

// Written by one worker thread.
struct alignas(64) WorkerCounters {
  Counter staleness_micros, staleness_reads;  // sampled reads of replicas: sum of ages, number of reads
  Counter intents;                            // keys signalled
  Counter intents_late;                       // keys signalled when their clocks were already over
  Counter gradients_skipped;                  // gradients that contain NaN or infinity
  Counter blocked_micros;                     // time in pull, push and set
  Counter queue_full_micros;  // time that calls waited for space in the request queue, see Worker
  Counter sync_micros;        // time in wait_sync
  Counter barrier_micros;
};

// Written by one channel thread.
struct alignas(64) ChannelCounters {
  Counter rounds, frames_sent, frames_received, bytes_sent, bytes_received, messages_received;
  Counter upkeep_received;  // messages for which is_upkeep is true
  Counter intents_acted, intents_late;
  Counter relocations;  // keys that this node came to own by a TRANSFER
  Counter replicas_set_up, replicas_dropped;
  Counter deltas_sent, refreshes_sent, refreshes_held_back, requests_forwarded;
  Counter lead_micros, lead_keys;  // time from INTENT until the key is local; number of such keys
  // Rows of limited tables: reads that an access started, reads that an intent started, accesses that waited
  // for memory or for a read, and writes.
  Counter rows_read_on_demand, rows_read_ahead, disk_waits, rows_written;
  Counter unsent_full_micros;  // time during which data waited for space at any peer, see SendBacklog
  ThreadTime thread;
};

enum class TraceKind : std::uint8_t {
  kAlloc,
  kIntentStart,
  kIntentStop,
  kReplicaSetUp,
  kReplicaDropped,
  kRelocatedHere,
  kRelocatedAway,
  kRetired
};

struct TraceEvent {
  Micros time;
  Key key;
  TraceKind kind;
};
const char* name_of(TraceKind kind);

}  // namespace adaps
