// The description of a table. The Python package creates it from its own, validated classes.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "keywords.h"
#include "protocol/message.h"
#include "register.h"
#include "store/table.h"

namespace adaps::bindings {

namespace py = pybind11;

namespace {

UpdateRule make_rule(RuleKind kind, const py::kwargs& given) {
  Keywords keywords(given);
  UpdateRule rule{.kind = kind, .lr = keywords.take<float>("lr")};
  keywords.take_if_given("momentum", rule.momentum);
  keywords.take_if_given("eps", rule.eps);
  keywords.take_if_given("beta1", rule.beta1);
  keywords.take_if_given("beta2", rule.beta2);
  keywords.take_if_given("initial_accumulator", rule.initial_accumulator);
  keywords.take_if_given("weight_decay", rule.weight_decay);
  keywords.take_if_given("decoupled", rule.decoupled);
  keywords.take_if_given("nesterov", rule.nesterov);
  keywords.take_if_given("centered", rule.centered);
  keywords.require_none_left();
  return rule;
}

}  // namespace

void register_table_spec(py::module_& module) {
  py::native_enum<RuleKind>(module, "RuleKind", "enum.Enum", "Kind of an optimizer's update rule.")
      .value("SGD", RuleKind::kSgd)
      .value("MOMENTUM", RuleKind::kMomentum)
      .value("ADAGRAD", RuleKind::kAdagrad)
      .value("ROW_ADAGRAD", RuleKind::kRowAdagrad)
      .value("ADAM", RuleKind::kAdam)
      .value("SPARSE_ADAM", RuleKind::kSparseAdam)
      .value("RMSPROP", RuleKind::kRmsprop)
      .finalize();

  py::native_enum<InitKind>(module, "InitKind", "enum.Enum", "Distribution of initial values.")
      .value("CONSTANT", InitKind::kConstant)
      .value("UNIFORM", InitKind::kUniform)
      .value("NORMAL", InitKind::kNormal)
      .finalize();

  py::native_enum<Wire>(module, "Wire", "enum.Enum", "Encoding of values and changes on the network.")
      .value("FLOAT32", Wire::kFloat32)
      .value("BFLOAT16", Wire::kBfloat16)
      .value("FLOAT16", Wire::kFloat16)
      .value("INT8", Wire::kInt8)
      .finalize();

  py::native_enum<Dtype>(module, "Dtype", "enum.Enum", "Encoding of values in memory.")
      .value("FLOAT32", Dtype::kFloat32)
      .value("BFLOAT16", Dtype::kBfloat16)
      .finalize();

  py::native_enum<Evict>(module, "Evict", "enum.Enum", "Order in which rows with ids are retired.")
      .value("NONE", Evict::kNone)
      .value("INTENT", Evict::kIntent)
      .value("LRU", Evict::kLru)
      .value("LFU", Evict::kLfu)
      .value("TTL", Evict::kTtl)
      .finalize();

  module.attr("MAX_KEYS") = kMaxKeys;
  module.attr("MAX_CAPACITY") = kMaxRowsWithIds;
  module.attr("MAX_ADMIT_SEEN") = SeenSketch::kMost + 1;
  module.attr("MAX_TTL") = kMaxTtl;
  module.attr("MAX_ROW_FLOATS") = kMaxRowFloats;
  module.attr("MAX_WORKERS") = kMaxWorkers;
  module.attr("MAX_CHANNELS") = kMaxChannels;

  py::class_<UpdateRule>(module, "UpdateRule", "An optimizer's kind and hyperparameters.")
      .def(py::init(&make_rule), py::arg("kind"))
      .def_property_readonly("moves_idle_rows", &UpdateRule::moves_idle_rows,
                             "Whether steps without a gradient change a row, if steps are numbered.");

  py::class_<Initializer>(module, "Initializer", "A distribution of initial values.")
      .def(py::init([](InitKind kind, float a, float b, std::uint64_t seed) {
             return Initializer{kind, a, b, seed};
           }),
           py::arg("kind"), py::kw_only(), py::arg("a"), py::arg("b") = 0.0F, py::arg("seed") = 0)
      .def(
          "fill",
          [](const Initializer& init, const py::object& ids, const py::object& rows) {
            const Array given = Array::of_int64(ids, "ids");
            const Array out = Array::of_float32(rows, "rows", Access::kWrite);
            const std::size_t length = given.size() == 0 ? 0 : out.size() / given.size();
            if (length * given.size() != out.size())
              throw py::value_error("rows holds " + std::to_string(out.size()) + " values for " +
                                    std::to_string(given.size()) + " ids: it needs equally many for each");
            const py::gil_scoped_release release;
            for (std::size_t i = 0; i < given.size(); ++i)
              init.fill(given.keys()[i], out.floats() + i * length, length);
          },
          py::arg("ids"), py::arg("rows"),
          "Write the initial values of the rows with these ids, int64 of any value, to float32 `rows`.");

  py::native_enum<DistributionKind>(module, "DistributionKind", "enum.Enum", "Distribution of sampled rows.")
      .value("UNIFORM", DistributionKind::kUniform)
      .value("LOG_UNIFORM", DistributionKind::kLogUniform)
      .value("WEIGHTED", DistributionKind::kWeighted)
      .finalize();

  py::native_enum<SamplingScheme>(module, "SamplingScheme", "enum.Enum", "Method to draw samples.")
      .value("NAIVE", SamplingScheme::kNaive)
      .value("PRELOC", SamplingScheme::kPreloc)
      .value("POOL", SamplingScheme::kPool)
      .value("LOCAL", SamplingScheme::kLocal)
      .finalize();

  py::class_<Distribution, std::shared_ptr<Distribution>>(module, "Distribution",
                                                          "Probability distribution over a table's rows.")
      .def(py::init([](DistributionKind kind, std::uint64_t rows) {
             return std::make_shared<Distribution>(kind == DistributionKind::kUniform
                                                       ? Distribution::uniform(rows)
                                                       : Distribution::log_uniform(rows));
           }),
           py::arg("kind"), py::arg("rows"))
      .def_static(
          "weighted",
          [](const py::array_t<double, py::array::c_style>& weights) {
            const std::span<const double> given(weights.data(), static_cast<std::size_t>(weights.size()));
            const py::gil_scoped_release release;
            return std::make_shared<Distribution>(Distribution::weighted(given));
          },
          py::arg("weights"), "Draws each row with a probability proportional to its weight.")
      .def_property_readonly("rows", &Distribution::rows, "Number of rows.")
      .def_property_readonly("possible", &Distribution::possible, "Number of rows that can be drawn.")
      .def("probability", &Distribution::probability, py::arg("row"), "Probability of one row.");

  py::class_<SamplingSpec>(module, "SamplingSpec", "Distribution and scheme for samples of a table's rows.")
      .def(py::init([](std::shared_ptr<Distribution> distribution, SamplingScheme scheme, bool replacement,
                       std::uint64_t seed, std::uint64_t pool_size, std::uint64_t reuse) {
             return SamplingSpec{std::move(distribution), scheme, replacement, seed, pool_size, reuse};
           }),
           py::arg("distribution"), py::kw_only(), py::arg("scheme"), py::arg("replacement"), py::arg("seed"),
           py::arg("pool_size"), py::arg("reuse"));

  py::class_<TableSpec>(module, "TableSpec", "The description of a table, from which a node creates it.")
      .def_property_readonly(
          "width", [](const TableSpec& spec) { return spec.length + spec.rule.state_length(spec.length); },
          "Number of floats of a row with its optimizer state.")
      .def_readwrite("sampling", &TableSpec::sampling, "Settings for samples; None if it is not sampled.")
      .def_readwrite("dtype", &TableSpec::dtype, "Encoding of the values in memory.")
      .def_readwrite("has_ids", &TableSpec::has_ids, "Whether rows are assigned to ids at their first use.")
      .def_readwrite("evict", &TableSpec::evict, "Order in which rows with ids are retired.")
      .def_readwrite("ttl", &TableSpec::ttl,
                     "With Evict.TTL, number of clocks after its last use in which a row is not retired.")
      .def_readwrite("admit_seen", &TableSpec::admit_seen,
                     "Number of the request of an id in which it gets a row.")
      .def_readwrite("memory", &TableSpec::memory, "Bytes of rows in memory; 0 for no limit.")
      .def_readwrite("path", &TableSpec::path, "Folder of the file for the rows that do not fit.")
      .def(
          "validate", [](const TableSpec& spec) { validate(spec); }, "Raises ValueError if it is invalid.")
      .def(
          py::init(
              [](std::string name, std::uint64_t rows, std::size_t length, const UpdateRule& rule,
                 const Initializer& init,
                 const std::vector<std::tuple<std::uint64_t, std::optional<Technique>, Wire, Clock>>& managed,
                 const std::vector<std::tuple<std::uint64_t, int, int>>& homes) {
                TableSpec spec{std::move(name), rows, length, rule, init};
                for (const auto& [end, technique, wire, exchange] : managed)
                  spec.managed.push_back({end, {technique, wire, exchange}});
                for (const auto& [end, node, table] : homes)
                  spec.homes.push_back({end, node < 0 ? kHomeByHash : static_cast<NodeId>(node),
                                        table < 0 ? kOwnKey : static_cast<std::uint32_t>(table)});
                validate(spec);
                return spec;
              }),
          py::arg("name"), py::arg("rows"), py::arg("length"), py::arg("rule"), py::arg("init"),
          py::arg("managed"), py::arg("homes") = std::vector<std::tuple<std::uint64_t, int, int>>{},
          "`managed` has ranges of rows with one management: the range's end, the technique (None for the "
          "node's technique), the wire, and the minimum number of clocks between two exchanges of changes "
          "(0 for no minimum). `homes` has ranges of rows with one kind of home: the range's end, the node "
          "(negative if a hash determines the homes), and the index of the table with the hashed keys "
          "(negative for this table).");
}

}  // namespace adaps::bindings
