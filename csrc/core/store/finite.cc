#include "store/finite.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace adaps {

namespace {

// All exponent bits of NaN and infinity are set.
constexpr std::uint32_t kExponent = 0x7f800000U;
bool is_finite(float x) { return (std::bit_cast<std::uint32_t>(x) & kExponent) != kExponent; }

}  // namespace

bool all_finite(const float* values, std::size_t count) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i) found |= is_finite(values[i]) ? 0U : 1U;
  return found == 0;
}

std::string describe_nonfinite(const Tables& tables, std::span<const Key> keys, const float* values) {
  const Table* table = nullptr;
  for (const Key key : keys) {
    const std::size_t length = tables.find(key, table).length();
    const float* bad = std::find_if_not(values, values + length, is_finite);
    if (bad != values + length) {
      const char* what = std::isnan(*bad) ? "nan" : *bad > 0 ? "inf" : "-inf";
      return std::string(what) + " in the gradient of row " + std::to_string(key - table->first_key()) +
             " of table '" + table->spec().name + "'";
    }
    values += length;
  }
  return {};
}

FiniteRows finite_rows(const Tables& tables, std::span<const Key> keys, const float* values) {
  FiniteRows rows;
  const Table* table = nullptr;
  for (const Key key : keys) {
    const std::size_t length = tables.find(key, table).length();
    if (all_finite(values, length)) {
      rows.keys.push_back(key);
      rows.values.insert(rows.values.end(), values, values + length);
    }
    values += length;
  }
  return rows;
}

}  // namespace adaps
