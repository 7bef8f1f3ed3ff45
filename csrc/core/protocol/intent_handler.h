// Executes the begin and the end of intents, at times that IntentQueues decides.
#pragma once

#include "common/types.h"
#include "protocol/channel_context.h"
#include "protocol/ownership.h"
#include "protocol/replicas.h"
#include "protocol/stored_rows.h"

namespace adaps {

class IntentHandler {
 public:
  IntentHandler(ChannelContext& channel, StoredRows& stored, Ownership& ownership, Replicas& replicas);

  // Acts on the intents that are due, for one slice. The next call continues at the end of the slice.
  void act_on_intents(Micros last_round);

  // Under full replication every key is requested once.
  bool has_permanent() const { return permanent_cursor_ < channel_.node.tables.num_keys(); }
  void start_permanent();

 private:
  void start(Key number, Micros until_start, bool for_good);
  void end(Key number);

  ChannelContext& channel_;
  StoredRows& stored_;
  Ownership& ownership_;
  Replicas& replicas_;
  Key permanent_cursor_ = 0;
};

}  // namespace adaps
