// A test framework for one executable. TEST bodies register themselves. A failed CHECK is counted and the
// body continues; a failed REQUIRE ends the body. Include this file in exactly one source file of an
// executable, because it defines main().
#pragma once

#include <atomic>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
inline bool add(const char* name, void (*body)()) {
  tests().push_back({name, body});
  return true;
}

inline std::atomic<int> failures{0};  // failures of the running test; all threads of a test may use CHECK

inline void fail(const char* file, int line, const std::string& what) {
  ++failures;
  std::ostringstream text;  // one write, so that lines of several threads do not mix
  text << "  " << file << ":" << line << ": " << what << "\n";
  std::cout << text.str() << std::flush;
}

template <class A, class B>
void equal(const A& a, const B& b, const char* expression, const char* file, int line) {
  if (a == b) return;
  std::ostringstream text;
  text << expression << " (" << a << " and " << b << ")";
  fail(file, line, text.str());
}

// Runs the tests whose names contain `filter`. Returns the exit status of the executable.
inline int run(const std::string& filter) {
  int passed = 0, failed = 0;
  for (const Test& test : tests()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
    failures = 0;
    try {
      test.body();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("unexpected exception: ") + error.what());
    }
    ++(failures == 0 ? passed : failed);
    if (failures != 0) std::cout << "FAILED " << test.name << "\n";
  }
  std::cout << passed << " passed, " << failed << " failed" << std::endl;
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                               \
  static void name();                                            \
  static const bool name##_registered = check::add(#name, name); \
  static void name()
#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition); \
  } while (false)
#define CHECK_EQ(a, b) check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define REQUIRE(condition)                                                                                \
  do {                                                                                                    \
    if (!(condition))                                                                                     \
      throw std::runtime_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " #condition); \
  } while (false)
#define CHECK_CONTAINS(text, part)                                                                     \
  do {                                                                                                 \
    if (const std::string found = (text); found.find(part) == std::string::npos)                       \
      check::fail(__FILE__, __LINE__, "'" + found + "' does not contain '" + std::string(part) + "'"); \
  } while (false)
// Checks that the expression throws `Kind` with a message that contains `part`.
#define CHECK_THROWS(expression, Kind, part)                                                \
  do {                                                                                      \
    bool threw = false;                                                                     \
    try {                                                                                   \
      (void)(expression);                                                                   \
    } catch (const Kind& error) {                                                           \
      threw = true;                                                                         \
      if (std::string(error.what()).find(part) == std::string::npos)                        \
        check::fail(__FILE__, __LINE__, std::string(#expression " said: ") + error.what()); \
    }                                                                                       \
    if (!threw) check::fail(__FILE__, __LINE__, #expression " did not throw " #Kind);       \
  } while (false)

int main(int argc, char** argv) { return check::run(argc > 1 ? argv[1] : ""); }
