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
  py::native_enum<RuleKind>(module, "RuleKind", "enum.Enum", "How gradients change values.")
      .value("SGD", RuleKind::kSgd)
      .value("MOMENTUM", RuleKind::kMomentum)
      .value("ADAGRAD", RuleKind::kAdagrad)
      .value("ROW_ADAGRAD", RuleKind::kRowAdagrad)
      .value("ADAM", RuleKind::kAdam)
      .value("SPARSE_ADAM", RuleKind::kSparseAdam)
      .value("RMSPROP", RuleKind::kRmsprop)
      .finalize();

  py::native_enum<InitKind>(module, "InitKind", "enum.Enum", "How values begin.")
      .value("CONSTANT", InitKind::kConstant)
      .value("UNIFORM", InitKind::kUniform)
      .value("NORMAL", InitKind::kNormal)
      .finalize();

  py::native_enum<Wire>(module, "Wire", "enum.Enum", "What values and changes are on the network.")
      .value("FLOAT32", Wire::kFloat32)
      .value("BFLOAT16", Wire::kBfloat16)
      .value("FLOAT16", Wire::kFloat16)
      .value("INT8", Wire::kInt8)
      .finalize();

  py::native_enum<Dtype>(module, "Dtype", "enum.Enum", "What values are in memory.")
      .value("FLOAT32", Dtype::kFloat32)
      .value("BFLOAT16", Dtype::kBfloat16)
      .finalize();

  module.attr("MAX_KEYS") = kMaxKeys;
  module.attr("MAX_ROW_FLOATS") = kMaxRowFloats;
  module.attr("MAX_WORKERS") = kMaxWorkers;
  module.attr("MAX_CHANNELS") = kMaxChannels;

  py::class_<UpdateRule>(module, "UpdateRule", "An optimizer's kind and hyperparameters.")
      .def(py::init(&make_rule), py::arg("kind"))
      .def_property_readonly(
          "moves_idle_rows", &UpdateRule::moves_idle_rows,
          "Whether rows change in steps in which they have no gradient, where those are numbered.");

  py::class_<Initializer>(module, "Initializer", "A distribution of initial values.")
      .def(py::init([](InitKind kind, float a, float b, std::uint64_t seed) {
             return Initializer{kind, a, b, seed};
           }),
           py::arg("kind"), py::kw_only(), py::arg("a"), py::arg("b") = 0.0F, py::arg("seed") = 0);

  py::native_enum<DistributionKind>(module, "DistributionKind", "enum.Enum", "How rows of samples are drawn.")
      .value("UNIFORM", DistributionKind::kUniform)
      .value("LOG_UNIFORM", DistributionKind::kLogUniform)
      .value("WEIGHTED", DistributionKind::kWeighted)
      .finalize();

  py::native_enum<SamplingScheme>(module, "SamplingScheme", "enum.Enum", "What a sample may be drawn from.")
      .value("NAIVE", SamplingScheme::kNaive)
      .value("PRELOC", SamplingScheme::kPreloc)
      .value("POOL", SamplingScheme::kPool)
      .value("LOCAL", SamplingScheme::kLocal)
      .finalize();

  py::class_<Distribution, std::shared_ptr<Distribution>>(module, "Distribution",
                                                          "How often each row of a table is drawn.")
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
          py::arg("weights"), "In proportion to its weight.")
      .def_property_readonly("rows", &Distribution::rows, "Number of rows.")
      .def_property_readonly("possible", &Distribution::possible, "Rows that can be drawn.")
      .def("probability", &Distribution::probability, py::arg("row"), "Of one row.");

  py::class_<SamplingSpec>(module, "SamplingSpec", "How samples of a table's rows are drawn.")
      .def(py::init([](std::shared_ptr<Distribution> distribution, SamplingScheme scheme, bool replacement,
                       std::uint64_t seed, std::uint64_t pool_size, std::uint64_t reuse) {
             return SamplingSpec{std::move(distribution), scheme, replacement, seed, pool_size, reuse};
           }),
           py::arg("distribution"), py::kw_only(), py::arg("scheme"), py::arg("replacement"), py::arg("seed"),
           py::arg("pool_size"), py::arg("reuse"));

  py::class_<TableSpec>(module, "TableSpec", "A table before it has its place in a node.")
      .def_property_readonly(
          "width", [](const TableSpec& spec) { return spec.length + spec.rule.state_length(spec.length); },
          "Floats of a row with its optimizer's state.")
      .def_readwrite("sampling", &TableSpec::sampling, "How samples of its rows are drawn; none without it.")
      .def_readwrite("dtype", &TableSpec::dtype, "What its values are in memory.")
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
          "With ranges of rows that are managed alike: where each ends, the technique, or none to leave it "
          "to the node, the wire, and at least how many clocks are between two exchanges of changes, or 0; "
          "and with ranges of rows by their home: where each ends, the node, which is negative for homes by "
          "hash, and the number of the table whose keys are hashed, which is negative for its own.");
}

}  // namespace adaps::bindings
