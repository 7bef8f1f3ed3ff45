// Deliberate bugs of the protocol: each breaks one of its Rules. They prove that the simulator's checker
// bites.
#pragma once

#include <cstdint>

#include "common/types.h"
#include "protocol/context.h"

namespace adaps {

// Name, and what the protocol does wrong when it is selected.
#define ADAPS_MUTANTS(X)                                                                    \
  X(drop_at_once, "a replica is gone when DROP is sent, not when DROP_ACK arrives")         \
  X(zombie_stays_readable, "a newer answer does not make a dropping replica unreadable")    \
  X(no_refresh_before_answer, "a holder's request is answered without refreshing it first") \
  X(no_rc_check, "a delta of an earlier tenure is accepted")                                \
  X(forward_crossed, "a crossed delta follows the key instead of being discarded")          \
  X(upgrade_forgets_inflight, "TRANSFER does not absorb the delta in flight")               \
  X(upgrade_forgets_unsent, "TRANSFER does not absorb the unsent delta")                    \
  X(refresh_forgets_inflight, "REFRESH does not add the delta in flight again")             \
  X(refresh_forgets_unsent, "REFRESH does not add the unsent delta again")                  \
  X(echo_without_refresh, "MARK is echoed without refreshing what is behind")               \
  X(echo_first, "MARK is echoed ahead of the refreshes")                                    \
  X(sync_ignores_inflight, "wait_sync does not wait for deltas in flight")                  \
  X(mark_shared, "wait_sync shares a MARK that was sent before the call")                   \
  X(not_pinned, "an owner with holders gives the key away")                                 \
  X(set_without_flush, "a set overtakes an older unflushed push of its node")               \
  X(ack_always_exact, "every ACK says exact")                                               \
  X(two_in_flight, "a second delta is sent before the first is acknowledged")               \
  X(intent_while_dropping, "INTENT is sent before DROP_ACK arrived")                        \
  X(setup_not_registered, "the owner forgets a new holder")                                 \
  X(owner_push_not_dirty, "a push at the owner is not announced to the holders")            \
  X(light_always, "TRANSFER to a holder never carries the value")                           \
  X(setup_ignores_end, "a replica whose intent ended while pending is kept")                \
  X(no_move_after_drop, "the owner does not reconsider after a drop")                       \
  X(drop_with_two, "DROP is sent while a delta is in flight")                               \
  X(first_duplicate_wins, "of duplicates in one set the first is applied last")             \
  X(news_unordered, "older news of a location replaces newer")                              \
  X(absorb_no_bump, "absorption does not change the version")                               \
  X(duplicates_torn, "duplicates of a key in one call are applied in different places")     \
  X(sample_of_absent, "a sample takes what has left from where it was")                     \
  X(sample_not_announced, "one row of a sample is not announced")                           \
  X(sample_repeats, "a row comes twice in a sample without replacement")                    \
  X(pool_forgets_one, "a pool does not hand out one of its rows")                           \
  X(signals_count_once, "of several signals for a key one is counted")                      \
  X(intent_unheard, "nobody is asked for a key whose location is known")                    \
  X(end_unheard, "an owner that others hold replicas of does not notice its intent's end")  \
  X(initial_always, "a written value is announced as the initial one")                      \
  X(initial_not_made, "the initial value that is not sent is not made either")              \
  X(gradient_of_many, "of several pushes the first gradient alone is sent")                 \
  X(gradient_always_exact, "a gradient is exact whatever its holder applied it to")         \
  X(set_as_delta, "a set at a replica is sent as the difference that it makes")             \
  X(torn_transfer, "an owner that gave its key away takes writes until its next turn")      \
  X(parts_at_once, "the parts of a divided push are sent without waiting for answers")      \
  X(echo_in_between, "MARK is echoed before the slices of its refreshes are through")       \
  X(queue_without_limit, "a call goes on though too many bytes are queued")                 \
  X(queue_never_emptied, "bytes of a finished call count as queued")                        \
  X(held_back_forgotten, "a refresh that is held back is never sent")                       \
  X(echo_ahead_of_held_back, "MARK is echoed ahead of the refreshes that are held back")    \
  X(room_ignored, "more is sent to a node for which too much waits")                        \
  X(room_never_back, "what the network has taken counts as waiting")                        \
  X(kept_change_forgotten, "a change that is kept back for lack of room is never sent")     \
  X(kept_intent_forgotten, "an intent that is kept back for lack of room has no effect")    \
  X(frame_never_leaves, "what waits for its frame waits for ever")                          \
  X(frame_leaves_without, "what was kept until a frame leaves does not go with it")         \
  X(overtakes_what_waits, "what leaves at once goes ahead of what waits for its frame")     \
  X(setup_waits, "a replica that was asked for waits for its frame")                        \
  X(echo_waits, "ECHO waits for its frame")                                                 \
  X(sync_unheard, "changes wait for their frame while a wait_sync waits for them")          \
  X(echo_unheard, "refreshes wait for their frame while an ECHO waits for them")            \
  X(technique_of_neighbour, "keys are managed by the technique of the next table")          \
  X(technique_of_row_before, "keys are managed by the technique of the row before")         \
  X(intent_as_first_row, "intent is dropped where the table's first row uses none")         \
  X(kept_as_first_row, "copies are permanent where that of the table's first row is")       \
  X(intent_as_first_table, "intent is dropped where the first table's technique uses none") \
  X(kept_as_first_table, "copies are permanent where those of the first table are")         \
  X(gives_away_replicated, "an owner gives a replicated key to its only holder")            \
  X(home_by_hash, "one node looks for all keys where a hash puts them")                     \
  X(home_by_own_hash, "rows that follow another table's are hashed by their own keys")      \
  X(news_by_hash, "after a relocation the node is told where a hash puts the key")          \
  X(news_as_row_before, "after a relocation the home of the row before is told")            \
  X(wire_of_row_before, "rows and changes are encoded for the row before")                  \
  X(owns_a_copy_as_first_row, "copies count as exact where the table's first row is")       \
  X(rests_as_first_row, "a checkpoint takes up rests where the table's first row has any")  \
  X(rest_forgotten, "what a change is rounded by is lost")                                  \
  X(rest_sent_twice, "what a change is rounded by goes with the next one twice")            \
  X(rest_lost_at_relocation, "TRANSFER does not absorb the rest of a change")               \
  X(rest_lost_at_drop, "a replica that is given up takes the rest of a change with it")     \
  X(rest_lost_at_checkpoint, "a checkpoint is taken without the rests of changes")          \
  X(alone_no_bump, "a write to a row that nobody else holds does not change its version")   \
  X(told_for_good, "a row that an export has told is not told again when it changes")       \
  X(scale_of_neighbour, "a row is decoded with the scale of the one before it")             \
  X(exchange_of_row_before, "changes are exchanged as often as those of the row before")    \
  X(exchange_ignored, "changes go with every round, however many clocks they should wait")  \
  X(exchange_overdue, "a stale bound: changes that a clock makes due are not sent")         \
  X(exchange_joins_flush, "a key goes twice with a flush that is under way")                \
  X(owns_a_rounded_copy, "a holder becomes owner of what a lossy wire brought")             \
  X(rounds_to_nearest, "what is written to a packed row is rounded to the nearest number")  \
  X(rounds_alike_each_time, "a packed row is rounded by the same random numbers each time") \
  X(rounds_for_itself, "a holder rounds a packed row by other numbers than its owner")      \
  X(settles_nothing, "a packed copy loses a change that is acknowledged")                   \
  X(packed_copy_is_bare, "a packed copy becomes owner without its changes")                 \
  X(stored_as_next_table, "a row is taken as the next table stores its rows")

enum class Mutant : std::uint8_t {
  none,
#define ADAPS_MUTANT_NAME(name, text) name,
  ADAPS_MUTANTS(ADAPS_MUTANT_NAME)
#undef ADAPS_MUTANT_NAME
};

// From now on one rule is broken, or none.
void select_mutant(Mutant mutant);

// Some mutants need more of a node than a rule is told.
void know_node(NodeContext& node);
void forget_node(NodeContext& node);
// What the mutant torn_transfer does when the channel's next turn begins.
void finish_torn_transfers(NodeContext& node, int channel);

}  // namespace adaps
