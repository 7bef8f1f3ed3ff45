// Python bindings of the neighbor sampler. They take and return NumPy arrays without copies, and release the
// GIL while sampling.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "neighbor_sampler.h"

namespace py = pybind11;

namespace sampler {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;

template <typename T>
std::span<const T> span_of(const Array<T>& array, const char* name) {
  if (array.ndim() != 1) {
    throw std::invalid_argument(std::string(name) + " must have one dimension, not " +
                                std::to_string(array.ndim()));
  }
  return {array.data(), static_cast<std::size_t>(array.size())};
}

// Subgraphs whose arrays are no longer used in Python. Their memory is reused, because new pages from the
// kernel would take a third of the sampling time.
class Pool {
 public:
  std::unique_ptr<Subgraph> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Subgraph>();
    auto subgraph = std::move(idle_.back());
    idle_.pop_back();
    return subgraph;
  }

  void give_back(std::unique_ptr<Subgraph> subgraph) {
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMost) idle_.push_back(std::move(subgraph));
  }

 private:
  static constexpr std::size_t kMost = 8;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Subgraph>> idle_;  // guarded by mutex_
};

// The common owner of one subgraph's arrays. It may outlive the graph.
struct Loan {
  std::shared_ptr<Pool> pool;
  std::unique_ptr<Subgraph> subgraph;

  ~Loan() { pool->give_back(std::move(subgraph)); }
};

py::array_t<std::int64_t> to_numpy(const Buffer<std::int64_t>& buffer, const py::capsule& owner) {
  if (buffer.size() == 0) return py::array_t<std::int64_t>(0);
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(buffer.size()), buffer.data(), owner);
}

// A graph that keeps its arrays alive while they are sampled.
class Graph {
 public:
  Graph(Array<std::int64_t> indptr, Array<Node> indices)
      : indptr_(std::move(indptr)),
        indices_(std::move(indices)),
        sampler_(span_of(indptr_, "indptr"), span_of(indices_, "indices")) {}

  py::tuple sample(const Array<std::int64_t>& seeds, const std::vector<std::int64_t>& fanouts,
                   std::uint64_t stream) const {
    const auto view = span_of(seeds, "seeds");
    auto loan = std::make_unique<Loan>(pool_, pool_->take());
    const Subgraph& out = *loan->subgraph;
    {
      const py::gil_scoped_release release;
      sampler_.sample(view, fanouts, stream, *loan->subgraph);
    }
    const py::capsule owner(loan.get(), [](void* memory) { delete static_cast<Loan*>(memory); });
    loan.release();
    return py::make_tuple(to_numpy(out.nodes, owner), to_numpy(out.row, owner), to_numpy(out.col, owner),
                          out.nodes_per_hop, out.edges_per_hop);
  }

  std::int64_t num_nodes() const { return sampler_.num_nodes(); }
  std::int64_t num_arcs() const { return sampler_.num_arcs(); }

 private:
  Array<std::int64_t> indptr_;
  Array<Node> indices_;
  NeighborSampler sampler_;
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

}  // namespace
}  // namespace sampler

PYBIND11_MODULE(_sampler, module) {
  using sampler::Graph;
  module.doc() = "Uniform neighbour sampling without replacement.";
  py::class_<Graph>(module, "NeighborSampler")
      .def(py::init<sampler::Array<std::int64_t>, sampler::Array<sampler::Node>>(),
           py::arg("indptr").noconvert(), py::arg("indices").noconvert())
      .def("sample", &Graph::sample, py::arg("seeds").noconvert(), py::arg("fanouts"), py::arg("stream"))
      .def_property_readonly("num_nodes", &Graph::num_nodes)
      .def_property_readonly("num_arcs", &Graph::num_arcs);
}
