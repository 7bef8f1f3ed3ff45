// What a table is made from: the Python package builds these from its own, checked classes.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "adaps/message.h"
#include "adaps/table.h"
#include "register.h"

namespace adaps::bindings {

namespace py = pybind11;

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

  module.attr("MAX_KEYS") = kMaxKeys;
  module.attr("MAX_ROW_FLOATS") = kMaxRowFloats;
  module.attr("MAX_WORKERS") = kMaxWorkers;
  module.attr("MAX_CHANNELS") = kMaxChannels;

  py::class_<UpdateRule>(module, "UpdateRule", "An optimizer's kind and hyperparameters.")
      .def(py::init([](RuleKind kind, float lr, float momentum, float eps, float beta1, float beta2,
                       float initial_accumulator, float weight_decay, bool decoupled, bool nesterov,
                       bool centered) {
             return UpdateRule{kind,         lr,        momentum, eps,     beta1, beta2, initial_accumulator,
                               weight_decay, decoupled, nesterov, centered};
           }),
           py::arg("kind"), py::kw_only(), py::arg("lr"), py::arg("momentum") = 0.0F, py::arg("eps") = 1e-10F,
           py::arg("beta1") = 0.9F, py::arg("beta2") = 0.999F, py::arg("initial_accumulator") = 0.0F,
           py::arg("weight_decay") = 0.0F, py::arg("decoupled") = false, py::arg("nesterov") = false,
           py::arg("centered") = false)
      .def_property_readonly(
          "moves_idle_rows", &UpdateRule::moves_idle_rows,
          "Whether rows change in steps in which they have no gradient, where those are numbered.");

  py::class_<Initializer>(module, "Initializer", "A distribution of initial values.")
      .def(py::init([](InitKind kind, float a, float b, std::uint64_t seed) {
             return Initializer{kind, a, b, seed};
           }),
           py::arg("kind"), py::kw_only(), py::arg("a"), py::arg("b") = 0.0F, py::arg("seed") = 0);

  py::class_<TableSpec>(module, "TableSpec", "A table before it has its place in a node.")
      .def(py::init([](std::string name, std::uint64_t rows, std::size_t length, const UpdateRule& rule,
                       const Initializer& init) {
             TableSpec spec{std::move(name), rows, length, rule, init};
             validate(spec);
             return spec;
           }),
           py::arg("name"), py::arg("rows"), py::arg("length"), py::arg("rule"), py::arg("init"));
}

}  // namespace adaps::bindings
