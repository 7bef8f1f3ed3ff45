// Encoding and decoding of floats on lossy wires.
#include "store/codec.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "check.h"
#include "common/random.h"

using namespace adaps;

namespace {

constexpr Wire kLossy[] = {Wire::kBfloat16, Wire::kFloat16, Wire::kInt8};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Carried {
  bool whole;
  std::vector<float> floats;
};

// Encodes and decodes. Additional words before and after the encoded words must not change.
Carried carried(Wire wire, const std::vector<float>& in) {
  const std::size_t words = encoded_words(wire, in.size());
  std::vector<float> buffer(words + 2, 7.5F);
  Carried result{encode(wire, in, buffer.data() + 1), std::vector<float>(in.size() + 1, 7.5F)};
  CHECK_EQ(buffer.front(), 7.5F);
  CHECK_EQ(buffer.back(), 7.5F);
  if (!result.whole) return result;
  decode(wire, std::span(buffer).subspan(1, words), std::span(result.floats).first(in.size()));
  CHECK_EQ(result.floats.back(), 7.5F);
  result.floats.pop_back();
  return result;
}

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

float largest_of(const std::vector<float>& row) {
  float largest = 0.0F;
  for (const float x : row) largest = std::max(largest, std::abs(x));
  return largest;
}

}  // namespace

TEST(encodings_have_the_promised_size) {
  CHECK_EQ(encoded_words(Wire::kFloat32, 17), std::size_t{17});
  CHECK_EQ(encoded_words(Wire::kBfloat16, 17), std::size_t{9});
  CHECK_EQ(encoded_words(Wire::kFloat16, 16), std::size_t{8});
  CHECK_EQ(encoded_words(Wire::kInt8, 16), std::size_t{5});
  CHECK_EQ(encoded_words(Wire::kInt8, 17), std::size_t{6});
  for (const Wire wire : kLossy) {
    CHECK_EQ(encoded_words(wire, 0), std::size_t{0});
    CHECK(carried(wire, {}).whole);
  }
}

TEST(float32_changes_no_bit) {
  const std::vector<float> row{1.1F, -0.0F, kInfinity, std::numeric_limits<float>::quiet_NaN(), 1e-45F};
  const Carried result = carried(Wire::kFloat32, row);
  CHECK(result.whole);
  for (std::size_t i = 0; i < row.size(); ++i) CHECK(same_bits(result.floats[i], row[i]));
}

TEST(errors_stay_within_their_bound) {
  Random random(3, 1);
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> row(1 + random.below(40));
    const double magnitude = std::exp(random.uniform(-9.0, 9.0));
    for (float& x : row) x = static_cast<float>(random.uniform(-magnitude, magnitude));
    for (const Wire wire : kLossy) {
      const Carried result = carried(wire, row);
      REQUIRE(result.whole);
      for (std::size_t i = 0; i < row.size(); ++i) {
        const float largest = wire == Wire::kInt8 ? largest_of(row) : std::abs(row[i]);
        const float rest = row[i] - result.floats[i];
        CHECK(std::abs(rest) <= rounding_bound(wire, largest));
        // The decoded value plus the rest is exactly the original value.
        CHECK(same_bits(rest + result.floats[i], row[i]));
        CHECK_EQ(static_cast<double>(rest),
                 static_cast<double>(row[i]) - static_cast<double>(result.floats[i]));
      }
    }
  }
}

TEST(the_error_bound_is_tight) {
  Random random(4, 1);
  for (const Wire wire : kLossy) {
    float worst = 0.0F;
    for (int round = 0; round < 20000; ++round) {
      const std::vector<float> row{static_cast<float>(random.uniform(1.0, 2.0)),
                                   static_cast<float>(random.unit())};
      const Carried result = carried(wire, row);
      const std::size_t i = wire == Wire::kInt8 ? 1 : 0;
      worst = std::max(worst, std::abs(row[i] - result.floats[i]) / rounding_bound(wire, row[0]));
    }
    CHECK(worst > 0.5F);
    CHECK(worst <= 1.0F);
  }
}

