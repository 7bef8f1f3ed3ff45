// The state of a node without its threads: the data that its workers and channels share, and the channels.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "protocol/channel.h"
#include "protocol/context.h"

namespace adaps {

struct NodeState : NodeContext {
  NodeState(std::vector<TableSpec> specs, const Settings& settings_in, const MakeStorage& make_storage = {})
      : NodeContext(std::move(specs), settings_in, make_storage) {
    for (int i = 0; i < settings.channels; ++i) channels.push_back(std::make_unique<Channel>(*this, i));
  }

  std::vector<std::unique_ptr<Channel>> channels;
};

}  // namespace adaps
