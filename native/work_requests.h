// Accounting of the RDMA work requests of one process: how many, how many bytes, and for how long each queue was busy.
//
// A work request is posted, often as one of a chain of which only the last asks for a completion; requests of a queue
// pair complete in order, so a completion retires everything up to the request that asked for it. From that follow, for
// each queue pair and exactly: depth (requests posted and not retired), outstanding bytes, and the time during which
// anything was outstanding. Bandwidth over that time alone tells a slow path from one that has nothing to carry.
//
// Knows nothing of how the calls are intercepted (verbs_shim.cc) or of where samples go (`Sink`).
#pragma once

#include <atomic>
#include <cstdint>
#include <pthread.h>

#include "verbs_abi.h"

namespace megatrace {

// What is known of a queue pair at one time. Totals since it was first seen.
struct QueueSample {
  uint64_t time_ns;            // CLOCK_MONOTONIC
  uint64_t key;                // context number << 32 | qp_num
  uint64_t outstanding_bytes;
  uint64_t completed_bytes;
  uint64_t completed;          // work requests
  uint64_t busy_ns;            // time with something outstanding
  uint32_t depth;
};

struct QueueError {
  uint64_t time_ns;
  uint64_t key;
  uint64_t wr_id;
  uint32_t depth;
  int32_t status;              // ibv_wc_status
  uint32_t vendor_error;
};

// Where samples go. Called with the queue's lock held: it must be short and may not call back.
struct Sink {
  void (*sample)(const QueueSample& sample);
  void (*error)(const QueueError& error);
  void (*alive)(uint64_t now);  // somebody polls: at most once an interval, without a lock
};

struct QueueTotals {
  uint64_t posted = 0, completed = 0;
  uint64_t posted_bytes = 0, completed_bytes = 0;
  uint64_t errors = 0;
  uint32_t queues = 0, max_depth = 0;
};

class WorkRequests {
 public:
  static constexpr uint32_t kQueues = 1u << 14;  // a node of 8 NICs and 1,000 peers at 2 queue pairs each
  static constexpr uint32_t kSignals = 1u << 10; // NCCL has at most 2 x 32 x 8 requests on the way

  // `interval_ns`: at least this long between two samples of a queue that stays busy, and up to a tick of the kernel
  // longer. A queue that becomes empty or stops being empty is always sampled, so that the last sample never claims the
  // opposite of what is the case.
  void start(const Sink* sink, uint64_t interval_ns);

  // Around the provider's post_send: what it accepted is counted, and nothing can complete before it is.
  int post(uint64_t key, verbs::PostSend real, verbs::Qp* qp, verbs::SendRequest* chain, verbs::SendRequest** bad);

  void completed(uint64_t key, const verbs::Completion& completion);

  // Called when a poll found nothing: now and then samples the queues that changed since their last sample, so that
  // the last one of a queue that came to a stand within the interval tells how it stands.
  void idle();

  // A new queue pair; `all_signaled`: every request of it asks for a completion (sq_sig_all).
  void created(uint64_t key, bool all_signaled);
  void forget(uint64_t key);
  QueueTotals totals();

 private:
  struct Mark {
    uint64_t posted, bytes;  // cumulative, when a request that asks for a completion was posted
  };
  struct Queue {
    std::atomic<uint64_t> key{0};
    pthread_mutex_t lock;
    bool all_signaled, failed, unsaid;
    uint32_t first, count;  // of marks
    uint32_t max_depth, said_depth;
    uint64_t posted, retired, posted_bytes, retired_bytes, errors;
    uint64_t busy_since_ns, busy_ns, sampled_ns;
    Mark marks[kSignals];
  };

  Queue* find(uint64_t key, bool make);
  void push(Queue* queue, const verbs::SendRequest* chain, const verbs::SendRequest* end);
  void say_if_due(Queue* queue);
  void say(Queue* queue, uint64_t now, bool always);

  std::atomic<Queue*> queues_[kQueues];
  std::atomic<Queue*> listed_[kQueues];  // the same without holes, in order of appearance
  std::atomic<uint32_t> known_{0}, idle_{0};
  std::atomic<uint64_t> swept_ns_{0};
  const Sink* sink_ = nullptr;
  uint64_t interval_ns_ = 0;
};

}  // namespace megatrace
