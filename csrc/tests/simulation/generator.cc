#include "simulation/generator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "common/random.h"
#include "simulation/content.h"
#include "simulation/text.h"

namespace adaps::simulation {

namespace {

// Mean times have this magnitude, in microseconds. Only their ratios matter.
constexpr double kUnit = 100.0;

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) { spec_.seed = seed; }

  WorldSpec generate() {
    // There are three kinds of worlds. In wild worlds, everything is random. Narrow worlds find bugs that
    // need a long chain of coincidences: they have one key, few nodes, asynchronous calls, and links that
    // stop at critical moments. In settled worlds, only wait_sync makes writes visible: they have long
    // intents, rare rounds, and many wait_syncs.
    const double kind = random_.unit();
    narrow_ = kind < 0.4;
    settled_ = kind >= 0.75;
    draw_freezing();
    draw_cluster();
    draw_programs();
    draw_wires();
    draw_dtypes();
    draw_tables();
    draw_management();
    draw_followed_homes();
    draw_rows();
    draw_exchanges();
    draw_speeds();
    draw_limits();
    draw_samples();
    draw_states();
    draw_room();
    draw_frame_wait();
    spec_.shuffles = Random(mix(spec_.seed) ^ 0x6f726465U).chance(0.5);
    draw_first_requests();
    draw_times_alone();
    draw_intents_for_good();
    draw_ids();
    draw_memory();
    return std::move(spec_);
  }

