#include "protocol/id_requests.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "protocol/message_numbers.h"
#include "protocol/row_assignment.h"

namespace adaps {

void IdRequests::send(IdRequest& request) {
  if (request.to == channel_.rank) {
    waiting_.push_back({request.operation->id_call->table, channel_.rank, 0, &request, request.ids});
    return;
  }
  if (free_numbers_.empty()) {
    free_numbers_.push_back(static_cast<std::uint32_t>(awaiting_.size()));
    awaiting_.push_back(nullptr);
  }
  ResolveMessage message;
  message.request = free_numbers_.back();
  message.table =
      static_cast<std::uint32_t>(channel_.node.tables.number_of(*request.operation->id_call->table));
  message.count = static_cast<std::uint32_t>(request.ids.size());
  message.only_finds = request.operation->id_call->creates ? 0 : 1;
  free_numbers_.pop_back();
  awaiting_[message.request] = &request;
  channel_.outbox.append(request.to, message, {as_words(request.ids)});
}

void IdRequests::on_resolve(NodeId from, const ResolveMessage& message, Reader& reader) {
  const Tables& tables = channel_.node.tables;
  if (message.table >= tables.size() || tables[message.table].ids() == nullptr)
    throw ProtocolError(from,
                        "requests rows of table " + std::to_string(message.table) + ", which has no ids");
  if (message.count == 0 || message.count > kMaxIdsOfMessage)
    throw ProtocolError(from, "requests the rows of " + std::to_string(message.count) + " ids");
  read_numbers(reader, message.count, ids_);
  for (const std::int64_t id : ids_) {
    if (channel_.node.directory.node_of_id(id) != channel_.rank)
      throw ProtocolError(from,
                          "requests the row of id " + std::to_string(id) + ", which another node assigns");
  }
  Waiting request{&tables[message.table], from, message.request, nullptr, ids_};
  if (message.only_finds != 0) return find(request);
  if (request.table->spec().admit_seen > 1) {
    RowIds::Adding adding(*request.table->ids());
    for (const std::int64_t id : ids_) request.is_admitted.push_back(decisions().admits(adding, id));
  }
  if (!serve(request)) waiting_.push_back(std::move(request));
}

void IdRequests::find(Waiting& request) {
  rows_.resize(request.ids.size());
  find_own_rows(*request.table, request.ids, rows_.data());
  for (const std::int64_t row : rows_) request.is_admitted.push_back(row != RowIds::kUnknown);
  std::erase(rows_, RowIds::kUnknown);
  answer(request, true);
}

void IdRequests::serve_waiting() {
  std::erase_if(waiting_, [this](Waiting& request) { return serve(request); });
}

bool IdRequests::serve(Waiting& request) {
  ids_.clear();
  for (std::size_t i = 0; i < request.ids.size(); ++i) {
    if (request.is_admitted.empty() || request.is_admitted[i]) ids_.push_back(request.ids[i]);
  }
  rows_.resize(ids_.size());
  std::optional<int> worker;
  if (request.own != nullptr) worker = request.own->operation->worker;
  const std::uint64_t needed = assign_rows(channel_.node, *request.table, ids_, rows_.data(), worker);
  if (needed > 0 && must_wait(request, needed)) return false;
  answer(request, needed == 0);
  return true;
}

// Requests a search for rows that can be retired, unless one is going on for this request. Returns false if a
// search found too few rows, because the others are in use.
bool IdRequests::must_wait(Waiting& request, std::uint64_t needed) {
  RowUses* const uses = request.table->uses();
  if (uses == nullptr || needed > own_share(channel_.node, *request.table).size()) return false;
  const RowIds::Adding adding(*request.table->ids());
  if (request.search != 0 && decisions().gives_up_search(uses->is_exhausted(request.search))) return false;
  if (request.search == 0 || uses->is_finished(request.search)) {
    const std::uint64_t free = free_rows(channel_.node, *request.table);
    const std::uint64_t missing = std::max(needed, free) - free;
    request.search = uses->request_search(request.table->ids()->retired() + missing);
    channel_.node.wake_channels();
  }
  return true;
}

void IdRequests::answer(const Waiting& request, bool has_rows) {
  if (request.own != nullptr) {
    Operation& operation = *request.own->operation;
    if (!has_rows) operation.id_call->full.store(channel_.rank);
    operation.finish();
    return;
  }
  ResolvedMessage message;
  message.request = request.number;
  answer_.clear();
  if (has_rows) {
    message.count = static_cast<std::uint32_t>(request.ids.size());
    for (std::size_t i = 0, next = 0; i < request.ids.size(); ++i) {
      const bool has_row = request.is_admitted.empty() || request.is_admitted[i];
      answer_.push_back(has_row ? static_cast<std::uint32_t>(decisions().row_of_answer(rows_, next++))
                                : kNoRow);
    }
  }
  channel_.outbox.append(request.from, message, {as_words(answer_)});
}

void IdRequests::on_resolved(NodeId from, const ResolvedMessage& message, Reader& reader) {
  if (message.request >= awaiting_.size() || awaiting_[message.request] == nullptr ||
      awaiting_[message.request]->to != from)
    throw ProtocolError(from, "answers the request for rows " + std::to_string(message.request) +
                                  ", which it did not receive");
  const IdRequest& request = *awaiting_[message.request];
  Operation& operation = *request.operation;
  const Table& table = *operation.id_call->table;
  if (message.count != 0 && message.count != request.ids.size())
    throw ProtocolError(from, "answers " + std::to_string(message.count) + " of " +
                                  std::to_string(request.ids.size()) + " ids");
  read_numbers(reader, message.count, answer_);
  const RowRange share = share_of(table.spec().rows, channel_.node.settings.nodes, from);
  for (const std::uint32_t row : answer_) {
    const bool may_refuse = table.spec().admit_seen > 1 || !operation.id_call->creates;
    if (!share.contains(row) && !(may_refuse && row == kNoRow))
      throw ProtocolError(from, "assigns row " + std::to_string(row) + " of table '" + table.spec().name +
                                    "', which another node assigns");
  }
  if (message.count == 0) operation.id_call->full.store(from);
  learn_rows(channel_.node, request, message.count == 0 ? nullptr : answer_.data());
  awaiting_[message.request] = nullptr;
  free_numbers_.push_back(message.request);
  operation.finish();
}

}  // namespace adaps
