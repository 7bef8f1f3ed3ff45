// A target for clang's libFuzzer. If the environment variable ADAPS_EXAMPLES is set, it first writes the
// target's examples to that folder, as the initial corpus.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "target.h"

namespace adaps::fuzz {

void broken(const char* promise) {
  std::cerr << "broken: " << promise << std::endl;
  std::abort();
}

}  // namespace adaps::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("ADAPS_EXAMPLES");
  if (folder == nullptr) return 0;
  int number = 0;
  for (const adaps::fuzz::Bytes& example : adaps::fuzz::examples()) {
    std::ofstream file(std::string(folder) + "/example-" + std::to_string(number++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(example.data()), static_cast<std::streamsize>(example.size()));
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  adaps::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
