#include "simulation/spec.h"

#include <sstream>

namespace adaps::simulation {

const char* name_of(CallKind kind) {
  switch (kind) {
    case CallKind::kPull:
      return "pull";
    case CallKind::kPush:
      return "push";
    case CallKind::kPushGradients:
      return "push_gradients";
    case CallKind::kSet:
      return "set";
    case CallKind::kIntent:
      return "intent";
    case CallKind::kWaitIntent:
      return "wait_intent";
    case CallKind::kClock:
      return "advance_clock";
    case CallKind::kWaitAll:
      return "waitall";
    case CallKind::kSync:
      return "wait_sync";
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kFreeze:
      return "freeze";
    case CallKind::kTake:
      return "take";
    case CallKind::kThaw:
      return "thaw";
  }
  return "?";
}

std::string describe(const WorldSpec& spec) {
  std::ostringstream text;
  text << "seed " << spec.seed << ": " << spec.settings.nodes << " nodes, " << spec.settings.workers
       << " workers, " << spec.settings.channels << " channels, " << name_of(spec.settings.technique)
       << (spec.settings.timing ? ", timed" : ", at once") << ", " << spec.settings.max_rounds_per_second
       << " rounds/s, slices of " << spec.settings.slice << ", " << spec.settings.max_gradient_bytes
       << " bytes of gradients, " << spec.settings.max_queued_bytes << " bytes queued, keys";
  const Directory directory(spec.settings.nodes, spec.settings.channels);
  for (const Key key : spec.keys) text << " " << key << "@" << directory.home(key);
  if (spec.freeze_probability > 0.0) text << ", frozen links";
  for (const TableSpec& table : spec.tables) {
    const UpdateRule& rule = table.rule;
    if (spec.rough)
      text << ", rule " << static_cast<int>(rule.kind) << " with weight decay " << rule.weight_decay
           << (rule.decoupled ? " decoupled" : "") << " and momentum " << rule.momentum;
  }
  if (spec.backlog) text << ", a backlog";
  return text.str();
}

std::string describe(const Call& call) {
  std::ostringstream text;
  text << name_of(call.kind);
  for (const std::uint32_t key : call.keys) text << " k" << key;
  if (call.kind == CallKind::kIntent)
    text << " [+" << call.start_in << ", +" << call.start_in + call.length << ")";
  if (call.asynchronous) text << " async";
  return text.str();
}

}  // namespace adaps::simulation
