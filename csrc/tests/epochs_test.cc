#include "protocol/epochs.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"

using namespace adaps;

namespace {

struct Waiting {
  Waiting() { operation.left.store(1); }
  bool done() const { return operation.done.load(); }

  Completion completion;
  Operation operation{OperationKind::kSync, 0, completion};
};

}  // namespace

TEST(a_patient_wait_hurries_as_soon_as_a_worker_waits) {
  Epochs epochs;
  const std::uint64_t write = epochs.add();
  Waiting waiting;
  waiting.operation.patient.store(true);
  epochs.wait(waiting.operation);
  CHECK(epochs.anyone_waits());
  CHECK(!epochs.anyone_hurries());
  CHECK(epochs.hurry(waiting.operation));
  CHECK(epochs.anyone_hurries());
  CHECK(!epochs.hurry(waiting.operation));
  epochs.remove(write);
  CHECK(waiting.done());
  CHECK(!epochs.anyone_hurries());
  Waiting late;
  late.operation.patient.store(true);
  epochs.wait(late.operation);
  CHECK(late.done());
  CHECK(epochs.hurry(late.operation));  // its MARK may still wait
  CHECK(!epochs.anyone_hurries());
}

TEST(more_waits_than_counters_in_the_ring) {
  Epochs epochs;
  for (int i = 0; i < 5000; ++i) {
    const std::uint64_t epoch = epochs.add();
    Waiting waiting;
    epochs.wait(waiting.operation);
    CHECK(!waiting.done());
    epochs.remove(epoch);
    CHECK(waiting.done());
  }
}

TEST(abandoned_waits_are_returned) {
  Epochs epochs;
  epochs.add();
  Waiting waiting;
  epochs.wait(waiting.operation);
  const std::vector<Operation*> abandoned = epochs.abandon();
  REQUIRE(abandoned.size() == 1);
  CHECK(abandoned[0] == &waiting.operation);
  CHECK(!epochs.anyone_waits());
}

TEST(threads_that_write_and_wait) {
  Epochs epochs;
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3000; ++i) epochs.remove(epochs.add());
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 300; ++i) {
      Waiting waiting;
      epochs.wait(waiting.operation);
      std::unique_lock lock(waiting.completion.mutex);
      waiting.completion.changed.wait(lock, [&] { return waiting.done(); });
      ++finished;
    }
  });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(finished.load(), 300);
  CHECK_EQ(epochs.outstanding(), 0);
}
