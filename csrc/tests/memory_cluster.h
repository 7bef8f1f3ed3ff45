// A cluster of nodes in one process, with real channel threads and workers. Frames are passed in memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "node/node_state.h"
#include "node/worker.h"
#include "protocol/channel.h"

namespace adaps::testing {

class MemoryCluster {
 public:
  MemoryCluster(const std::vector<TableSpec>& tables, const Settings& settings) {
    for (NodeId rank = 0; rank < settings.nodes; ++rank) {
      Settings own = settings;
      own.rank = rank;
      nodes_.push_back(std::make_unique<NodeState>(tables, own));
    }
    for (const auto& node : nodes_) {
      for (int i = 0; i < settings.workers; ++i) workers_.push_back(std::make_unique<Worker>(*node, i));
      for (std::size_t i = 0; i < node->channels.size(); ++i) {
        mailboxes_.push_back(std::make_unique<Mailbox>());
        node->partitions[i]->set_waker([mailbox = mailboxes_.back().get()] { mailbox->wake(); });
      }
    }
    for (const auto& node : nodes_) {
      for (std::size_t i = 0; i < node->channels.size(); ++i) {
        threads_.emplace_back([this, rank = node->settings.rank, i] { drive(rank, i); });
      }
    }
  }

  ~MemoryCluster() {
    stopping_.store(true);
    for (const auto& mailbox : mailboxes_) mailbox->wake();
    for (std::thread& thread : threads_) thread.join();
  }

  NodeState& node(std::size_t rank) { return *nodes_[rank]; }
  Worker& worker(std::size_t rank, std::size_t index) {
    return *workers_[rank * nodes_[rank]->workers.size() + index];
  }

 private:
  class Mailbox {
   public:
    using Frames = std::vector<std::pair<NodeId, Frame>>;

    void put(NodeId from, Frame frame) {
      const std::lock_guard guard(mutex_);
      frames_.emplace_back(from, std::move(frame));
      changed_.notify_one();
    }
    void wake() {
      const std::lock_guard guard(mutex_);
      woken_ = true;
      changed_.notify_one();
    }
    Frames take(Micros timeout) {
      std::unique_lock lock(mutex_);
      const auto ready = [this] { return woken_ || !frames_.empty(); };
      if (timeout == kNever) {
        changed_.wait(lock, ready);
      } else {
        changed_.wait_for(lock, std::chrono::microseconds(timeout), ready);
      }
      woken_ = false;
      return std::exchange(frames_, {});
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    Frames frames_;
    bool woken_ = false;
  };

  Mailbox& mailbox(NodeId rank, std::size_t channel) {
    return *mailboxes_[rank * nodes_[0]->channels.size() + channel];
  }

  static Micros now() {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void drive(NodeId rank, std::size_t index) {
    Channel& channel = *nodes_[rank]->channels[index];
    const auto send = [&] {
      channel.outbox().drain([&](NodeId to, Frame frame) { mailbox(to, index).put(rank, std::move(frame)); });
    };
    channel.set_sender(send);
    try {
      while (!stopping_.load()) {
        const Micros begin = now();
        channel.set_now(begin);
        const Micros next = channel.on_tick();
        send();
        const Micros timeout = next == kNever ? kNever : std::max<Micros>(next - begin, 0);
        for (const auto& [from, frame] : mailbox(rank, index).take(timeout)) {
          channel.set_now(now());
          channel.on_frame(from, frame);
        }
      }
    } catch (const std::exception& error) {
      nodes_[rank]->fail(rank, error.what());
    }
  }

  std::vector<std::unique_ptr<NodeState>> nodes_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stopping_{false};
};

}  // namespace adaps::testing
