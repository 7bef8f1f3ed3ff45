// Functions of keys and message sizes only, for programs that estimate the cost of a policy.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <utility>

#include "protocol/message.h"
#include "register.h"
#include "store/directory.h"

namespace adaps::bindings {

namespace py = pybind11;

namespace {

constexpr std::pair<MessageType, std::size_t> kMessageBytes[] = {
    {MessageType::kRequest, sizeof(RequestMessage)}, {MessageType::kIntent, sizeof(IntentMessage)},
    {MessageType::kAnswer, sizeof(AnswerMessage)},   {MessageType::kSetup, sizeof(SetupMessage)},
    {MessageType::kRefresh, sizeof(RefreshMessage)}, {MessageType::kDelta, sizeof(DeltaMessage)},
    {MessageType::kAck, sizeof(AckMessage)},         {MessageType::kDrop, sizeof(DeltaMessage)},
    {MessageType::kDropAck, sizeof(AckMessage)},     {MessageType::kTransfer, sizeof(TransferMessage)},
    {MessageType::kNews, sizeof(NewsMessage)},
};

py::array_t<std::int64_t> homes_by_hash(Key first_key, std::uint64_t keys, NodeId nodes) {
  const Directory directory(nodes, 1);
  py::array_t<std::int64_t> homes(static_cast<py::ssize_t>(keys));
  auto home = homes.mutable_unchecked<1>();
  for (std::uint64_t i = 0; i < keys; ++i)
    home(static_cast<py::ssize_t>(i)) = directory.home_by_hash(first_key + i);
  return homes;
}

constexpr char kHomesByHash[] =
    R"(Return the home nodes of consecutive keys whose homes are determined by a hash.

Parameters
----------
first_key : int
    First key.
keys : int
    Number of keys.
nodes : int
    Number of nodes of the cluster.

Returns
-------
int64 array of shape ``(keys,)``
    Rank of each key's home node.)";

}  // namespace

void register_layout(py::module_& module) {
  py::dict bytes;
  for (const auto& [type, size] : kMessageBytes) bytes[name_of(type)] = size;
  bytes["gradient"] = sizeof(GradientHeader);
  module.attr("MESSAGE_BYTES") = bytes;
  module.def("homes_by_hash", &homes_by_hash, py::arg("first_key"), py::arg("keys"), py::arg("nodes"),
             kHomesByHash);
}

}  // namespace adaps::bindings
