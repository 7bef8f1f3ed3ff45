#include "simulation/spec.h"

#include <algorithm>
#include <sstream>

#include "simulation/text.h"

namespace adaps::simulation {

const char* name_of(CallKind kind) {
  static constexpr const char* kNames[] = {"pull",          "push",        "push_gradients", "set",
                                           "intent",        "wait_intent", "prepare_sample", "pull_sample",
                                           "advance_clock", "waitall",     "wait_sync",      "barrier",
                                           "pull_state",    "set_state",   "rows_of",        "used_ids",
                                           "freeze",        "count",       "take",           "thaw"};
  return name_in(kNames, kind);
}

namespace {

Management management_of(const WorldSpec& spec, Key key) {
  for (const TableSpec& table : spec.tables) {
    if (key >= table.rows) {
      key -= table.rows;
      continue;
    }
    for (const ManagedRange& range : table.managed) {
      if (key < range.end) return range.management;
    }
    return table.management;
  }
  return {};
}

Key first_key(const WorldSpec& spec, std::size_t table) {
  Key first = 0;
  for (std::size_t i = 0; i < table; ++i) first += spec.tables[i].rows;
  return first;
}

std::string describe(const Management& management) {
  std::string text;
  if (management.technique) text += std::string(" by ") + name_of(*management.technique);
  if (management.wire != Wire::kFloat32) text += std::string(" as ") + name_of(management.wire);
  if (management.exchange != 0) text += joined(" every ", management.exchange, " clocks");
  return text;
}

}  // namespace

Technique technique_of(const WorldSpec& spec, Key key) {
  return management_of(spec, key).technique.value_or(spec.settings.technique);
}

Wire wire_of(const WorldSpec& spec, Key key) { return management_of(spec, key).wire; }

Clock exchange_of(const WorldSpec& spec, Key key) { return management_of(spec, key).exchange; }

Clock longest_exchange(const WorldSpec& spec) {
  Clock longest = 0;
  for (const TableSpec& table : spec.tables) {
    if (table.managed.empty()) longest = std::max(longest, table.management.exchange);
    for (const ManagedRange& range : table.managed) longest = std::max(longest, range.management.exchange);
  }
  return longest;
}

NodeId home_of(const WorldSpec& spec, Key key) {
  const Directory by_hash(spec.settings.nodes, spec.settings.channels);
  Key row = key;
  for (const TableSpec& table : spec.tables) {
    if (row >= table.rows) {
      row -= table.rows;
      continue;
    }
    for (NodeId node = 0; table.has_ids && node < spec.settings.nodes; ++node) {
      if (share_of(table.rows, spec.settings.nodes, node).contains(row)) return node;
    }
    for (const HomeRange& home : table.homes) {
      if (row >= home.end) continue;
      if (home.node != kHomeByHash) return home.node;
      return by_hash.home(home.hashed_with == kOwnKey ? key : first_key(spec, home.hashed_with) + row);
    }
    break;
  }
  return by_hash.home(key);
}

const TableSpec& table_of(const WorldSpec& spec, Key key) {
  std::size_t table = 0;
  while (key >= spec.tables[table].rows) key -= spec.tables[table++].rows;
  return spec.tables[table];
}

bool limits_room(const WorldSpec& spec) {
  return spec.backlog && spec.settings.max_unsent_bytes < Settings{}.max_unsent_bytes;
}

std::string describe(const WorldSpec& spec) {
  std::ostringstream text;
  text << "seed " << spec.seed << ": " << spec.settings.nodes << " nodes, " << spec.settings.workers
       << " workers, " << spec.settings.channels << " channels, " << name_of(spec.settings.technique)
       << (spec.settings.timing ? ", timed" : ", at once") << ", " << spec.settings.max_rounds_per_second
       << " rounds/s, slices of " << spec.settings.slice << ", " << spec.settings.max_gradient_bytes
       << " bytes of gradients, " << spec.settings.max_queued_bytes << " bytes queued, keys";
  for (const Key key : spec.keys) text << " " << key << "@" << home_of(spec, key);
  for (std::size_t i = 0; i < spec.keys.size(); ++i) {
    if (has_id(spec, i)) text << ", k" << i << " with id " << spec.ids[i];
  }
  if (spec.freeze_probability > 0.0) text << ", frozen links";
  for (const TableSpec& table : spec.tables) {
    if (table.managed.empty() && table.management != Management{})
      text << ", " << table.name << describe(table.management);
    if (table.has_ids) text << ", " << table.name << " with ids and " << table.rows << " rows";
    if (table.evict != Evict::kNone) text << ", retired in order " << static_cast<int>(table.evict);
    if (table.admit_seen > 1) text << ", admitted at request " << table.admit_seen;
    if (table.memory != 0) text << ", " << table.name << " with " << table.memory << " bytes of memory";
    if (table.dtype == Dtype::kBfloat16) text << ", " << table.name << " packed";
    Key first = 0;
    for (const ManagedRange& range : table.managed) {
      text << ", " << table.name << " from " << first << " on" << describe(range.management);
      first = range.end;
    }
    if (const auto& sampling = table.sampling)
      text << ", samples of " << table.name << " by scheme " << static_cast<int>(sampling->scheme)
           << (sampling->replacement ? "" : " without replacement") << ", pools of " << sampling->pool_size
           << " used " << sampling->reuse << " times";
    if (!table.homes.empty()) text << ", " << table.name << " at home at";
    for (const HomeRange& home : table.homes) {
      if (home.hashed_with == kOwnKey)
        text << " " << home.node;
      else
        text << " those of " << spec.tables[home.hashed_with].name;
      text << " up to " << home.end;
    }
    const UpdateRule& rule = table.rule;
    if (spec.rough)
      text << ", rule " << static_cast<int>(rule.kind) << " with weight decay " << rule.weight_decay
           << (rule.decoupled ? " decoupled" : "") << " and momentum " << rule.momentum;
  }
  if (spec.backlog) text << ", a backlog";
  if (spec.shuffles) text << ", dirty keys in random order";
  if (limits_room(spec)) text << ", room for " << spec.settings.max_unsent_bytes << " bytes";
  if (spec.settings.free_rows) text << ", " << *spec.settings.free_rows << " rows kept free";
  if (spec.settings.frame_wait) text << ", frames wait for " << *spec.settings.frame_wait;
  if (spec.settings.times_until_leaving_home() > 1)
    text << ", keys leave home after " << spec.settings.times_until_leaving_home() << " times";
  if (spec.settings.first_requests != Settings{}.first_requests)
    text << ", the first " << spec.settings.first_requests << " requests ahead";
  if (spec.rounded) text << ", rounded";
  return text.str();
}

std::string describe(const Call& call) {
  std::ostringstream text;
  text << name_of(call.kind);
  for (const std::uint32_t key : call.keys) text << " k" << key;
  if (call.kind == CallKind::kPrepareSample) text << " of " << call.size << " from table " << call.table;
  if (call.kind == CallKind::kIntent || call.kind == CallKind::kPrepareSample)
    text << " [+" << call.start_in << ", +" << call.start_in + call.length << ")";
  if (call.asynchronous) text << " async";
  if (call.patient) text << " patient";
  if (!call.creates) text << " without new rows";
  return text.str();
}

}  // namespace adaps::simulation