 private:
  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[random_.below(choices.size())];
  }
  // Draws from a log-uniform distribution.
  double spread(double low, double high) { return low * std::exp(random_.unit() * std::log(high / low)); }

  void draw_freezing() {
    if (!narrow_ && !random_.chance(0.3)) return;
    using enum MessageType;
    if (settled_) {
      spec_.freeze_type = one_of({kEcho, kEcho, kMark, kAck});
    } else {
      spec_.freeze_type = one_of({kDelta, kDelta, kDrop, kDropAck, kTransfer, kSetup, kAck, kRefresh,
                                  kRequest, kIntent, kNews, kNews, kAnswer, kMark, kEcho});
    }
    spec_.freeze_probability = one_of({0.1, 0.3, 0.7});
    spec_.freeze_shortest = 20.0 * kUnit;
    spec_.freeze_longest = 600.0 * kUnit;
  }

  void draw_cluster() {
    Settings& settings = spec_.settings;
    using enum Technique;
    if (narrow_) {
      // NEWS is only sent if the home node is neither the giver nor the receiver.
      settings.nodes =
          spec_.freeze_type == MessageType::kNews ? one_of<NodeId>({4, 5}) : one_of<NodeId>({3, 3, 4});
      settings.technique = random_.chance(0.9) ? kAdaptive : kReplication;
      keys_ = 1;
    } else {
      settings.nodes =
          random_.chance(0.9) ? one_of<NodeId>({2, 2, 3, 3, 4}) : static_cast<NodeId>(5 + random_.below(12));
      settings.workers = one_of({1, 1, 2, 2, 3, 4});
      if (settings.nodes > 4) settings.workers = 1;
      settings.channels = one_of({1, 1, 2, 3});
      settings.technique = one_of({kAdaptive, kAdaptive, kAdaptive, kAdaptive, kAdaptive, kReplication,
                                   kRelocation, kStatic, kFullReplication});
      keys_ = random_.chance(0.9) ? one_of<std::size_t>({1, 1, 2, 2, 3, 4}) : 5 + random_.below(12);
    }
    if (settled_) {
      settings.nodes = one_of<NodeId>({3, 3, 4});
      settings.workers = one_of({1, 2, 3});
      settings.technique = one_of({kAdaptive, kAdaptive, kReplication, kFullReplication});
      keys_ = one_of<std::size_t>({1, 2});
    }
    settings.timing = random_.chance(0.4);
    settings.max_rounds_per_second = settled_ ? one_of({20.0, 500.0}) : one_of({1e6, 1e5, 2e4, 5e3, 500.0});
    settings.max_round_bytes_per_second = one_of({1e9, 1e9, 1e6});
    sets_ = random_.chance(0.4);
    asynchronous_ = narrow_ ? 0.8 : (random_.chance(0.4) ? 0.4 : 0.0);
    barriers_ = !narrow_ && random_.chance(0.5);
    spec_.weak_barrier = random_.chance(0.7);
    restless_ = narrow_ || random_.chance(0.4);  // many intents and clocks, so that keys move often
  }

  void draw_programs() {
    const auto& settings = spec_.settings;
    const std::size_t workers =
        static_cast<std::size_t>(settings.nodes) * static_cast<std::size_t>(settings.workers);
    const std::size_t phases = barriers_ ? one_of<std::size_t>({1, 2, 3}) : 1;
    std::size_t length = narrow_ ? one_of<std::size_t>({30, 60}) : one_of<std::size_t>({6, 10, 16, 30});
    if (workers > 6) length = std::min<std::size_t>(length, 8);
    // Limits the pushes of a key to the number that a value can count. A call has at most 3 keys.
    length = std::min(length, kMaxPushes / (3 * workers * phases) + 2);
    spec_.programs.resize(workers);
    for (Program& program : spec_.programs) {
      for (std::size_t phase = 0; phase < phases; ++phase) {
        for (std::size_t i = 0; i < length; ++i) {
          program.push_back(draw_call());
          if (program.back().kind == CallKind::kIntent && random_.chance(0.1)) {
            program.push_back({CallKind::kWaitIntent, false, program.back().keys, 0, 0});
          }
          // After a wait_sync, a read is most likely to detect that the wait was too short.
          if (program.back().kind == CallKind::kSync) {
            if (program.back().patient && random_.chance(0.5))
              program.push_back({CallKind::kWaitAll, false, {}, 0, 0});
            program.push_back({CallKind::kPull, false, draw_keys(), 0, 0});
          }
        }
        if (barriers_) end_phase(program);
      }
      program.push_back({CallKind::kWaitAll, false, {}, 0, 0});
    }
    limit_pushes();
  }

  // Ends a phase with wait_sync, barrier, wait_sync, so that all writes are visible to all workers.
  void end_phase(Program& program) {
    std::vector<std::uint32_t> all(keys_);
    for (std::uint32_t i = 0; i < keys_; ++i) all[i] = i;
    for (const CallKind kind : {CallKind::kWaitAll, CallKind::kSync, CallKind::kBarrier, CallKind::kSync}) {
      program.push_back({kind, false, {}, 0, 0});
    }
    program.push_back({CallKind::kPull, false, all, 0, 0});
  }

  Call draw_call() {
    Call call{.asynchronous = random_.chance(asynchronous_), .keys = draw_keys()};
    if (settled_) return draw_settled_call(std::move(call));
    double x = random_.unit();
    if (narrow_ && x >= 0.96) x = 0.6;  // wait_sync would hide errors
    if (x < (restless_ ? 0.30 : 0.22)) {
      call.kind = CallKind::kIntent;
      call.asynchronous = false;
      call.start_in = one_of<Clock>({0, 0, 1, 2});
      call.length = one_of<Clock>({1, 1, 2, 3});
    } else if (x < (restless_ ? 0.56 : 0.42)) {
      call = {CallKind::kClock, false, {}, 0, 0};
    } else if (x < 0.66) {
      call.kind = random_.chance(0.7) ? CallKind::kPush : CallKind::kPushGradients;
    } else if (x < 0.90) {
      call.kind = CallKind::kPull;
    } else if (x < 0.94) {
      call = {CallKind::kWaitAll, false, {}, 0, 0};
    } else if (x < 0.97 && sets_) {
      call.kind = CallKind::kSet;
    } else {
      call = draw_sync();
    }
    return call;
  }

  Call draw_sync() {
    const bool patient = random_.chance(0.4);
    return {.kind = CallKind::kSync, .asynchronous = patient, .patient = patient};
  }

  Call draw_settled_call(Call call) {
    const double x = random_.unit();
    if (x < 0.15) {
      call.kind = CallKind::kIntent;
      call.asynchronous = false;
      call.length = 10;
    } else if (x < 0.20) {
      call = {CallKind::kClock, false, {}, 0, 0};
    } else if (x < 0.45) {
      call.kind = CallKind::kPush;
    } else if (x < 0.70) {
      call.kind = CallKind::kPull;
    } else if (x < 0.73 && sets_) {
      call.kind = CallKind::kSet;
    } else {
      call = draw_sync();
    }
    return call;
  }

  // One, two, or rarely three keys, possibly equal. Smaller positions are used more often.
  std::vector<std::uint32_t> draw_keys() {
    std::vector<std::uint32_t> keys(one_of<std::size_t>({1, 1, 1, 2, 2, 3}));
    for (std::uint32_t& key : keys) {
      const double u = random_.unit();
      key = static_cast<std::uint32_t>(u * u * static_cast<double>(keys_));
    }
    return keys;
  }

  void limit_pushes() {
    pushes_.assign(keys_, 0);
    for (Program& program : spec_.programs) {
      for (Call& call : program) {
        if (call.kind != CallKind::kPush && call.kind != CallKind::kPushGradients) continue;
        for (const std::uint32_t key : call.keys) {
          if (++pushes_[key] > kMaxPushes) call.kind = CallKind::kPull;
        }
      }
    }
  }

  // Uses separate random numbers, like the functions below, so that other parts of the world do not change.
  void draw_wires() {
    Random random(mix(spec_.seed) ^ 0x77697265U);
    if (!random.chance(0.3)) return;
    for (Wire& wire : wires_) wire = draw_wire(random);
    if (wires_[0] == Wire::kFloat32) wires_[0] = Wire::kBfloat16;
    spec_.coarse = random.chance(0.5);
    spec_.rounded = !spec_.coarse;
    if (!spec_.rounded) return;
    // If a lossy world contained sets, other nodes' rests of earlier writes would remain after a set.
    for (Program& program : spec_.programs) {
      for (Call& call : program) {
        if (call.kind == CallKind::kSet) call.kind = CallKind::kPull;
      }
    }
  }

  // Packs the values of some tables. Their contents are then coarse, so that every number is exact in
  // bfloat16.
  void draw_dtypes() {
    Random random(mix(spec_.seed) ^ 0x64747970U);
    if (spec_.rounded || !random.chance(0.3)) return;
    for (Dtype& dtype : dtypes_) dtype = random.chance(0.7) ? Dtype::kBfloat16 : Dtype::kFloat32;
    spec_.coarse = true;
  }

  void draw_tables() {
    // The used keys are spread among unused ones, so that they have different home nodes and channels.
    const bool full = spec_.settings.technique == Technique::kFullReplication;
    const std::size_t tables = keys_ > 1 && random_.chance(0.3) ? 2 : 1;
    std::vector<std::size_t> longest(tables, 0);
    for (std::size_t i = 0; i < keys_; ++i) {
      longest[i % tables] = std::max(longest[i % tables], std::min<std::size_t>(pushes_[i], kMaxPushes));
    }
    gradients_ = std::any_of(spec_.programs.begin(), spec_.programs.end(), [](const Program& program) {
      return std::any_of(program.begin(), program.end(),
                         [](const Call& call) { return call.kind == CallKind::kPushGradients; });
    });
    spec_.rough = gradients_ && random_.chance(0.3);
    std::vector<Key> first;
    Key next = 0;
    const std::size_t rows = full ? keys_ + random_.below(3) : 64 + keys_;
    for (std::size_t i = 0; i < tables; ++i) {
      TableSpec table{.name = joined("t", i),
                      .rows = rows,
                      .length = content_length(longest[i], spec_.coding()) + random_.below(3),
                      .management = {.wire = wires_[i]},
                      .dtype = dtypes_[i]};
      if (random_.chance(0.1)) table.length += 64 + random_.below(200);  // long rows are exchanged less often
      table.rule.lr = 1.0F;
      if (spec_.rough) {
        table.rule = draw_rule();
      } else if (random_.chance(0.5)) {
        add_state(table);
      }
      first.push_back(next);
      next += rows;
      spec_.tables.push_back(table);
    }
    for (std::size_t i = 0; i < keys_; ++i) {
      const Key low = first[i % tables];
      Key key = low + random_.below(rows);
      while (std::find(spec_.keys.begin(), spec_.keys.end(), key) != spec_.keys.end()) {
        key = low + (key - low + 1) % rows;
      }
      spec_.keys.push_back(key);
    }
  }

  // Adds a state that leaves values exact. Each gradient replaces the whole state. In a world without
  // gradients, only set_state changes it.
  void add_state(TableSpec& table) const {
    if (gradients_) {
      table.rule.kind = RuleKind::kMomentum;
      table.rule.momentum = 0.0F;
      table.rule.nesterov = table.length % 2 == 0;
    } else {
      table.rule.kind = RuleKind::kAdagrad;
      table.rule.initial_accumulator = 0.5F;  // no number of a set_state
    }
  }

  // Uses separate random numbers, so that worlds without mixed management do not change.
  void draw_management() {
    Random random(mix(spec_.seed) ^ 0x9e3779b9U);
    const auto any_node = [&] { return static_cast<NodeId>(random.below(spec_.settings.nodes)); };
    const bool mixes = spec_.tables.size() > 1 && random.chance(0.7);
    const bool places = random.chance(0.3);
    for (TableSpec& table : spec_.tables) {
      if (mixes) table.management.technique = draw_technique(random, table.rows);
      if (!places) continue;
      for (std::uint64_t end = 0; end < table.rows;) {
        end = std::min(table.rows, end + 1 + random.below(table.rows));
        table.homes.push_back({end, random.chance(0.1) ? kHomeByHash : any_node()});
      }
    }
  }

  // Gives some or all rows the homes of the other table's rows. Uses separate random numbers.
  void draw_followed_homes() {
    Random random(mix(spec_.seed) ^ 0x77697468U);
    if (spec_.tables.size() < 2 || !random.chance(0.4)) return;
    const auto follower = static_cast<std::uint32_t>(random.below(2));
    TableSpec& table = spec_.tables[follower];
    if (table.homes.empty()) table.homes.push_back({table.rows});
    const bool all = random.chance(0.7);
    for (HomeRange& home : table.homes) {
      if (all || random.chance(0.5)) home = {home.end, kHomeByHash, 1 - follower};
    }
  }

  // Gives rows of one table different managements. Ranges end at used keys and at random keys.
  void draw_rows() {
    Random random(mix(spec_.seed) ^ 0x726f7773U);
    if (!random.chance(0.4)) return;
    Key first = 0;
    for (TableSpec& table : spec_.tables) {
      std::vector<std::uint64_t> ends{table.rows, 1 + random.below(table.rows)};
      for (const Key key : spec_.keys) {
        if (key - first >= table.rows) continue;
        if (random.chance(0.7)) ends.push_back(key - first + 1);
        if (random.chance(0.7) && key > first) ends.push_back(key - first);
      }
      first += table.rows;
      std::sort(ends.begin(), ends.end());
      ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
      std::uint64_t before = 0;
      for (const std::uint64_t end : ends) {
        Management management = table.management;
        if (random.chance(0.8)) management.technique = draw_technique(random, end - before);
        if (spec_.rounds()) management.wire = draw_wire(random);
        table.managed.push_back({end, management});
        before = end;
      }
    }
  }

  // Uses separate random numbers.
  void draw_exchanges() {
    Random random(mix(spec_.seed) ^ 0x65786368U);
    if (!random.chance(0.25)) return;
    constexpr Clock kClocks[] = {0, 1, 2, 2, 3, 5};
    const auto draw = [&] { return kClocks[random.below(std::size(kClocks))]; };
    for (TableSpec& table : spec_.tables) {
      table.management.exchange = draw();
      for (ManagedRange& range : table.managed) range.management.exchange = draw();
    }
  }

  static Technique draw_technique(Random& random, std::uint64_t rows) {
    using enum Technique;
    constexpr Technique kTechniques[] = {kAdaptive,   kAdaptive, kReplication,
                                         kRelocation, kStatic,   kFullReplication};
    const Technique technique = kTechniques[random.below(std::size(kTechniques))];
    // Only few rows are replicated to all nodes, because each of them causes messages.
    return technique == kFullReplication && rows > 16 ? kReplication : technique;
  }

  static Wire draw_wire(Random& random) {
    constexpr Wire kWires[] = {Wire::kBfloat16, Wire::kFloat16, Wire::kInt8, Wire::kInt8, Wire::kFloat32};
    return kWires[random.below(std::size(kWires))];
  }

  UpdateRule draw_rule() {
    using enum RuleKind;
    UpdateRule rule;
    rule.kind = one_of(
        {kSgd, kMomentum, kAdagrad, kAdagrad, kRowAdagrad, kAdam, kAdam, kSparseAdam, kRmsprop, kRmsprop});
    rule.lr = 0.1F;
    rule.eps = 1e-2F;
    if (rule.kind == kMomentum || (rule.kind == kRmsprop && random_.chance(0.5))) rule.momentum = 0.5F;
    rule.nesterov = rule.kind == kMomentum && random_.chance(0.5);
    rule.centered = rule.kind == kRmsprop && random_.chance(0.5);
    const bool decays = rule.kind != kRowAdagrad && rule.kind != kSparseAdam;
    if (decays && random_.chance(0.5)) rule.weight_decay = 0.1F;
    rule.decoupled = rule.kind == kAdam && random_.chance(0.5);
    return rule;
  }

  void draw_speeds() {
    const std::size_t nodes = spec_.settings.nodes;
    const std::size_t workers = spec_.programs.size();
    const double jitter = one_of({0.0, 0.3, 1.0, 1.0});
    for (std::size_t i = 0; i < nodes * nodes; ++i) {
      const double latency = narrow_ ? kUnit * random_.uniform(1.0, 3.0) : spread(kUnit, 100.0 * kUnit);
      // With limited bandwidth, messages that are sent in quick succession arrive at different times.
      const double bandwidth =
          settled_ || random_.chance(0.2) ? spread(0.01, 1.0) : LinkTraits{}.bytes_per_micro;
      spec_.links.push_back({(1.0 - jitter) * latency, jitter * latency + 1.0, bandwidth});
    }
    if (!narrow_ && random_.chance(0.5)) {  // makes a few links very slow
      for (std::size_t i = one_of<std::size_t>({1, 2, 4}); i > 0; --i) {
        LinkTraits& link = spec_.links[random_.below(spec_.links.size())];
        link.jitter = spread(1e2, 1e5) * kUnit;
      }
    }
    const bool fast = settled_ || random_.chance(0.3);
    const double slowest_thought = (settled_ ? 10.0 : fast ? 5.0 : 100.0) * kUnit;
    for (std::size_t i = 0; i < workers; ++i) {
      spec_.think.push_back(narrow_ ? 5.0 * kUnit : spread(fast ? 0.1 * kUnit : kUnit, slowest_thought));
      spec_.submit.push_back(random_.chance(0.5) ? 0.0 : spread(0.1, 30.0) * kUnit);
    }
    for (std::size_t i = 0; i < nodes; ++i) spec_.tick.push_back(spread(0.1, narrow_ ? 10.0 : 100.0) * kUnit);
    spec_.merging = one_of({0.0, 0.5, 1.0});
    spec_.backlog = random_.chance(0.5);
  }

  // In half of the worlds, sets each limit to a value so small that calls reach it.
  void draw_limits() {
    Settings& settings = spec_.settings;
    if (random_.chance(0.5)) settings.slice = one_of<std::size_t>({1, 1, 2, 3});
    if (random_.chance(0.5)) settings.max_gradient_bytes = 1;  // each gradient is sent alone
    if (random_.chance(0.5)) settings.max_queued_bytes = one_of<std::size_t>({1, 1, 200, 500});
  }

  // Sets the limit of unsent bytes to a value that only few rows or changes fit into. Uses separate random
  // numbers.
  void draw_room() {
    Random random(mix(spec_.seed) ^ 0x726f6f6dU);
    constexpr std::size_t kLimits[] = {1, 1, 60, 200};
    if (spec_.backlog && random.chance(0.5))
      spec_.settings.max_unsent_bytes = kLimits[random.below(std::size(kLimits))];
  }

  // Sets for how long messages without a waiting caller wait for a frame. Uses separate random numbers. By
  // default, few of these worlds have enough nodes for such a wait.
  void draw_frame_wait() {
    Random random(mix(spec_.seed) ^ 0x77616974U);
    if (random.chance(0.5)) return;
    const Micros waits[] = {0, static_cast<Micros>(2.0 * kUnit), static_cast<Micros>(20.0 * kUnit),
                            static_cast<Micros>(200.0 * kUnit), kAges};
    spec_.settings.frame_wait = waits[random.below(std::size(waits))];
  }

  // Sets the number of requests after which the first frame leaves. Uses separate random numbers.
  void draw_first_requests() {
    Random random(mix(spec_.seed) ^ 0x66697273U);
    constexpr std::size_t kFew[] = {1, 1, 2, 3};
    if (random.chance(0.5)) spec_.settings.first_requests = kFew[random.below(std::size(kFew))];
  }

  // Sets how often a node must be the only interested one until a key leaves its home node. By default, only
  // large clusters have a number above 1. Uses separate random numbers.
  void draw_times_alone() {
    Random random(mix(spec_.seed) ^ 0x686f6d65U);
    if (random.chance(0.5)) spec_.settings.times_alone = 2 + static_cast<int>(random.below(2));
  }

  // In some worlds, some intents never end. Uses separate random numbers.
  void draw_intents_for_good() {
    Random random(mix(spec_.seed) ^ 0x676f6f64U);
    if (!random.chance(0.3)) return;
    for (Program& program : spec_.programs) {
      for (Call& call : program) {
        if (call.kind == CallKind::kIntent && random.chance(0.2)) call.length = kForGood;
      }
    }
  }

  // Uses separate random numbers. Samples contain only used keys.
  void draw_samples() {
    Random random(mix(spec_.seed) ^ 0x73616d70U);
    if (!random.chance(0.3)) return;
    using enum SamplingScheme;
    constexpr SamplingScheme kSchemes[] = {kNaive, kPreloc, kPool, kLocal, kLocal};
    std::vector<std::size_t> largest;
    Key first = 0;
    for (TableSpec& table : spec_.tables) {
      std::vector<double> weights(table.rows);
      for (const Key key : spec_.keys) {
        if (key - first < table.rows) weights[key - first] = 1.0 + static_cast<double>(random.below(4));
      }
      first += table.rows;
      SamplingSpec sampling{
          .distribution = std::make_shared<const Distribution>(Distribution::weighted(weights)),
          .scheme = kSchemes[random.below(std::size(kSchemes))],
          .replacement = random.chance(0.5),
          .seed = random.next(),
          .pool_size = 1 + random.below(6),
          .reuse = 1 + random.below(3)};
      const std::uint64_t rows = sampling.distribution->possible();
      largest.push_back(sampling.replacement ? 3 : std::min(rows, sampling.pool_size));
      table.sampling = std::move(sampling);
    }
    for (Program& program : spec_.programs) {
      for (std::size_t i = program.size() / 3; i > 0; --i) {
        Call prepare{.kind = CallKind::kPrepareSample,
                     .start_in = static_cast<Clock>(random.below(3)),
                     .length = 1 + static_cast<Clock>(random.below(narrow_ ? 2 : 6)),
                     .table = random.below(spec_.tables.size())};
        prepare.size = 1 + random.below(largest[prepare.table]);
        Call pull{.kind = CallKind::kPullSample, .asynchronous = random.chance(asynchronous_)};
        const std::size_t at = random.below(program.size());
        const std::size_t behind = std::min(program.size() - 1, at + random.below(4));
        program.insert(program.begin() + static_cast<std::ptrdiff_t>(behind), pull);
        program.insert(program.begin() + static_cast<std::ptrdiff_t>(at), prepare);
      }
    }
  }

  // Adds calls about the optimizer states of rows. Uses separate random numbers.
  void draw_states() {
    Random random(mix(spec_.seed) ^ 0x73746174U);
    if (!random.chance(0.4)) return;
    for (TableSpec& table : spec_.tables) {
      if (!spec_.rough) add_state(table);
    }
    for (Program& program : spec_.programs) {
      for (std::size_t i = program.size() / 4; i > 0; --i) {
        Call call{.kind = random.chance(0.5) ? CallKind::kPullState : CallKind::kSetState,
                  .asynchronous = random.chance(asynchronous_)};
        // After a set_state, as after a set, other nodes' rests of earlier writes remain. They can make a
        // second moment negative.
        if (spec_.rounds() && !spec_.reads_tell()) call.kind = CallKind::kPullState;
        for (std::size_t left = 1 + random.below(2); left > 0; --left)
          call.keys.push_back(static_cast<std::uint32_t>(random.below(spec_.keys.size())));
        program.insert(program.begin() + static_cast<std::ptrdiff_t>(random.below(program.size())), call);
      }
    }
  }

  // Gives the rows of a table ids, and inserts calls for their rows and for the used ids. Some shares are too
  // small for all ids. Uses separate random numbers.
  void draw_ids() {
    Random random(mix(spec_.seed) ^ 0x69647321U);
    const std::size_t number = random.below(spec_.tables.size());
    TableSpec& table = spec_.tables[number];
    if (!random.chance(0.3) || table.sampling) return;
    if (!table.managed.empty()) table.management = table.managed.front().management;
    using enum Technique;
    if (table.management.technique.value_or(spec_.settings.technique) == kFullReplication)
      table.management.technique = kReplication;
    table.managed.clear();
    table.homes.clear();
    table.has_ids = true;
    if (spec_.rough) table.init = {.kind = InitKind::kUniform, .a = 0.0F, .b = 1.0F, .seed = random.next()};
    for (TableSpec& other : spec_.tables) {
      for (HomeRange& home : other.homes) {
        if (home.hashed_with == number) home.hashed_with = kOwnKey;
      }
    }
    const std::uint64_t rows = spec_.settings.nodes * (1 + random.below(keys_ + 1)) + random.below(3);
    replace_rows(random, number, draw_retirement(table, rows));
    for (Program& program : spec_.programs) insert_calls_for_rows(random, program, number);
  }

  // Lets the rows of a table with ids be retired, in some worlds. Returns the number of rows, which is then
  // so small that ids often have to take each other's rows. Uses separate random numbers.
  std::uint64_t draw_retirement(TableSpec& table, std::uint64_t rows) {
    Random random(mix(spec_.seed) ^ 0x72657469U);
    constexpr Evict kOrders[] = {Evict::kIntent, Evict::kLru, Evict::kLfu};
    if (random.chance(0.2)) table.admit_seen = 2 + static_cast<std::uint32_t>(random.below(2));
    if (random.chance(0.2)) return rows;
    table.evict = kOrders[random.below(std::size(kOrders))];
    if (random.chance(0.5)) {
      using enum MessageType;
      constexpr MessageType kStopping[] = {kRetire, kRetired, kResolved, kTransfer, kDropAck, kSetup};
      spec_.freeze_type = kStopping[random.below(std::size(kStopping))];
      spec_.freeze_probability = 0.3;
      spec_.freeze_shortest = 20.0 * kUnit;
      spec_.freeze_longest = 600.0 * kUnit;
    }
    return spec_.settings.nodes + random.below(spec_.settings.nodes + 1U);
  }

  // Limits the memory of some tables, more often if rows have ids. If other nodes can have copies of the
  // rows, the memory suffices for all used rows, because copies cannot be written out, and many rows are kept
  // free, so that owned rows are written out. Uses separate random numbers.
  void draw_memory() {
    Random random(mix(spec_.seed) ^ 0x6d656d6fU);
    if (!random.chance(spec_.ids.empty() ? 0.3 : 0.6)) return;
    spec_.disk.delay = kUnit * (random.chance(0.3) ? 100.0 : 1.0);
    const auto channels = static_cast<std::uint64_t>(spec_.settings.channels);
    spec_.settings.free_rows = random.chance(0.7) ? keys_ + 1 : random.below(keys_ + 1);
    for (TableSpec& table : spec_.tables) {
      // Rows that leave their home node and are not copied are most often written to files of other nodes.
      if (table.evict != Evict::kNone && random.chance(0.5)) {
        table.management.technique = Technique::kRelocation;
        spec_.settings.free_rows = random.chance(0.5) ? keys_ + 1 : 0;
      }
      const bool copies = any_technique(spec_, table, [](Technique technique) {
        return technique != Technique::kStatic && technique != Technique::kRelocation;
      });
      const bool all = any_technique(
          spec_, table, [](Technique technique) { return technique == Technique::kFullReplication; });
      // All ids of a table whose rows are retired have one assigning node.
      const std::uint64_t used =
          table.evict == Evict::kNone ? keys_ : (table.rows - 1) / spec_.settings.nodes + 1;
      const std::uint64_t rows = channels * (copies ? used + 1 : 1 + random.below(2));
      if (all || rows >= table.rows || random.chance(0.2)) continue;
      const Table made(table, 0, 0);
      table.memory = rows * (made.stored_words(made.width()) * sizeof(float) + kLimitedSlotBytes);
      table.path = "memory";
    }
  }

  // Changes the number of a table's rows, and gives its used keys ids.
  void replace_rows(Random& random, std::size_t number, std::uint64_t rows) {
    constexpr std::int64_t kSpecial[] = {0, -1, std::numeric_limits<std::int64_t>::min(),
                                         std::numeric_limits<std::int64_t>::max()};
    // If rows are retired, one node assigns all rows, so that ids need each other's rows. There are further
    // ids that are never written.
    const bool is_retired = spec_.tables[number].evict != Evict::kNone;
    if (is_retired) {
      const Key any = number == 0 ? 0 : spec_.tables[0].rows;
      spec_.keys.resize(spec_.keys.size() + 1 + random.below(2), any);
    }
    const Directory directory(spec_.settings.nodes, 1);
    const auto assigning = static_cast<NodeId>(spec_.seed % spec_.settings.nodes);
    const std::uint64_t before = spec_.tables[number].rows;
    const Key first = number == 0 ? 0 : spec_.tables[0].rows;
    for (std::size_t i = 0; i < spec_.keys.size(); ++i) {
      std::int64_t id = random.chance(0.3) ? kSpecial[random.below(std::size(kSpecial))]
                                           : static_cast<std::int64_t>(random.next());
      while (std::find(spec_.ids.begin(), spec_.ids.end(), id) != spec_.ids.end() ||
             (is_retired && directory.node_of_id(id) != assigning))
        id = static_cast<std::int64_t>(random.next());
      spec_.ids.push_back(id);
      Key& key = spec_.keys[i];
      if (key - first < before) {
        key = first + i % rows;
      } else if (key >= first) {
        key = key - before + rows;
      }
    }
    spec_.tables[number].rows = rows;
  }

  void insert_calls_for_rows(Random& random, Program& program, std::size_t number) {
    Program longer;
    for (Call& call : program) {
      Call rows{.kind = CallKind::kRowsOf, .asynchronous = random.chance(asynchronous_), .table = number};
      for (const std::uint32_t position : call.keys) {
        if (&table_of(spec_, spec_.keys[position]) == &spec_.tables[number]) rows.keys.push_back(position);
      }
      for (std::uint32_t i = 0; !rows.keys.empty() && i < spec_.keys.size(); ++i) {
        if (random.chance(0.3) && &table_of(spec_, spec_.keys[i]) == &spec_.tables[number])
          rows.keys.push_back(i);
      }
      rows.creates = random.chance(0.9);
      if (!rows.keys.empty() && random.chance(0.8)) longer.push_back(rows);
      longer.push_back(std::move(call));
      if (random.chance(0.1)) longer.push_back({.kind = CallKind::kUsedIds, .table = number});
      // Rows that have moved to other nodes, and are then not used any more.
      if (spec_.tables[number].evict != Evict::kNone && !rows.keys.empty() && random.chance(0.3)) {
        longer.push_back({.kind = CallKind::kIntent, .keys = rows.keys, .length = 1});
        longer.push_back({.kind = CallKind::kClock});
      }
      if (spec_.tables[number].evict != Evict::kNone && !rows.keys.empty() && random.chance(0.3))
        longer.push_back({CallKind::kPull, false, std::move(rows.keys), 0, 0});
    }
    program = std::move(longer);
  }

  Random random_;
  WorldSpec spec_;
  bool narrow_ = false;
  bool settled_ = false;
  std::size_t keys_ = 1;
  bool sets_ = false;
  bool gradients_ = false;  // whether any call pushes gradients
  double asynchronous_ = 0.0;
  bool barriers_ = false;
  bool restless_ = false;
  std::vector<std::size_t> pushes_;
  std::array<Wire, 2> wires_{};  // by table
  std::array<Dtype, 2> dtypes_{};
};

}  // namespace

WorldSpec random_world(std::uint64_t seed, std::uint64_t number) {
  return Generator(mix(seed) + number).generate();
}

}  // namespace adaps::simulation
