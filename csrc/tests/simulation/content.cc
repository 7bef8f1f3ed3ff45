#include "simulation/content.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/random.h"
#include "simulation/text.h"
#include "simulation/violation.h"

namespace adaps::simulation {

namespace {
constexpr std::uint32_t kLimit = 1U << 24;

// A float of a set's number has as many bits as a float that counts pushes.
unsigned bits_of(const Coding& coding) { return 2 * static_cast<unsigned>(coding.pushes_per_float); }

}  // namespace

void write_set(std::uint32_t set, std::span<float> value, const Coding& coding) {
  std::fill(value.begin(), value.end(), 0.0F);
  for (std::size_t i = 0; i < coding.set_floats; ++i, set >>= bits_of(coding))
    value[i] = static_cast<float>(set & ((1U << bits_of(coding)) - 1));
}

void write_push(std::uint32_t push, std::span<float> delta, const Coding& coding) {
  std::fill(delta.begin(), delta.end(), 0.0F);
  delta[coding.set_floats + push / coding.pushes_per_float] =
      static_cast<float>(1U << (2 * (push % coding.pushes_per_float)));
}

void write_rough(std::uint32_t number, std::span<float> row) {
  Random random(number, 0x726f756768);
  for (float& x : row) x = static_cast<float>(random.uniform(-1.0, 1.0));
}

Content read_content(std::span<const float> value, const Coding& coding) {
  for (const float x : value) {
    if (std::isnan(x)) throw Violation("value: a row was not written");
    if (x < 0.0F || x >= static_cast<float>(kLimit) || x != std::floor(x)) {
      throw Violation("value: ", x, " is no sum of pushes");
    }
  }
  Content content;
  for (std::size_t i = coding.set_floats; i-- > 0;)
    content.set = (content.set << bits_of(coding)) + static_cast<std::uint32_t>(value[i]);
  for (std::size_t i = coding.set_floats; i < value.size(); ++i) {
    auto counts = static_cast<std::uint32_t>(value[i]);
    for (std::size_t push = (i - coding.set_floats) * coding.pushes_per_float; counts != 0;
         ++push, counts >>= 2) {
      if ((counts & 3) > 1) {
        throw Violation("value: push ", push, " counted ", counts & 3, " times");
      }
      if ((counts & 3) == 0) continue;
      if (push >= kMaxPushes) throw Violation("value: push ", push, " does not exist");
      content.pushes.set(push);
    }
  }
  return content;
}

StateContent read_state(std::span<const float> state, std::span<const float> initial, const Coding& coding) {
  if (std::equal(state.begin(), state.end(), initial.begin(), initial.end())) return {};
  std::vector<float> floats(state.begin(), state.end());
  const bool is_gradient = std::any_of(floats.begin(), floats.end(), [](float x) { return x < 0.0F; });
  if (is_gradient) {
    for (float& x : floats) x = -x;
  }
  const Content content = read_content(floats, coding);
  const bool is_whole = is_gradient ? content.set == 0 && content.pushes.count() == 1 : content.pushes.none();
  if (!is_whole || (!is_gradient && content.set == 0))
    throw Violation("state: ", to_string(content), " is neither a set_state nor a gradient");
  if (!is_gradient) return {false, content.set};
  StateContent gradient{true};
  while (!content.pushes[gradient.number]) ++gradient.number;
  return gradient;
}

std::string to_string(const StateContent& content) {
  if (content == StateContent{}) return "{initial state}";
  return joined(content.is_gradient ? "{gradient " : "{set_state ", content.number, "}");
}

std::string to_string(const Content& content) {
  std::string text = content.set == 0 ? "{" : joined("{set ", content.set);
  for (std::size_t push = 0; push < kMaxPushes; ++push) {
    if (!content.pushes[push]) continue;
    if (text.size() > 1) text += " ";
    text += '+';
    text += std::to_string(push);
  }
  return text + "}";
}

}  // namespace adaps::simulation