TEST(small_integers_are_exact) {
  for (const Wire wire : kLossy) {
    for (int largest = 0; largest <= 127; ++largest) {
      std::vector<float> row;
      for (int x = -largest; x <= largest; ++x) row.push_back(static_cast<float>(x));
      CHECK(carried(wire, row).floats == row);
      for (float& x : row) x *= 0x1p-20F;
      if (wire != Wire::kFloat16) CHECK(carried(wire, row).floats == row);
    }
  }
}

TEST(decoded_floats_are_encoded_without_loss) {
  Random random(5, 1);
  for (int round = 0; round < 1000; ++round) {
    std::vector<float> row(1 + random.below(9));
    for (float& x : row) x = static_cast<float>(random.uniform(-3.0, 3.0));
    for (const Wire wire : kLossy) {
      const std::vector<float> once = carried(wire, row).floats;
      CHECK(carried(wire, once).floats == once);
    }
  }
}

TEST(halves_round_to_the_nearest_even) {
  const auto one = [](Wire wire, float x) { return carried(wire, {x}).floats[0]; };
  CHECK_EQ(one(Wire::kBfloat16, 1.0F + 0x1p-8F), 1.0F);
  CHECK_EQ(one(Wire::kBfloat16, 1.0F + 0x1.02p-8F), 1.0F + 0x1p-7F);
  CHECK_EQ(one(Wire::kBfloat16, 1.0F + 0x3p-8F), 1.0F + 0x1p-6F);
  CHECK_EQ(one(Wire::kFloat16, 1.0F + 0x1p-11F), 1.0F);
  CHECK_EQ(one(Wire::kFloat16, -1.0F - 0x3p-11F), -1.0F - 0x1p-9F);
  CHECK_EQ(one(Wire::kFloat16, 65504.0F), 65504.0F);
  CHECK_EQ(one(Wire::kFloat16, 65519.0F), 65504.0F);
  CHECK_EQ(one(Wire::kFloat16, 0x1p-14F), 0x1p-14F);
  CHECK_EQ(one(Wire::kFloat16, 0x1p-14F - 0x1p-26F),
           0x1p-14F);  // the largest subnormal number rounds to a normal number
}

TEST(zeros_and_the_smallest_numbers) {
  for (const Wire wire : kLossy) {
    CHECK(carried(wire, {0.0F, 0.0F, 0.0F}).floats == std::vector<float>(3, 0.0F));
  }
  for (const Wire wire : {Wire::kBfloat16, Wire::kFloat16}) {
    CHECK(same_bits(carried(wire, {-0.0F}).floats[0], -0.0F));
    CHECK(same_bits(carried(wire, {0.0F}).floats[0], 0.0F));
  }
  CHECK_EQ(carried(Wire::kInt8, {-0.0F, 1.0F}).floats[0], 0.0F);
  // Subnormal numbers.
  CHECK_EQ(carried(Wire::kBfloat16, {0x1p-133F}).floats[0], 0x1p-133F);
  CHECK_EQ(carried(Wire::kBfloat16, {0x1p-149F}).floats[0], 0.0F);
  CHECK_EQ(carried(Wire::kFloat16, {0x3p-24F}).floats[0], 0x3p-24F);
  CHECK_EQ(carried(Wire::kFloat16, {0x1p-25F}).floats[0], 0.0F);
  CHECK(same_bits(carried(Wire::kFloat16, {-0x1.8p-25F}).floats[0], -0x1p-24F));
  // A float that is tiny relative to another float becomes 0. If it is the only one, int8 has no scale for
  // it.
  CHECK_EQ(carried(Wire::kInt8, {1e-45F, 1.0F}).floats[0], 0.0F);
  CHECK(!carried(Wire::kInt8, {1e-45F, 0.0F}).whole);
  CHECK(carried(Wire::kInt8, {0x1p-119F}).whole);
  CHECK_EQ(carried(Wire::kInt8, {0x1p-119F}).floats[0], 0x1p-119F);
}

