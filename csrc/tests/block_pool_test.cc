// Blocks of floats are allocated and released.
#include "store/block_pool.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "check.h"

using namespace adaps;

TEST(no_two_blocks_overlap) {
  for (const std::size_t floats : {1, 33, 16384, 20000}) {
    BlockPool pool(floats);
    std::vector<BlockPool::Block> blocks;
    for (int i = 0; i < 1000; ++i) {
      blocks.push_back(pool.allocate());
      std::fill_n(blocks.back().get(), floats, static_cast<float>(i));
      if (floats > 100 && i == 20) break;
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      CHECK(std::all_of(blocks[i].get(), blocks[i].get() + floats,
                        [&](float x) { return x == static_cast<float>(i); }));
    }
  }
}

TEST(the_last_released_block_is_allocated_next) {
  BlockPool pool(8);
  BlockPool::Block first = pool.allocate();
  BlockPool::Block second = pool.allocate();
  const float* address = second.get();
  second.reset();
  CHECK_EQ(pool.allocate().get(), address);
  CHECK_EQ(&first.get_deleter().pool(), &pool);
}

TEST(threads_allocate_and_release_blocks_of_one_pool) {
  BlockPool pool(16);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      const auto mine = static_cast<float>(t);
      for (int round = 0; round < 2000; ++round) {
        std::vector<BlockPool::Block> held;
        for (int i = 0; i < 5; ++i) {
          held.push_back(pool.allocate());
          std::fill_n(held.back().get(), pool.floats(), mine);
        }
        for (const BlockPool::Block& block : held)
          wrong[t] +=
              std::any_of(block.get(), block.get() + pool.floats(), [&](float x) { return x != mine; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int of_thread : wrong) CHECK_EQ(of_thread, 0);
}
