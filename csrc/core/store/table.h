// Tables: named ranges of keys with one value length, update rule and initializer each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/types.h"
#include "store/sampling_spec.h"
#include "store/step_history.h"
#include "store/update_rule.h"

namespace adaps {

// Value and optimizer state of the longest row: it goes to another node in one piece.
inline constexpr std::size_t kMaxRowFloats = (std::size_t{16} << 20) - 16;

enum class InitKind : std::uint8_t { kConstant, kUniform, kNormal };

// A value's initial content is a function of seed, row and column alone, so every node would draw the same.
struct Initializer {
  InitKind kind = InitKind::kConstant;
  float a = 0.0F;  // constant, lower bound or mean
  float b = 0.0F;  // upper bound or standard deviation
  std::uint64_t seed = 0;

  void fill(std::uint64_t row, float* value, std::size_t length) const;
};

// No node: a hash of the key chooses.
inline constexpr NodeId kHomeByHash = 0xffff;
// No other table: it is the row's own key that is hashed.
inline constexpr std::uint32_t kOwnKey = 0xffffffff;

// Rows from the end of the range before up to `end`, exclusive, are at home at one node, or each where a hash
// puts it: its own key, or that of the row with the same number of another table.
struct HomeRange {
  std::uint64_t end = 0;
  NodeId node = kHomeByHash;
  std::uint32_t hashed_with = kOwnKey;  // the number of that table among the node's
};

// By which technique rows are managed, what their values and changes are on the network, and how often
// changes of copies are exchanged.
struct Management {
  std::optional<Technique> technique{};  // if not given, that of the node's settings
  Wire wire = Wire::kFloat32;
  Clock exchange = 0;  // at most every so many clocks; 0: as the row's length suggests
  bool operator==(const Management&) const = default;
};

// Rows from the end of the range before up to `end`, exclusive, are managed alike.
struct ManagedRange {
  std::uint64_t end = 0;
  Management management{};
};

struct TableSpec {
  std::string name;
  std::uint64_t rows = 0;
  std::size_t length = 0;
  UpdateRule rule{};
  Initializer init{};
  // How its rows are managed, unless `managed` says it.
  Management management{};
  // How its rows are managed where they differ, ascending and up to the last row.
  std::vector<ManagedRange> managed{};
  // The homes of its rows, ascending and up to the last row; if empty, all are by hash.
  std::vector<HomeRange> homes{};
  // How samples of its rows are drawn; none without it.
  std::optional<SamplingSpec> sampling{};
  // What its values are in memory.
  Dtype dtype = Dtype::kFloat32;
};

// Throws std::invalid_argument naming the table and the value that is wrong: no rows, too many of them, rows
// too long to be stored or sent, or managed in too many ways.
void validate(const TableSpec& spec);

// A table in its place among all tables of a node.
class Table {
 public:
  Table(TableSpec spec, Key first_key, std::size_t arena);
  Table(Table&& other) noexcept;

  const TableSpec& spec() const { return spec_; }
  Key first_key() const { return first_key_; }
  Key end_key() const { return first_key_ + spec_.rows; }
  std::size_t length() const { return spec_.length; }
  // Floats of value and optimizer state.
  std::size_t width() const { return width_; }
  // Floats of optimizer state of one row.
  std::size_t state_length() const { return width_ - spec_.length; }
  // Floats of a change of one row; see UpdateRule.
  std::size_t change_length() const { return change_length_; }
  std::size_t arena() const { return arena_; }
  // Whether values are stored as bfloat16, two in a word; the state behind them is float32.
  bool is_packed() const { return is_packed_; }
  // Words, of the size of a float, that the value takes where it is stored,
  std::size_t value_words() const { return value_words_; }
  // and so many first floats of a row: its length or its width.
  std::size_t stored_words(std::size_t floats) const { return floats - spec_.length + value_words_; }
  const Management& management(Key key) const { return managements_[management_number(key)]; }
  // Which of managements() it is.
  std::size_t management_number(Key key) const { return numbers_.empty() ? 0 : numbers_[key - first_key_]; }
  // Those that its rows have, each once.
  const std::vector<Management>& managements() const { return managements_; }
  // Whether the wire of any of its rows rounds, so that a copy is not exactly its owner's value.
  bool is_lossy() const { return is_lossy_; }
  bool contains(Key key) const { return key - first_key_ < spec_.rows; }

