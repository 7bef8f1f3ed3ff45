// Runs random worlds from the command line.
#include <chrono>
#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <string>

#include "simulation/explore.h"
#include "simulation/generator.h"
#include "simulation/shrink.h"

using namespace adaps;
using namespace adaps::simulation;

namespace {

constexpr const char* kUsage =
    "usage: simulate [--worlds N] [--seed S] [--mutant NAME] [--world K]\n"
    "  --worlds N     how many random worlds to run (1000)\n"
    "  --seed S       which ones (1)\n"
    "  --mutant NAME  with this deliberate bug in the protocol\n"
    "  --world K      only the K-th world: prints all that happens in it\n";

struct Options {
  Exploring what{.worlds = 1000};
  bool only_one = false;
};

Mutant mutant_named(const std::string& name) {
  std::string known;
  for (const NamedMutant& mutant : all_mutants()) {
    if (mutant.name == name) return mutant.mutant;
    known.append(" ").append(mutant.name);
  }
  throw std::invalid_argument("there is no mutant '" + name + "'; there are:" + known);
}

std::uint64_t number_of(const std::string& option, const std::string& text) {
  try {
    std::size_t used = 0;
    const std::uint64_t number = std::stoull(text, &used);
    if (used == text.size() && text[0] != '-') return number;
  } catch (const std::logic_error&) {  // the text is not a number or too large, which is reported below
  }
  throw std::invalid_argument(option + " is '" + text + "'; it must be a whole number, at least 0");
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(option + " needs a value");
    const std::string value = argv[i + 1];
    if (option == "--worlds") {
      options.what.worlds = number_of(option, value);
    } else if (option == "--seed") {
      options.what.seed = number_of(option, value);
    } else if (option == "--world") {
      options.what.first = number_of(option, value);
      options.only_one = true;
    } else if (option == "--mutant") {
      options.what.mutant = mutant_named(value);
    } else {
      throw std::invalid_argument("unknown option '" + option + "'");
    }
  }
  return options;
}

void print_world(const WorldSpec& spec, Mutant mutant) {
  std::vector<std::string> log;
  const std::optional<std::string> failure = failure_of(spec, mutant, &log);
  std::cout << describe(spec) << "\n";
  for (const std::string& line : log) std::cout << line << "\n";
  std::cout << (failure ? *failure : "no violation") << "\n";
}

int run(const Options& options) {
  if (options.only_one) {
    const WorldSpec spec = random_world(options.what.seed, options.what.first);
    print_world(spec, options.what.mutant);
    return failure_of(spec, options.what.mutant) ? 1 : 0;
  }
  const auto begin = std::chrono::steady_clock::now();
  const Exploration result = explore(options.what);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  for (const Failure& failure : result.failures) {
    std::cout << "world " << failure.world << ": " << failure.what
              << "\nThe shortest history that shows it:\n";
    print_world(shrink(random_world(options.what.seed, failure.world), options.what.mutant),
                options.what.mutant);
  }
  std::cout << result.worlds << " worlds, " << result.calls << " calls, " << result.messages << " messages, "
            << result.failures.size() << " violations, "
            << static_cast<std::uint64_t>(static_cast<double>(result.worlds) / seconds.count()) << " worlds/s"
            << std::endl;
  return result.failures.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::invalid_argument& error) {
    std::cerr << "simulate: " << error.what() << "\n" << kUsage;
    return 2;
  }
}
