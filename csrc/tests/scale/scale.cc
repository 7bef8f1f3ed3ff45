// Replays an access stream and prints what it cost as one line of JSON.
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

#include "scale/replay.h"

using namespace adaps;
using namespace adaps::scale;

namespace {

constexpr const char* kUsage =
    "usage: scale STREAM TECHNIQUE [LOOKAHEAD [WARM_UP]]\n"
    "  STREAM     a file that tools/measure_scale.py recorded\n"
    "  TECHNIQUE  adaptive, replication, relocation, static or full_replication\n"
    "  LOOKAHEAD  batches that are announced ahead of their use (20)\n"
    "  WARM_UP    first steps of every node that are not counted (10)\n";

Technique technique_named(const std::string& name) {
  if (name == "adaptive") return Technique::kAdaptive;
  if (name == "replication") return Technique::kReplication;
  if (name == "relocation") return Technique::kRelocation;
  if (name == "static") return Technique::kStatic;
  if (name == "full_replication") return Technique::kFullReplication;
  throw std::invalid_argument("the technique is '" + name +
                              "'; it must be adaptive, replication, relocation, static or full_replication");
}

std::size_t steps_of(const std::string& name, const std::string& text) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos)
    throw std::invalid_argument(name + " is '" + text + "'; it must be a number of steps");
  return std::stoul(text);
}

void print(const ReplayResult& result, std::size_t nodes) {
  std::cout << "{\"nodes\": " << nodes << ", \"node_steps\": " << result.node_steps
            << ", \"elapsed_micros\": " << result.elapsed << ", \"waited_micros\": " << result.waited
            << ", \"pulled_local\": " << result.pulled_local
            << ", \"pulled_replica\": " << result.pulled_replica
            << ", \"pulled_remote\": " << result.pulled_remote << ", \"relocations\": " << result.relocations
            << ", \"replicas_set_up\": " << result.replicas_set_up
            << ", \"replicas_dropped\": " << result.replicas_dropped << ", \"frames\": " << result.frames
            << ", \"messages_rows\": " << result.rows.messages << ", \"bytes_rows\": " << result.rows.bytes
            << ", \"messages_dense\": " << result.dense.messages
            << ", \"bytes_dense\": " << result.dense.bytes
            << ", \"resident_bytes\": " << result.resident_bytes;
  for (std::size_t i = 1; i < kMessageTypes; ++i) {
    const char* name = name_of(static_cast<MessageType>(i));
    std::cout << ", \"messages_" << name << "\": " << result.by_type[i].messages << ", \"bytes_" << name
              << "\": " << result.by_type[i].bytes;
  }
  std::cout << "}" << std::endl;
}

int run(int argc, char** argv) {
  if (argc < 3 || argc > 5) throw std::invalid_argument("2 to 4 arguments are needed");
  ReplaySettings settings;
  settings.technique = technique_named(argv[2]);
  if (argc > 3) settings.lookahead = steps_of("the lookahead", argv[3]);
  if (argc > 4) settings.warm_up = steps_of("the warm-up", argv[4]);
  std::ifstream file(argv[1], std::ios::binary);
  if (!file) throw std::invalid_argument(std::string("cannot read '") + argv[1] + "'");
  const AccessStream stream = read_stream(file);
  print(Replay(stream, settings).run(), stream.nodes.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::cerr << "scale: " << error.what() << "\n" << kUsage;
    return 2;
  }
}