TEST(floats_that_no_wire_represents_are_reported) {
  for (const Wire wire : kLossy) {
    for (const float x : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      CHECK(!carried(wire, {1.0F, x, 2.0F}).whole);
    }
  }
  const float largest = std::numeric_limits<float>::max();
  CHECK(!carried(Wire::kBfloat16, {largest}).whole);
  CHECK(carried(Wire::kBfloat16, {0x1.fep127F}).whole);
  CHECK(!carried(Wire::kFloat16, {65520.0F}).whole);
  CHECK(!carried(Wire::kInt8, {largest}).whole);
  CHECK(carried(Wire::kInt8, {-0x1.fffffep126F}).whole);
  CHECK(std::isfinite(carried(Wire::kInt8, {-0x1.fffffep126F}).floats[0]));
}

// The probability of rounding up is such that the mean is kept. Floats are only rounded to one of the two
// nearest numbers of bfloat16, for both signs.
TEST(rounding_at_random_keeps_the_mean) {
  constexpr std::uint64_t kSeeds = 2000;
  constexpr std::size_t kLength = 9;  // one mix of the seed serves four floats
  const float numbers[] = {1.0F + 0x1p-9F, 1.0F + 0x3p-9F,   -1.5F - 0x1p-12F,
                           3.14159F,       -0x1.234567p-90F, 0x1.8p-135F};
  for (const float x : numbers) {
    const float below = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffff0000U);
    const float above = std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) & 0xffff0000U) + 0x10000U);
    const double share = static_cast<double>(std::bit_cast<std::uint32_t>(x) & 0xffffU) / 65536.0;
    double raised = 0.0;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      std::vector<float> row(kLength, x);
      round_at_random(row, mix(seed));
      for (const float rounded : row) {
        CHECK(rounded == below || rounded == above);
        raised += rounded == above ? 1.0 : 0.0;
      }
    }
    const double count = static_cast<double>(kSeeds * kLength);
    CHECK(std::abs(raised / count - share) < 5.0 * std::sqrt(share * (1.0 - share) / count));
  }
}

TEST(rounding_at_random_keeps_numbers_of_bfloat16) {
  const float largest = std::bit_cast<float>(0x7f7f0000U);
  const std::vector<float> row{0.0F,      -0.0F,      1.0F,    -127.0F, 0x1p-133F,
                               kInfinity, -kInfinity, largest, -largest};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::vector<float> rounded = row;
    round_at_random(rounded, seed);
    for (std::size_t i = 0; i < row.size(); ++i) CHECK(same_bits(rounded[i], row[i]));
    // A NaN whose only mantissa bit would be cut off, and a number out of range.
    std::vector<float> others{std::bit_cast<float>(0x7f800001U), std::numeric_limits<float>::max()};
    round_at_random(others, seed);
    CHECK(std::isnan(others[0]));
    CHECK_EQ(others[1], largest);
    std::vector<float> words(encoded_words(Wire::kBfloat16, row.size()), 7.5F), back(row.size());
    cut_to_bfloat16(rounded, words.data());
    decode(Wire::kBfloat16, words, back);
    for (std::size_t i = 0; i < row.size(); ++i) CHECK(same_bits(back[i], row[i]));
  }
}

// A peer can send arbitrary bytes. They decode to floats, and no byte after them is read.
TEST(any_words_are_decoded) {
  Random random(6, 1);
  for (const Wire wire : kLossy) {
    for (std::size_t length = 1; length < 20; ++length) {
      std::vector<float> words(encoded_words(wire, length));
      for (float& word : words)
        word = std::bit_cast<float>(static_cast<std::uint32_t>(random.below(1ULL << 32)));
      std::vector<float> out(length);
      decode(wire, words, out);
      if (wire == Wire::kFloat16) {
        for (const float x : out) CHECK(std::isfinite(x));
      }
    }
  }
}