  // For gradients that are applied from now on.
  Hyperparameters hyperparameters() const {
    return {learning_rate_.load(std::memory_order_relaxed), momentum_.load(std::memory_order_relaxed),
            beta2_.load(std::memory_order_relaxed), weight_decay_.load(std::memory_order_relaxed)};
  }
  void set_hyperparameters(const Hyperparameters& with);
  // See UpdateStep.
  std::uint64_t step() const { return step_.load(std::memory_order_relaxed); }
  // `idle_rows`: whether rows catch up with steps in which they had no gradient, if the rule moves such rows.
  void set_step(std::uint64_t number, bool idle_rows);

  // Writes the initial value and optimizer state of a key to out[width()]; all nodes round them alike.
  void init(Key key, float* out) const;
  // The floats of a stored value, and of a row with its state.
  void read_value(const float* stored, float* out) const;
  void unpack(const float* stored, float* row) const;
  // The other way round, for a packed table: rounds the row's value and stores it.
  void pack(float* row, std::uint64_t seed, float* stored) const;
  UpdateStep now() const {
    return {hyperparameters(), step(), history_in_use_.load(std::memory_order_relaxed)};
  }
  void apply_gradient(float* value, const float* gradient, float* change, const UpdateStep& step) const {
    spec_.rule.apply(value, gradient, spec_.length, change, step);
  }
  void apply_gradient(float* value, const float* gradient, float* change) const {
    apply_gradient(value, gradient, change, now());
  }
  void merge(float* value, const float* change) const { spec_.rule.merge(value, change, spec_.length); }

 private:
  void manage();

  TableSpec spec_;
  std::vector<Management> managements_;
  std::vector<std::uint8_t> numbers_;  // for each row, which of them; empty if all have the same
  bool is_lossy_ = false;
  Key first_key_;
  std::size_t arena_;
  std::size_t width_;
  std::size_t change_length_;
  bool is_packed_;
  std::size_t value_words_;
  std::atomic<float> learning_rate_, momentum_, beta2_, weight_decay_;
  std::atomic<std::uint64_t> step_{0};
  std::unique_ptr<StepHistory> history_ = std::make_unique<StepHistory>();
  std::atomic<const StepHistory*> history_in_use_{nullptr};
};

// All tables of a node; fixed for its life. Tables whose rows take as many words share an arena of the store.
class Tables {
 public:
  // Throws std::invalid_argument naming the table and the value that is wrong.
  explicit Tables(std::vector<TableSpec> specs);

  std::size_t size() const { return tables_.size(); }
  const Table& operator[](std::size_t i) const { return tables_[i]; }
  Table& operator[](std::size_t i) { return tables_[i]; }
  std::uint64_t num_keys() const { return num_keys_; }
  // Whether values of any of them are packed.
  bool any_packed() const { return any_packed_; }

  struct Arena {
    std::size_t width;   // words of a slot, of the size of a float
    std::uint64_t rows;  // of all its tables
  };
  const std::vector<Arena>& arenas() const { return arenas_; }

  // The table of a valid key; `hint` is looked at first and moved there.
  const Table& find(Key key, const Table*& hint) const {
    if (hint != nullptr && hint->contains(key)) return *hint;
    return *(hint = &search(key));
  }
  const Table& find(Key key) const { return search(key); }
  // The number of one of these tables.
  std::size_t number_of(const Table& table) const {
    return static_cast<std::size_t>(&table - tables_.data());
  }

  // Equal on two nodes if and only if their tables are; goes into the handshake.
  std::uint64_t fingerprint() const;

 private:
  const Table& search(Key key) const;

  std::vector<Table> tables_;
  std::vector<Arena> arenas_;
  std::uint64_t num_keys_ = 0;
  bool any_packed_ = false;
};

}  // namespace adaps
