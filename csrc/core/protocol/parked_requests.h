// Requests of this node's workers that wait for a change of their key's state.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/types.h"
#include "protocol/operation.h"

namespace adaps {

class ParkedRequests {
 public:
  void park(KeyRequest& request) { requests_[request.key].push_back(&request); }
  // Removes and returns the requests of a key, in the order of their arrival.
  std::vector<KeyRequest*> take(Key key) {
    const auto found = requests_.find(key);
    if (found == requests_.end()) return {};
    std::vector<KeyRequest*> taken = std::move(found->second);
    requests_.erase(found);
    return taken;
  }
  // Whether one of them is for the owner, behind what a replica has changed.
  bool has_one_for_owner(Key key) const {
    const auto found = requests_.find(key);
    return found != requests_.end() &&
           std::any_of(found->second.begin(), found->second.end(), [](const KeyRequest* request) {
             const OperationKind kind = request->operation->kind;
             return kind == OperationKind::kSet || is_about_state(kind);
           });
  }

 private:
  std::unordered_map<Key, std::vector<KeyRequest*>> requests_;
};

}  // namespace adaps
