// Tables: named ranges of keys with a value length, an update rule and an initializer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/types.h"
#include "store/replacement.h"
#include "store/row_ids.h"
#include "store/row_uses.h"
#include "store/sampling_spec.h"
#include "store/step_history.h"
#include "store/update_rule.h"

namespace adaps {

// Maximum number of floats of a row, including its optimizer state. The limit exists because a row is sent to
// another node in one piece.
inline constexpr std::size_t kMaxRowFloats = (std::size_t{16} << 20) - 16;
// Maximum of TableSpec::ttl. It keeps the difference of two ticks below 2^31 for every number of workers.
inline constexpr Clock kMaxTtl = Clock{1} << 18;

enum class InitKind : std::uint8_t { kConstant, kUniform, kNormal };

// The initial value is a function of seed, row and column alone, so every node computes the same value. If
// the row has an id, the id is used in place of the row.
struct Initializer {
  InitKind kind = InitKind::kConstant;
  float a = 0.0F;  // constant, lower bound or mean
  float b = 0.0F;  // upper bound or standard deviation
  std::uint64_t seed = 0;

  void fill(std::uint64_t row, float* value, std::size_t length) const;
};

// A value in place of a node number: a hash of the key determines the home node.
inline constexpr NodeId kHomeByHash = 0xffff;
// A value in place of a table number: the row's own key is hashed.
inline constexpr std::uint32_t kOwnKey = 0xffffffff;

// Homes of the rows from the end of the previous range up to `end`, exclusive. All these rows have one home
// node, or the home of each is determined by a hash. The hashed key is the row's own key, or the key of the
// row with the same number in another table.
struct HomeRange {
  std::uint64_t end = 0;
  NodeId node = kHomeByHash;
  std::uint32_t hashed_with = kOwnKey;  // number of the other table in the node's list of tables
};

// Technique that manages a row, encoding of its value and changes on the network, and frequency at which
// changes of copies are exchanged.
struct Management {
  std::optional<Technique> technique{};  // by default, the technique of the node's settings
  Wire wire = Wire::kFloat32;
  Clock exchange = 0;  // minimum number of clocks between exchanges; 0: derived from the row's length
  bool operator==(const Management&) const = default;
};

// Management of a range of rows, which begins at the end of the previous range and ends before `end`.
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
  // Management of all rows, unless `managed` has ranges.
  Management management{};
  // Ranges of rows with different management, ascending and up to the last row.
  std::vector<ManagedRange> managed{};
  // Homes of the rows, ascending and up to the last row. If empty, a hash determines all homes.
  std::vector<HomeRange> homes{};
  // Distribution and scheme for samples of the rows. Without it, the table cannot be sampled.
  std::optional<SamplingSpec> sampling{};
  // Encoding of the values in memory.
  Dtype dtype = Dtype::kFloat32;
  // Whether rows are assigned to ids at their first use; see RowIds. The nodes then have equal shares of the
  // rows, so `homes` must be empty.
  bool has_ids = false;
  // Order in which rows with ids are retired, so that other ids can have them. By default, a row keeps its
  // id.
  Evict evict = Evict::kNone;
  // With Evict::kTtl, the number of clocks after its last use in which a row is not retired.
  Clock ttl = 0;
  // Number of the request of an id in which it gets a row. Earlier requests find no row.
  std::uint32_t admit_seen = 1;
  // Maximum number of bytes of rows in memory; 0 if all rows may be in memory. Each node may have another
  // limit.
  std::uint64_t memory = 0;
  // Folder of the file for the rows that do not fit.
  std::string path{};
};

// Bytes of memory that a row takes in addition to its value and state, if the memory of its table is limited:
// its header, its key, and a mark.
inline constexpr std::size_t kLimitedSlotBytes = 21;
// Bytes of memory for the last record of each row of such a table; see RowFile::Entry.
inline constexpr std::size_t kRecordEntryBytes = 12;

// Throws std::invalid_argument that names the table and the wrong value: no rows, too many rows, rows too
// long to be stored or sent, too many different managements, or settings that rows with ids cannot have.
void validate(const TableSpec& spec);

// A table with its range of keys on this node.
class Table {
 public:
  Table(TableSpec spec, Key first_key, std::size_t arena);
  Table(Table&& other) noexcept;

