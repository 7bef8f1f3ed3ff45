// Rows that their owner has written to a file, because the memory of their table is limited
// (docs/concepts/protocol.md, section 21).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/message.h"
#include "storage/row_storage.h"

namespace adaps {

// Brings rows of this channel into memory, and writes rows out when little memory is left. Only this part
// changes the state of a key between OWNER and STORED, and only it reserves slots of limited tables.
class StoredRows {
 public:
  explicit StoredRows(ChannelContext& channel);

  // Whether a call needs the row, or an intent announces that calls will.
  enum class Need : std::uint8_t { kNow, kAhead };
  // Returns whether the row is in memory or on another node. Otherwise starts to bring it into memory. The
  // key will be among the results of work().
  bool bring(LockedKey& key, Need need);
  // Whether a key has its initial content, and needs a slot of a limited table at its first use.
  bool must_be_created(Key key) const;
  // Reserves a slot for a copy. Returns false if there is no space for it; then the node must not request it.
  bool reserve_for_copy(const LockedKey& key);

  // --- rows that are retired ---

  // Whether a row is being read or written, or a call or a message of another node waits for it.
  bool is_moving(Key key) const;
  // Removes a row that is not moving from the rows that are brought into memory ahead of their use.
  void cancel(Key key) { coming_.erase(key); }
  // Reads a stored row without bringing it into memory. The caller waits for the disk.
  RowFile::Record read_now(const LockedKey& key, std::vector<float>& words) const;
  // Reserves a slot for a row that its owner gives back. Returns false if no memory is free; see put().
  bool reserve_for_return(const LockedKey& key);
  // NONE -> STORED. Writes a row that this node becomes the owner of. The caller waits for the disk. If there
  // are no words, the row has its initial content.
  void put(LockedKey& key, const StoredState& state, std::span<const float> words);

  // A message of another node about a row that is not in memory.
  struct Waiting {
    NodeId from;
    std::variant<RequestMessage, IntentMessage> message;
    std::vector<float> payload;
  };
  void keep(Key key, Waiting message) { waiting_[key].push_back(std::move(message)); }
  // Removes and returns the messages that wait for a row, in the order of their arrival.
  std::vector<Waiting> take_waiting(Key key);

  // Processes complete reads and writes, and starts reads that waited for memory. Returns the keys of rows
  // that were brought into memory. Throws StorageError if a row could not be read or written, or if no memory
  // becomes free for a row that a call needs.
  std::vector<Key> work();
  // Writes out rows, so that the next rows find free memory. Then submits all reads and writes.
  void write_out();
  // Time of the next work for calls that wait for memory, unless a transfer is complete earlier. Without such
  // calls, the work is done when the channel has other work.
  Micros next() const;

 private:
  // A limited table.
  struct Tier {
    const Table* table;
    Arena* arena;
    RowFile* file;
    std::uint64_t low_water;      // number of free slots below which rows are written out
    std::uint64_t reserve;        // number of free slots that intents leave to calls
    std::size_t writing = 0;      // number of rows that are being written
    std::uint32_t hand = 0;       // the next slot to look at
    std::uint64_t fruitless = 0;  // number of slots since the last one that could be freed
    bool sweep_goes_on = false;   // the slice ended before enough rows were written out
    Micros pause_until = 0;
    std::deque<Key> now;    // keys that wait for a slot because of a call
    std::deque<Key> ahead;  // keys that wait for a slot because of an intent
    Micros looked = 0;      // time of the last look whether `now` waits
    Micros waited = 0;      // time for which `now` waits without any progress
  };
  struct Coming {
    Need need;
    bool is_read;  // otherwise the key waits for a slot
  };

  Tier* tier_of(const Table& table) const { return tiers_[channel_.node.tables.number_of(table)].get(); }
  bool has_slot_for(const Tier& tier, Need need) const {
    const std::uint64_t free = tier.arena->free_of(channel_.index);
    if (need == Need::kNow) return free > 0;
    return free > tier.reserve && decisions().may_bring_ahead(channel_.node.frozen.load());
  }
  bool start(Tier& tier, LockedKey& key, Need need);
  void read(Tier& tier, Key key, Need need, RowFile::Entry entry);
  void finish_read(std::unique_ptr<RowTransfer> transfer);
  void finish_write(const RowTransfer& transfer);
  void start_waiting(Tier& tier, Need need);
  void check_progress(Tier& tier);
  void write_out(Tier& tier);
  bool try_put_away(Tier& tier, Key number, bool despite_intent);
  bool may_put_away(LockedKey& key, bool despite_intent) const;

  ChannelContext& channel_;
  RowStorage* const storage_;
  std::vector<std::unique_ptr<Tier>> tiers_;  // by table; null unless the table is limited
  std::unordered_map<Key, Coming> coming_;
  std::unordered_map<Key, std::vector<Waiting>> waiting_;
  std::unordered_set<Key> written_;  // rows that are being written
  std::vector<Key> arrived_;
  RowTransfers submitted_;  // until the end of the tick
};

}  // namespace adaps
