#include "node/node_stats.h"

namespace adaps {

namespace {

// Values of counters by name, summed over workers and channels.
struct Sums {
  void add(const std::string& name, std::uint64_t count) { by_name[name] += static_cast<double>(count); }
  void add(const std::string& name, const Counter& counter) { add(name, counter.get()); }
  void add(const TableAccesses& table) {
    add("pulled", table.pulled);
    add("pushed", table.pushed);
    add("set_local", table.set.local);
    add("set_remote", table.set.remote);
    add("sampled", table.sampled);
    add("sampled_fallback", table.sampled_fallback);
    add("ids_resolved", table.ids_resolved);
  }
  void add(const std::string& name, const AccessCounters& accesses) {
    add(name + "_local", accesses.local);
    add(name + "_replica", accesses.replica);
    add(name + "_remote", accesses.remote);
  }

  std::map<std::string, double> by_name;
};

void add_ids(Sums& sums, const Table& table) {
  const RowIds* ids = table.ids();
  sums.add("ids_assigned", ids == nullptr ? 0 : ids->assigned());
  sums.add("ids_retired", ids == nullptr ? 0 : ids->retired());
  sums.add("ids_refused", ids == nullptr ? 0 : ids->refused());
  sums.add("ids_not_admitted", ids == nullptr ? 0 : ids->not_admitted());
}

}  // namespace

std::map<std::string, double> stats_of(const NodeState& state) {
  Sums sums;
  for (const auto& worker : state.workers) {
    for (const TableAccesses& table : worker->accesses) sums.add(table);
    const WorkerCounters& c = worker->counters;
    sums.add("staleness_micros", c.staleness_micros);
    sums.add("staleness_reads", c.staleness_reads);
    sums.add("intents", c.intents);
    sums.add("intents_late", c.intents_late);
    sums.add("gradients_skipped", c.gradients_skipped);
    sums.add("blocked_micros", c.blocked_micros);
    sums.add("queue_full_micros", c.queue_full_micros);
    sums.add("queued_bytes", worker->completion.queued_bytes.load());
    sums.add("sync_micros", c.sync_micros);
    sums.add("barrier_micros", c.barrier_micros);
  }
  for (const auto& channel : state.channels) {
    const ChannelCounters& c = channel->counters();
    sums.by_name["channel_micros"] += c.thread.micros();
    sums.add("rounds", c.rounds);
    sums.add("frames_sent", c.frames_sent);
    sums.add("frames_received", c.frames_received);
    sums.add("bytes_sent", c.bytes_sent);
    sums.add("bytes_received", c.bytes_received);
    sums.add("intents_acted", c.intents_acted);
    sums.add("intents_late", c.intents_late);
    sums.add("relocations", c.relocations);
    sums.add("replicas", c.replicas_set_up);
    sums.add("replicas_dropped", c.replicas_dropped);
    sums.add("deltas_sent", c.deltas_sent);
    sums.add("refreshes_sent", c.refreshes_sent);
    sums.add("refreshes_held_back", c.refreshes_held_back);
    sums.add("unsent_full_micros", c.unsent_full_micros);
    sums.add("requests_forwarded", c.requests_forwarded);
    sums.add("rows_read_on_demand", c.rows_read_on_demand);
    sums.add("rows_read_ahead", c.rows_read_ahead);
    sums.add("disk_waits", c.disk_waits);
    sums.add("rows_written", c.rows_written);
    sums.add("lead_micros", c.lead_micros);
    sums.add("lead_keys", c.lead_keys);
    for (std::size_t i = 1; i < kMessageTypes; ++i) {
      const auto type = static_cast<MessageType>(i);
      sums.add(std::string("bytes_sent_") + name_of(type), channel->outbox().bytes_of(type));
    }
  }
  for (std::size_t i = 0; i < state.tables.size(); ++i) add_ids(sums, state.tables[i]);
  sums.add("resident_bytes", state.store.resident_bytes());
  sums.add("slots", state.store.slots_in_use());
  sums.add("rows_stored", state.store.rows_stored());
  return sums.by_name;
}

std::map<std::string, double> stats_of(const NodeState& state, std::size_t table) {
  Sums sums;
  for (const auto& worker : state.workers) sums.add(worker->accesses[table]);
  add_ids(sums, state.tables[table]);
  for (const auto& channel : state.channels) {
    for (std::size_t i = 1; i < kMessageTypes; ++i) {
      const auto type = static_cast<MessageType>(i);
      if (!is_about_a_key(type)) continue;
      const Outbox::Sent sent = channel->outbox().sent_of(table, type);
      sums.add(std::string("messages_sent_") + name_of(type), sent.messages);
      sums.add(std::string("bytes_sent_") + name_of(type), sent.bytes);
    }
  }
  return sums.by_name;
}

}  // namespace adaps