  const TableSpec& spec() const { return spec_; }
  Key first_key() const { return first_key_; }
  Key end_key() const { return first_key_ + spec_.rows; }
  std::size_t length() const { return spec_.length; }
  // Number of floats of value and optimizer state.
  std::size_t width() const { return width_; }
  // Floats of optimizer state of one row.
  std::size_t state_length() const { return width_ - spec_.length; }
  // Floats of a change of one row; see UpdateRule.
  std::size_t change_length() const { return change_length_; }
  std::size_t arena() const { return arena_; }
  // Whether not all rows fit into the memory of a node, so that it writes some of them to a file.
  bool is_limited() const { return resident_rows_ < spec_.rows; }
  // Maximum number of rows in memory.
  std::uint64_t resident_rows() const { return resident_rows_; }
  // Whether values are stored as bfloat16, two in a word. The optimizer state after the value is float32.
  bool is_packed() const { return is_packed_; }
  // Number of words, of the size of a float, that the stored value takes.
  std::size_t value_words() const { return value_words_; }
  // Number of words that the first `floats` floats of a row take. `floats` is length() or width().
  std::size_t stored_words(std::size_t floats) const { return floats - spec_.length + value_words_; }
  const Management& management(Key key) const { return managements_[management_number(key)]; }
  // Index in managements() of a key's management.
  std::size_t management_number(Key key) const { return numbers_.empty() ? 0 : numbers_[key - first_key_]; }
  // The different managements of the table's rows.
  const std::vector<Management>& managements() const { return managements_; }
  // Whether the wire of any row rounds, so that a replica can differ from the owner's value.
  bool is_lossy() const { return is_lossy_; }
  bool contains(Key key) const { return key - first_key_ < spec_.rows; }
  // The ids of the rows; null if the rows have none.
  RowIds* ids() const { return ids_.get(); }
  // The uses of the rows on this node; null if rows are never retired.
  RowUses* uses() const { return uses_.get(); }
  // Whether a key may be used on this node. If rows have ids, the node must know the id.
  bool is_usable(Key key) const { return ids_ == nullptr || ids_->knows(key - first_key_); }
  // A number that identifies the content of a row: its id or, without ids, the number of the row.
  std::uint64_t identity(Key key) const {
    return ids_ == nullptr ? key - first_key_ : static_cast<std::uint64_t>(ids_->id(key - first_key_));
  }

  // Hyperparameters of gradients that are applied from now on.
  Hyperparameters hyperparameters() const {
    return {learning_rate_.load(std::memory_order_relaxed), momentum_.load(std::memory_order_relaxed),
            beta2_.load(std::memory_order_relaxed), weight_decay_.load(std::memory_order_relaxed)};
  }
  void set_hyperparameters(const Hyperparameters& with);
  // Number of the optimizer's current step, see UpdateStep.
  std::uint64_t step() const { return step_.load(std::memory_order_relaxed); }
  // Sets the current step. Some optimizers also change a row in steps in which it has no gradient. With
  // `idle_rows`, these changes are computed when the row is used next.
  void set_step(std::uint64_t number, bool idle_rows);

  // Writes the initial value and optimizer state of a key to out[width()]. All nodes round the value equally.
  void init(Key key, float* out) const { init_as(identity(key), out); }
  // Writes the initial row of the key that has an identity.
  void init_as(std::uint64_t identity, float* out) const;
  // Decodes a stored value.
  void read_value(const float* stored, float* out) const;
  // Decodes a stored row: its value and its optimizer state.
  void unpack(const float* stored, float* row) const;
  // Rounds the value of a packed table's row and stores the row.
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
  // index in managements_ of each row; empty if all rows have the same management
  std::vector<std::uint8_t> numbers_;
  bool is_lossy_ = false;
  std::unique_ptr<RowIds> ids_;
  std::unique_ptr<RowUses> uses_;
  Key first_key_;
  std::size_t arena_;
  std::size_t width_;
  std::size_t change_length_;
  bool is_packed_;
  std::size_t value_words_;
  std::uint64_t resident_rows_;
  std::atomic<float> learning_rate_, momentum_, weight_decay_;
  std::atomic<double> beta2_;
  std::atomic<std::uint64_t> step_{0};
  std::unique_ptr<StepHistory> history_ = std::make_unique<StepHistory>();
  std::atomic<const StepHistory*> history_in_use_{nullptr};
};

// All tables of a node. The set does not change. Tables whose rows take an equal number of words share an
// arena of the store.
class Tables {
 public:
  // Throws std::invalid_argument that names the table and the wrong value.
  explicit Tables(std::vector<TableSpec> specs);

  std::size_t size() const { return tables_.size(); }
  const Table& operator[](std::size_t i) const { return tables_[i]; }
  Table& operator[](std::size_t i) { return tables_[i]; }
  std::uint64_t num_keys() const { return num_keys_; }
  // Whether any table's values are packed.
  bool any_packed() const { return any_packed_; }
  // Whether the rows of any table have ids.
  bool any_ids() const { return any_ids_; }
  // Whether the rows of any table are retired.
  bool any_uses() const { return any_uses_; }
  // Whether the memory of any table is limited.
  bool any_limited() const { return any_limited_; }

  struct Arena {
    std::size_t width;   // words of a slot, of the size of a float
    std::uint64_t rows;  // sum over the arena's tables
    // Whether the arena belongs to one table and has space for only some of its rows.
    bool is_limited = false;
  };
  const std::vector<Arena>& arenas() const { return arenas_; }

  // Returns the table of a valid key. `hint` is tried first, and then set to the result.
  const Table& find(Key key, const Table*& hint) const {
    if (hint != nullptr && hint->contains(key)) return *hint;
    return *(hint = &search(key));
  }
  const Table& find(Key key) const { return search(key); }
  // Index of a table in this object.
  std::size_t number_of(const Table& table) const {
    return static_cast<std::size_t>(&table - tables_.data());
  }

  // A hash of all tables, for the handshake: equal on two nodes if their tables are equal.
  std::uint64_t fingerprint() const;

 private:
  const Table& search(Key key) const;

  std::vector<Table> tables_;
  std::vector<Arena> arenas_;
  std::uint64_t num_keys_ = 0;
  bool any_packed_ = false;
  bool any_ids_ = false;
  bool any_uses_ = false;
  bool any_limited_ = false;
};

}  // namespace adaps
