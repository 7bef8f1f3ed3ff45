#include "simulation/mutants.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "common/random.h"
#include "protocol/decisions.h"
#include "protocol/flusher.h"
#include "store/codec.h"

namespace adaps {

namespace {

std::map<const Store*, NodeContext*> nodes;

struct Torn {
  Store* store;
  Key key;
  NodeId to;
  RelocationCount rc;
};
std::vector<Torn> torn;

Epochs& epochs_of(LockedKey& key) { return nodes.at(&key.store())->epochs; }

void forget(LockedKey& key, Delta& delta) {
  if (!delta) return;
  epochs_of(key).remove(delta.epoch);
  delta.floats.reset();
}

Key row_before(const Table& table, Key key) { return key == table.first_key() ? key : key - 1; }

// Whether the row of a table with these ids is in the file of its node.
bool is_stored(const RowIds& ids, std::uint64_t row) {
  for (const auto& [store, node] : nodes) {
    for (std::size_t i = 0; i < node->tables.size(); ++i) {
      const Table& table = node->tables[i];
      if (table.ids() == &ids) return store->is_stored(store->peek(table.first_key() + row));
    }
  }
  return false;
}

// One class for each mutant, with the mutant's name.
namespace broken {

struct none : Decisions {};
#define MUTANT(name, text, ...) \
  struct name : Decisions {     \
    __VA_ARGS__                 \
  };
#include "simulation/mutants.def"
#undef MUTANT

}  // namespace broken

template <typename Broken>
const Decisions& one() {
  static const Broken rules;
  return rules;
}

}  // namespace

void select_mutant(Mutant mutant) {
  switch (mutant) {
    case Mutant::none:
      selected_decisions = &one<broken::none>();
      return;
#define MUTANT(name, ...)                      \
  case Mutant::name:                           \
    selected_decisions = &one<broken::name>(); \
    return;
#include "simulation/mutants.def"
#undef MUTANT
  }
}

void know_node(NodeContext& node) { nodes[&node.store] = &node; }

void forget_node(NodeContext& node) {
  nodes.erase(&node.store);
  std::erase_if(torn, [&](const Torn& transfer) { return transfer.store == &node.store; });
}

void finish_torn_transfers(NodeContext& node, int channel) {
  std::erase_if(torn, [&](const Torn& transfer) {
    if (transfer.store != &node.store || node.directory.channel(transfer.key) != channel) return false;
    LockedKey key(node.store, transfer.key);
    if (key.state() == State::kOwner) key.release(transfer.to, transfer.rc);
    return true;
  });
}

}  // namespace adaps
