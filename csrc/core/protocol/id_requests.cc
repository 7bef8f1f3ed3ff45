#include "protocol/id_requests.h"

#include <string>

#include "protocol/message_numbers.h"
#include "protocol/row_assignment.h"

namespace adaps {

namespace {

std::string described(NodeId from) { return "rank " + std::to_string(from) + " "; }

}  // namespace

void IdRequests::send(IdRequest& request) {
  if (free_numbers_.empty()) {
    free_numbers_.push_back(static_cast<std::uint32_t>(awaiting_.size()));
    awaiting_.push_back(nullptr);
  }
  ResolveMessage message;
  message.request = free_numbers_.back();
  message.table =
      static_cast<std::uint32_t>(channel_.node.tables.number_of(*request.operation->id_call->table));
  message.count = static_cast<std::uint32_t>(request.ids.size());
  free_numbers_.pop_back();
  awaiting_[message.request] = &request;
  channel_.outbox.append(request.to, message, {as_words(request.ids)});
}

void IdRequests::on_resolve(NodeId from, const ResolveMessage& message, Reader& reader) {
  const Tables& tables = channel_.node.tables;
  if (message.table >= tables.size() || tables[message.table].ids() == nullptr)
    throw ProtocolError(described(from) + "requests rows of table " + std::to_string(message.table) +
                        ", which has no ids");
  if (message.count == 0 || message.count > kMaxIdsOfMessage)
    throw ProtocolError(described(from) + "requests the rows of " + std::to_string(message.count) + " ids");
  read_numbers(reader, message.count, ids_);
  for (const std::int64_t id : ids_) {
    if (channel_.node.directory.home_by_hash(static_cast<Key>(id)) != channel_.rank)
      throw ProtocolError(described(from) + "requests the row of id " + std::to_string(id) +
                          ", which another node assigns");
  }
  rows_.resize(ids_.size());
  ResolvedMessage answer;
  answer.request = message.request;
  answer_.clear();
  if (assign_rows(channel_.node, tables[message.table], ids_, rows_.data())) {
    answer.count = message.count;
    for (std::size_t i = 0; i < rows_.size(); ++i)
      answer_.push_back(static_cast<std::uint32_t>(decisions().row_of_answer(rows_, i)));
  }
  channel_.outbox.append(from, answer, {as_words(answer_)});
}

void IdRequests::on_resolved(NodeId from, const ResolvedMessage& message, Reader& reader) {
  if (message.request >= awaiting_.size() || awaiting_[message.request] == nullptr ||
      awaiting_[message.request]->to != from)
    throw ProtocolError(described(from) + "answers the request for rows " + std::to_string(message.request) +
                        ", which it did not receive");
  const IdRequest& request = *awaiting_[message.request];
  Operation& operation = *request.operation;
  const Table& table = *operation.id_call->table;
  if (message.count != 0 && message.count != request.ids.size())
    throw ProtocolError(described(from) + "answers " + std::to_string(message.count) + " of " +
                        std::to_string(request.ids.size()) + " ids");
  read_numbers(reader, message.count, answer_);
  const RowRange share = share_of(table.spec().rows, channel_.node.settings.nodes, from);
  for (const std::uint32_t row : answer_) {
    if (!share.contains(row))
      throw ProtocolError(described(from) + "assigns row " + std::to_string(row) + " of table '" +
                          table.spec().name + "', which another node assigns");
  }
  if (message.count == 0) {
    operation.id_call->full.store(from);
  } else {
    learn_rows(table, request.ids, answer_.data());
  }
  awaiting_[message.request] = nullptr;
  free_numbers_.push_back(message.request);
  operation.finish();
}

}  // namespace adaps
