// Rows that are rounded at every write keep their mean. The test also shows that it detects mutants whose
// rounding does not keep the mean.
#include <cmath>
#include <span>
#include <vector>

#include "check.h"
#include "node/node_state.h"
#include "protocol/local_access.h"
#include "simulation/mutants.h"

using namespace adaps;

namespace {

constexpr std::size_t kFloats = 4096;
constexpr int kPushes = 200;
// Distance between two neighbouring numbers of bfloat16 between 1 and 2. Each push adds an eighth of this
// distance.
constexpr double kApart = 0x1p-7;
constexpr float kPushed = 0.001F;

struct Row {
  double mean = 0.0;
  double deviation = 0.0;  // of one float from the mean
};

void call(NodeState& node, OperationKind kind, std::vector<float>& row) {
  const Key key = 0;
  Operation operation(kind, 0, node.workers[0]->completion);
  operation.in = row.data();
  operation.out = row.data();
  start(node, operation, std::span<const Key>(&key, 1));
  REQUIRE(operation.done.load());
}

// Returns a row of ones after many pushes that are small relative to 1.
Row after_pushes(Mutant mutant) {
  TableSpec table{.name = "t", .rows = 1, .length = kFloats, .init = {.a = 1.0F}, .dtype = Dtype::kBfloat16};
  NodeState node({table}, Settings{});
  std::vector<float> floats(kFloats, kPushed);
  select_mutant(mutant);
  for (int i = 0; i < kPushes; ++i) call(node, OperationKind::kPush, floats);
  select_mutant(Mutant::none);
  call(node, OperationKind::kPull, floats);
  Row row;
  for (const float x : floats) row.mean += static_cast<double>(x) / kFloats;
  for (const float x : floats) row.deviation += std::pow(static_cast<double>(x) - row.mean, 2) / kFloats;
  row.deviation = std::sqrt(row.deviation);
  return row;
}

// Whether each push raised a float by one step or not at all, with a probability that keeps the mean.
bool is_fair(const Row& row) {
  const double pushed = kPushed;
  const double raised = pushed / kApart;
  const double deviation = kApart * std::sqrt(kPushes * raised * (1.0 - raised));
  const double off = std::abs(row.mean - (1.0 + kPushes * pushed));
  std::cout << "  mean off by " << off << ", deviation " << row.deviation << " of " << deviation << "\n";
  return off < 5.0 * deviation / std::sqrt(kFloats) && std::abs(row.deviation / deviation - 1.0) < 0.1;
}

}  // namespace

TEST(small_pushes_are_not_lost_in_the_mean) { CHECK(is_fair(after_pushes(Mutant::none))); }

TEST(rounding_to_nearest_is_detected) {
  const Row row = after_pushes(Mutant::rounds_to_nearest);
  CHECK(!is_fair(row));
  CHECK_EQ(row.mean, 1.0);  // no push has had an effect
}

TEST(repeated_random_numbers_are_detected) { CHECK(!is_fair(after_pushes(Mutant::rounds_alike_each_time))); }
