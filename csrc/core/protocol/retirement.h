// Retires rows of ids that are not in use, so that other ids can have them: RETIRE and RETIRED
// (docs/concepts/protocol.md, section 20).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/node_set.h"
#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/message.h"
#include "protocol/ownership.h"
#include "protocol/stored_rows.h"
#include "store/row_ids.h"

namespace adaps {

class Retirement {
 public:
  Retirement(ChannelContext& channel, StoredRows& stored, Ownership& ownership);

  // Continues the searches for rows that can be retired, which requests for rows have started.
  void run();
  // Time when run() has to be called next.
  Micros due() const;
  void on_retire(NodeId from, const RetireMessage& message, Reader& reader);
  void on_retired(NodeId from, const RetiredMessage& message, Reader& reader);

 private:
  // This channel's search among those rows of its node's share whose keys it handles.
  struct Search {
    const Table* table;
    NodeSet awaited;                    // nodes that have not answered the last RETIRE
    std::uint64_t number = 0;           // 0 if there is no search
    bool any_busy = false;              // whether a row was neither given up nor in use
    std::vector<bool> asked{};          // by index in the share
    std::vector<std::uint64_t> rows{};  // of the last RETIRE
    std::vector<std::int64_t> ids{};
    std::vector<GivenUp> answers{};  // the worst answer of all nodes, by row
    Micros again = 0;                // time of the next attempt after rows were busy
    Micros pause = 0;                // until the attempt after the next one
  };

  void step(Search& search);
  bool begin(Search& search);
  void finish(Search& search, bool found_all);
  void choose(Search& search);
  void ask(Search& search);
  void settle(Search& search);
  GivenUp settle_row(Search& search, std::size_t i);
  // Gives up a row for the node `to`, which assigns it, unless the row is in use here.
  GivenUp give_up(RowIds::Adding& adding, const Table& table, std::int64_t id, std::uint64_t row, NodeId to);
  // Leaves a key that this node has given up to the node `to`.
  void hand_over(LockedKey& key, NodeId to);
  GivenUp usage(const RowUses& uses, std::uint64_t row) const;
  const Table& checked_table(NodeId from, std::uint32_t table, std::uint32_t count) const;
  Search& checked_search(NodeId from, const RetiredMessage& message);

  ChannelContext& channel_;
  StoredRows& stored_;
  Ownership& ownership_;
  const Micros pause_;            // until a search tries again; doubles with each attempt
  std::vector<Search> searches_;  // one for each table whose rows are retired
  int reads_left_ = 0;            // rows that may still be read from files for the present RETIRE
  std::vector<std::int64_t> ids_;
  std::vector<std::uint32_t> rows_;
  std::vector<std::uint32_t> answers_;
};

}  // namespace adaps
