#include "store/table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>
#include <stdexcept>
#include <utility>

#include "common/random.h"
#include "store/codec.h"

namespace adaps {

namespace {

// A number in (0, 1) from 24 random bits: never 0, so that its logarithm exists.
float unit_float(std::uint64_t bits) { return (static_cast<float>(bits >> 40) + 0.5F) * 0x1p-24F; }

std::uint64_t combine(std::uint64_t hash, std::uint64_t x) { return mix(hash ^ mix(x)); }

std::uint64_t bits_of(float x) {
  std::uint32_t bits;
  static_assert(sizeof(bits) == sizeof(x));
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}

std::size_t value_words_of(const TableSpec& spec) {
  return encoded_words(spec.dtype == Dtype::kBfloat16 ? Wire::kBfloat16 : Wire::kFloat32, spec.length);
}

std::size_t row_words_of(const TableSpec& spec) {
  return value_words_of(spec) + spec.rule.state_length(spec.length);
}

std::uint64_t limited_row_bytes(const TableSpec& spec) {
  return row_words_of(spec) * sizeof(float) + kLimitedSlotBytes;
}

// Number of rows that fit into the table's memory.
std::uint64_t resident_rows_of(const TableSpec& spec) {
  return spec.memory == 0 ? spec.rows : std::min(spec.rows, spec.memory / limited_row_bytes(spec));
}

}  // namespace

void Initializer::fill(std::uint64_t row, float* value, std::size_t length) const {
  if (kind == InitKind::kConstant) {
    std::fill_n(value, length, a);
    return;
  }
  const std::uint64_t base = combine(seed, row);
  if (kind == InitKind::kUniform) {
    for (std::size_t i = 0; i < length; ++i) value[i] = a + (b - a) * unit_float(mix(base + i));
    return;
  }
  // Box and Muller (1958); each pair of columns shares its two uniform numbers.
  for (std::size_t i = 0; i < length; ++i) {
    const std::uint64_t pair = base + (i & ~std::uint64_t{1});
    const float radius = std::sqrt(-2.0F * std::log(unit_float(mix(pair))));
    const float angle = 2.0F * std::numbers::pi_v<float> * unit_float(mix(pair + 1));
    value[i] = a + b * radius * ((i & 1) == 0 ? std::cos(angle) : std::sin(angle));
  }
}

Table::Table(TableSpec spec, Key first_key, std::size_t arena)
    : spec_(std::move(spec)),
      ids_(spec_.has_ids ? std::make_unique<RowIds>(spec_.rows) : nullptr),
      uses_(spec_.evict == Evict::kNone ? nullptr : std::make_unique<RowUses>(spec_.rows)),
      first_key_(first_key),
      arena_(arena),
      width_(spec_.length + spec_.rule.state_length(spec_.length)),
      change_length_(spec_.rule.change_length(spec_.length)),
      is_packed_(spec_.dtype == Dtype::kBfloat16),
      value_words_(value_words_of(spec_)),
      resident_rows_(resident_rows_of(spec_)) {
  set_hyperparameters(spec_.rule.hyperparameters());
  manage();
}

Table::Table(Table&& other) noexcept
    : spec_(std::move(other.spec_)),
      managements_(std::move(other.managements_)),
      numbers_(std::move(other.numbers_)),
      is_lossy_(other.is_lossy_),
      ids_(std::move(other.ids_)),
      uses_(std::move(other.uses_)),
      first_key_(other.first_key_),
      arena_(other.arena_),
      width_(other.width_),
      change_length_(other.change_length_),
      is_packed_(other.is_packed_),
      value_words_(other.value_words_),
      resident_rows_(other.resident_rows_),
      step_(other.step_.load(std::memory_order_relaxed)),
      history_(std::move(other.history_)),
      history_in_use_(other.history_in_use_.load(std::memory_order_relaxed)) {
  set_hyperparameters(other.hyperparameters());
}

void Table::manage() {
  const auto number_of = [this](const Management& management) {
    const auto found = std::find(managements_.begin(), managements_.end(), management);
    const auto number = static_cast<std::uint8_t>(found - managements_.begin());
    if (found == managements_.end()) managements_.push_back(management);
    return number;
  };
  if (spec_.managed.empty()) number_of(spec_.management);
  for (const ManagedRange& range : spec_.managed) number_of(range.management);
  for (const Management& management : managements_)
    is_lossy_ = is_lossy_ || management.wire != Wire::kFloat32;
  if (managements_.size() == 1) return;
  numbers_.reserve(spec_.rows);
  for (const ManagedRange& range : spec_.managed) numbers_.resize(range.end, number_of(range.management));
}

void Table::set_hyperparameters(const Hyperparameters& with) {
  learning_rate_.store(with.learning_rate, std::memory_order_relaxed);
  momentum_.store(with.momentum, std::memory_order_relaxed);
  beta2_.store(with.beta2, std::memory_order_relaxed);
  weight_decay_.store(with.weight_decay, std::memory_order_relaxed);
}

void Table::set_step(std::uint64_t number, bool idle_rows) {
  const bool counts = number != 0 && idle_rows && spec_.rule.moves_idle_rows();
  if (counts) history_->note(number, hyperparameters());
  history_in_use_.store(counts ? history_.get() : nullptr, std::memory_order_relaxed);
  step_.store(number, std::memory_order_relaxed);
}

void Table::init_as(std::uint64_t identity, float* out) const {
  spec_.init.fill(identity, out, spec_.length);
  // The random bits differ from the bits that determine the values.
  if (is_packed_) round_at_random({out, spec_.length}, mix(combine(spec_.init.seed, identity)));
  spec_.rule.init_state(out + spec_.length, spec_.length);
}

void Table::read_value(const float* stored, float* out) const {
  if (is_packed_) {
    decode(Wire::kBfloat16, {stored, value_words_}, {out, spec_.length});
  } else {
    std::memcpy(out, stored, spec_.length * sizeof(float));
  }
}

void Table::unpack(const float* stored, float* row) const {
  read_value(stored, row);
  std::copy(stored + value_words_, stored + stored_words(width_), row + spec_.length);
}

void Table::pack(float* row, std::uint64_t seed, float* stored) const {
  const std::span<float> value(row, spec_.length);
  round_at_random(value, seed);
  cut_to_bfloat16(value, stored);
  std::copy(row + spec_.length, row + width_, stored + value_words_);
}

namespace {

// Ranges must ascend and cover all rows.
template <typename Range>
void validate(const TableSpec& spec, const std::vector<Range>& ranges, const std::string& what) {
  std::string wrong = "table '" + spec.name + "' has ";
  std::uint64_t before = 0;
  for (const Range& range : ranges) {
    if (range.end <= before || range.end > spec.rows) {
      wrong.append("a ").append(what).append(" range up to row ").append(std::to_string(range.end));
      wrong.append("; they must ascend to its ").append(std::to_string(spec.rows)).append(" rows");
      throw std::invalid_argument(wrong);
    }
    before = range.end;
  }
  if (ranges.empty() || before == spec.rows) return;
  wrong.append(what).append("s up to row ").append(std::to_string(before)).append(" of ");
  wrong.append(std::to_string(spec.rows)).append("; every row needs one");
  throw std::invalid_argument(wrong);
}

// A row's management is stored in one byte, so that a table has at most 256 of them.
void validate_managements(const TableSpec& spec) {
  constexpr std::size_t kMost = 256;
  constexpr Clock kMostClocks = Clock{1} << 32;
  std::vector<Management> different;
  for (const ManagedRange& range : spec.managed) {
    const Management& one = range.management;
    if (one.exchange < 0 || one.exchange > kMostClocks)
      throw std::invalid_argument("table '" + spec.name + "' has exchange " + std::to_string(one.exchange) +
                                  "; it must be 0 to " + std::to_string(kMostClocks) + " clocks");
    if (std::find(different.begin(), different.end(), one) == different.end()) different.push_back(one);
    if (different.size() > kMost)
      throw std::invalid_argument("table '" + spec.name + "' has rows that are managed in more than " +
                                  std::to_string(kMost) + " ways; give more of them the same exchange");
  }
}

// Ids are assigned to rows in the order of their first use, so a range of rows has no meaning.
void validate_ids(const TableSpec& spec) {
  const std::string table = "table '" + spec.name + "' has ids as keys, so ";
  if (spec.rows > kMaxRowsWithIds)
    throw std::invalid_argument(table + "its capacity must be at most " + std::to_string(kMaxRowsWithIds) +
                                " rows, got " + std::to_string(spec.rows));
  if (!spec.homes.empty())
    throw std::invalid_argument(table + "a hash of each id determines its node: homes cannot be set");
  if (spec.managed.size() > 1)
    throw std::invalid_argument(table + "all its rows need one management, got " +
                                std::to_string(spec.managed.size()));
  if (spec.sampling) throw std::invalid_argument(table + "its rows cannot be sampled");
}

void validate_replacement(const TableSpec& spec) {
  const std::string table = "table '" + spec.name + "' ";
  constexpr std::uint32_t kMostSeen = SeenSketch::kMost + 1;
  if (spec.admit_seen < 1 || spec.admit_seen > kMostSeen)
    throw std::invalid_argument(table + "admits ids at request " + std::to_string(spec.admit_seen) +
                                "; it must be 1 to " + std::to_string(kMostSeen));
  if (!spec.has_ids && (spec.evict != Evict::kNone || spec.admit_seen > 1))
    throw std::invalid_argument(table +
                                "has no ids as keys, so none of its rows can be retired or refused; create "
                                "it with keys=\"int64\"");
  const bool has_ttl = spec.evict == Evict::kTtl;
  if (has_ttl ? spec.ttl < 1 || spec.ttl > kMaxTtl : spec.ttl != 0)
    throw std::invalid_argument(
        table + "has a ttl of " + std::to_string(spec.ttl) + " clocks; it must be " +
        (has_ttl ? "1 to " + std::to_string(kMaxTtl) : "0, because its rows are not retired by age"));
}

void validate_memory(const TableSpec& spec) {
  if (spec.memory == 0) return;
  const std::string table = "table '" + spec.name + "' has memory=" + std::to_string(spec.memory);
  if (spec.path.empty())
    throw std::invalid_argument(table + " and no path; set it to a folder for the rows that do not fit");
  if (resident_rows_of(spec) == 0)
    throw std::invalid_argument(table + " bytes; one of its rows takes " +
                                std::to_string(limited_row_bytes(spec)) + " bytes, so increase memory");
}

}  // namespace

void validate(const TableSpec& spec) {
  const std::string table = "table '" + spec.name + "' has ";
  if (spec.rows == 0) throw std::invalid_argument(table + "0 rows; it needs at least 1");
  if (spec.length == 0) throw std::invalid_argument(table + "length 0; it needs at least 1");
  if (spec.rows > kMaxKeys)
    throw std::invalid_argument(table + std::to_string(spec.rows) + " rows; at most " +
                                std::to_string(kMaxKeys) + " are possible");
  validate(spec, spec.homes, "home");
  validate(spec, spec.managed, "management");
  validate_managements(spec);
  if (spec.has_ids) validate_ids(spec);
  validate_replacement(spec);
  if (const auto& sampling = spec.sampling; sampling && sampling->distribution->rows() != spec.rows)
    throw std::invalid_argument(table + std::to_string(spec.rows) + " rows and " +
                                std::to_string(sampling->distribution->rows()) +
                                " weights; every row needs one");
  // The length is checked first, because the width of a row that is too long could overflow.
  if (spec.length <= kMaxRowFloats) {
    const std::size_t width = spec.length + spec.rule.state_length(spec.length);
    if (width <= kMaxRowFloats) return validate_memory(spec);
    throw std::invalid_argument(table + "rows of " + std::to_string(width) +
                                " floats with their optimizer's state; a row must fit into one message, with "
                                "at most " +
                                std::to_string(kMaxRowFloats) + " floats: divide it into several");
  }
  throw std::invalid_argument(table + "length " + std::to_string(spec.length) +
                              "; a row must fit into one message, with at most " +
                              std::to_string(kMaxRowFloats) + " floats: divide it into several");
}

namespace {

// Rows can only follow existing rows of another table.
void validate_followed(const TableSpec& spec, const std::vector<Table>& tables) {
  for (const HomeRange& home : spec.homes) {
    if (home.hashed_with == kOwnKey) continue;
    const std::string rows = "rows of table '" + spec.name + "' are hashed as those of table ";
    if (home.hashed_with >= tables.size())
      throw std::invalid_argument(rows + std::to_string(home.hashed_with) + "; there are " +
                                  std::to_string(tables.size()) + " tables, numbered from 0 on");
    const TableSpec& followed = tables[home.hashed_with].spec();
    if (followed.has_ids)
      throw std::invalid_argument(rows + "'" + followed.name + "', which has ids as keys");
    if (home.end > followed.rows)
      throw std::invalid_argument(rows + "'" + followed.name + "' up to row " + std::to_string(home.end) +
                                  "; it has " + std::to_string(followed.rows));
  }
}

}  // namespace

Tables::Tables(std::vector<TableSpec> specs) {
  if (specs.empty()) throw std::invalid_argument("a node needs at least one table");
  tables_.reserve(specs.size());
  for (TableSpec& spec : specs) {
    validate(spec);
    for (const Table& other : tables_) {
      if (other.spec().name == spec.name)
        throw std::invalid_argument("two tables are called '" + spec.name + "'");
    }
    const std::size_t width = row_words_of(spec);
    const std::uint64_t resident = resident_rows_of(spec);
    const bool is_limited = resident < spec.rows;
    any_limited_ = any_limited_ || is_limited;
    any_ids_ = any_ids_ || spec.has_ids;
    any_uses_ = any_uses_ || spec.evict != Evict::kNone;
    any_packed_ = any_packed_ || spec.dtype == Dtype::kBfloat16;
    const auto same = std::find_if(arenas_.begin(), arenas_.end(), [&](const Arena& a) {
      return !is_limited && !a.is_limited && a.width == width;
    });
    const auto arena = static_cast<std::size_t>(same - arenas_.begin());
    if (same == arenas_.end()) arenas_.push_back({width, 0, is_limited});
    arenas_[arena].rows += resident;
    const Key first = num_keys_;
    num_keys_ += spec.rows;
    if (num_keys_ > kMaxKeys) {
      throw std::invalid_argument("table '" + spec.name + "' makes " + std::to_string(num_keys_) +
                                  " keys in all; at most " + std::to_string(kMaxKeys) + " are possible");
    }
    tables_.emplace_back(std::move(spec), first, arena);
  }
  for (const Table& table : tables_) validate_followed(table.spec(), tables_);
}

std::uint64_t Tables::fingerprint() const {
  std::uint64_t hash = 0;
  for (const Table& table : tables_) {
    const TableSpec& spec = table.spec();
    for (const char c : spec.name) hash = combine(hash, static_cast<std::uint64_t>(c));
    hash = combine(hash, spec.rows);
    hash = combine(hash, spec.length);
    hash = combine(hash, static_cast<std::uint64_t>(spec.dtype));
    hash = combine(hash, spec.has_ids ? 1 : 0);
    for (const std::uint64_t x : {static_cast<std::uint64_t>(spec.evict),
                                  static_cast<std::uint64_t>(spec.ttl), std::uint64_t{spec.admit_seen}})
      hash = combine(hash, x);
    std::vector<ManagedRange> managed = spec.managed;
    if (managed.empty()) managed.push_back({spec.rows, spec.management});
    for (const auto& [end, management] : managed) {
      const std::optional<Technique> technique = management.technique;
      hash = combine(combine(hash, end), technique ? 1 + static_cast<std::uint64_t>(*technique) : 0);
      hash = combine(hash, static_cast<std::uint64_t>(management.wire));
      hash = combine(hash, static_cast<std::uint64_t>(management.exchange));
    }
    for (const HomeRange& home : spec.homes)
      hash = combine(combine(combine(hash, home.end), home.node), home.hashed_with);
    // The structured binding names all fields, so that this does not compile if a new field is forgotten
    // here.
    const auto& [kind, lr, momentum, eps, beta1, beta2, accumulator, decay, decoupled, nesterov, centered] =
        spec.rule;
    const auto& [init, a, b, seed] = spec.init;
    hash = combine(hash, static_cast<std::uint64_t>(kind));
    hash = combine(hash, static_cast<std::uint64_t>(init));
    hash = combine(hash, seed);
    for (const float x : {a, b, lr, momentum, eps, beta1, accumulator, decay})
      hash = combine(hash, bits_of(x));
    hash = combine(hash, std::bit_cast<std::uint64_t>(beta2));
    for (const bool flag : {decoupled, nesterov, centered}) hash = combine(hash, flag ? 1 : 0);
    if (const std::optional<SamplingSpec>& sampling = spec.sampling) {
      const auto& [distribution, scheme, replacement, draws, pool_size, reuse] = *sampling;
      hash = combine(hash, distribution->fingerprint());
      hash = combine(hash, static_cast<std::uint64_t>(scheme));
      for (const std::uint64_t x : {std::uint64_t{replacement}, draws, pool_size, reuse})
        hash = combine(hash, x);
    }
  }
  return hash;
}

const Table& Tables::search(Key key) const {
  const auto after = std::upper_bound(tables_.begin(), tables_.end(), key,
                                      [](Key k, const Table& table) { return k < table.first_key(); });
  return *(after - 1);
}

}  // namespace adaps
