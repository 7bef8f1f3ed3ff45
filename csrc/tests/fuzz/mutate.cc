// Runs a target on its corpus, and on many mutations of the corpus and of the examples. Equal seed, number
// and corpus give equal inputs.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

#include "common/random.h"
#include "target.h"

namespace adaps::fuzz {

// Defaults for targets whose inputs contain no version.
__attribute__((weak)) bool is_current(std::span<const std::byte>) { return true; }
__attribute__((weak)) void renew(Bytes&) {}

}  // namespace adaps::fuzz

// A function of the sanitizers' runtime, if there is one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace adaps::fuzz {

namespace {

std::uint64_t seed = 1;
std::uint64_t current = 0;
bool mutating = false;

void tell_current() {
  char text[160];
  const auto n = static_cast<unsigned long long>(current);
  const auto s = static_cast<unsigned long long>(seed);
  const char* format = mutating ? "\nended at input %llu: run with --seed %llu --first %llu --runs 1\n"
                                : "\nended at example %llu\n";
  const int length = std::snprintf(text, sizeof text, format, n, s, n);
  if (write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) std::_Exit(2);
}

[[noreturn]] void on_terminate() {
  tell_current();
  std::abort();
}

constexpr std::uint32_t kTelling[] = {0,          1,          2,          7,          8,          0x7f,
                                      0x80,       0xff,       0x100,      0x7fff,     0xffff,     0x10000,
                                      0x3ffff,    0x40000,    0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff,
                                      67'108'864, 67'108'865, 0x00ffffff, 0x01000000};

void overwrite(Bytes& bytes, std::size_t at, std::uint64_t value, std::size_t size) {
  std::memcpy(bytes.data() + at, &value, std::min(size, bytes.size() - at));
}

void mutate(Bytes& bytes, const std::vector<Bytes>& examples, Random& random) {
  const auto at = [&](std::size_t size) { return static_cast<std::ptrdiff_t>(random.below(size)); };
  if (bytes.empty()) bytes.push_back(static_cast<std::byte>(random.next()));
  const std::size_t size = bytes.size();
  switch (random.below(8)) {
    case 0:
      bytes[random.below(size)] ^= static_cast<std::byte>(1U << random.below(8));
      return;
    case 1:
      bytes[random.below(size)] = static_cast<std::byte>(random.next());
      return;
    case 2:
      overwrite(bytes, random.below(size), kTelling[random.below(std::size(kTelling))], 4);
      return;
    case 3:
      overwrite(bytes, random.below(size), random.next(), 1 + random.below(8));
      return;
    case 4: {
      const std::ptrdiff_t first = at(size);
      const auto count =
          static_cast<std::ptrdiff_t>(1 + random.below(size - static_cast<std::size_t>(first)));
      bytes.erase(bytes.begin() + first, bytes.begin() + first + count);
      return;
    }
    case 5:
      bytes.resize(random.below(size));
      return;
    case 6: {  // repeats a piece
      const std::ptrdiff_t first = at(size);
      const auto count =
          static_cast<std::ptrdiff_t>(1 + random.below(size - static_cast<std::size_t>(first)));
      const Bytes piece(bytes.begin() + first, bytes.begin() + first + count);
      bytes.insert(bytes.begin() + at(size), piece.begin(), piece.end());
      return;
    }
    default: {  // appends the end of another example
      const Bytes& other = examples[random.below(examples.size())];
      bytes.resize(random.below(size) + 1);
      const std::ptrdiff_t first = other.empty() ? 0 : at(other.size());
      bytes.insert(bytes.end(), other.begin() + first, other.end());
      return;
    }
  }
}

Bytes input_of(std::uint64_t number, const std::vector<Bytes>& examples) {
  Random random(seed, number);
  Bytes bytes = examples[random.below(examples.size())];
  const std::uint64_t changes = random.below(10);
  for (std::uint64_t i = 0; i < changes; ++i) mutate(bytes, examples, random);
  return bytes;
}

// Returns the paths in an order that does not depend on the file system.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

Bytes read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(content));
  return {bytes.begin(), bytes.end()};
}

std::vector<Bytes> inputs_in(const std::filesystem::path& folder) {
  std::vector<Bytes> inputs;
  for (const auto& path : paths_in(folder)) inputs.push_back(read(path));
  return inputs;
}

bool any_current(const std::vector<Bytes>& inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const Bytes& input) { return is_current(input); });
}

int renew_all(const std::filesystem::path& folder) {
  for (const auto& path : paths_in(folder)) {
    Bytes bytes = read(path);
    renew(bytes);
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  return any_current(inputs_in(folder)) ? 0 : 1;
}

std::uint64_t number(std::string_view name, const char* text) {
  std::uint64_t value = 0;
  const char* end = text + std::strlen(text);
  if (std::from_chars(text, end, value).ptr != end) {
    std::cerr << name << " takes a number, not '" << text << "'\n";
    std::exit(2);
  }
  return value;
}

}  // namespace

void broken(const char* promise) {
  std::cerr << "broken: " << promise << std::endl;
  on_terminate();
}

}  // namespace adaps::fuzz

int main(int argc, char** argv) {
  using namespace adaps::fuzz;
  std::uint64_t runs = 10'000;
  std::uint64_t first = 0;
  std::vector<Bytes> known = examples();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--seed") {
      seed = number(name, argv[i + 1]);
    } else if (name == "--runs") {
      runs = number(name, argv[i + 1]);
    } else if (name == "--first") {
      first = number(name, argv[i + 1]);
    } else if (name == "--corpus") {
      const std::vector<Bytes> corpus = inputs_in(argv[i + 1]);
      if (!any_current(corpus)) {
        std::cerr << "all inputs in " << argv[i + 1] << " are of an older version and refused at once; run "
                  << argv[0] << " --renew " << argv[i + 1] << "\n";
        return 1;
      }
      known.insert(known.end(), corpus.begin(), corpus.end());
    } else if (name == "--renew") {
      return renew_all(argv[i + 1]);
    } else {
      std::cerr << "unknown option '" << name
                << "': there are --seed, --first, --runs, --corpus and --renew\n";
      return 2;
    }
  }
  std::set_terminate(on_terminate);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(tell_current);
  for (const Bytes& example : known) {
    run(example);
    ++current;
  }
  mutating = true;
  for (current = first; current < first + runs; ++current) run(input_of(current, known));
  std::cout << runs << " inputs, seed " << seed << std::endl;
  return 0;
}
