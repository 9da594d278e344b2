// A libibverbs.so.1 without hardware, for tests: two devices, queues whose speed, stalls and errors are set from outside.
//
// Requests of a queue pair complete in order, at the rate set for its path; a chain completes with its last request.
// Receives complete at once, so that a completion queue carries both kinds as a real one does.
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <time.h>

#include "../verbs_abi.h"

using namespace megatrace::verbs;

namespace {

struct Path {
  uint64_t bytes_per_s = 0;  // 0: at once
  bool stalled = false;
  int error_status = 0;      // the next request fails with it
  uint32_t vendor_error = 0;
};

struct Pending {
  uint64_t wr_id, due_ns;
  uint32_t bytes;
  bool signaled;
};

struct MockCq;
struct MockQp {
  Qp qp;
  MockCq* cq;
  bool all_signaled, in_error;
  uint64_t free_at_ns;
  std::deque<Pending> queue;
};

struct MockCq {
  Cq cq;
  std::deque<MockQp*> pairs;
  uint32_t receives = 0, receive_qp = 0;
};

Device g_devices[2];
std::map<uint32_t, Path> g_paths;  // by the number of the queue pair
std::mutex g_lock;
uint32_t g_next_qp = 100;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

int post_send(Qp* base, SendRequest* request, SendRequest** bad) {
  MockQp* qp = reinterpret_cast<MockQp*>(base);
  std::lock_guard<std::mutex> held(g_lock);
  for (; request != nullptr; request = request->next) {
    if (qp->queue.size() >= 4096) {
      *bad = request;
      return ENOMEM;
    }
    uint32_t bytes = 0;
    for (int i = 0; i < request->num_sge; ++i) bytes += request->sg_list[i].length;
    const Path& path = g_paths[base->qp_num];
    const uint64_t now = now_ns();
    const uint64_t start = qp->free_at_ns > now ? qp->free_at_ns : now;
    const uint64_t due = path.bytes_per_s == 0 ? now : start + uint64_t{bytes} * 1000000000u / path.bytes_per_s;
    qp->free_at_ns = due;
    qp->queue.push_back({request->wr_id, due, bytes, qp->all_signaled || (request->send_flags & kSignaled) != 0});
  }
  return 0;
}

int post_recv(Qp* base, void*, void**) {
  MockQp* qp = reinterpret_cast<MockQp*>(base);
  std::lock_guard<std::mutex> held(g_lock);
  ++qp->cq->receives;
  qp->cq->receive_qp = base->qp_num;
  return 0;
}

Completion completion_of(const MockQp& qp, const Pending& done, int status, uint32_t vendor) {
  Completion completion;
  memset(&completion, 0, sizeof completion);
  completion.wr_id = done.wr_id;
  completion.status = status;
  completion.vendor_err = vendor;
  completion.qp_num = qp.qp.qp_num;
  if (status != 0) completion.opcode = 0x5A5A;  // not valid in an error, so nobody may look at it
  return completion;
}

int poll_cq(Cq* base, int entries, Completion* out) {
  MockCq* cq = reinterpret_cast<MockCq*>(base);
  std::lock_guard<std::mutex> held(g_lock);
  int got = 0;
  for (; cq->receives > 0 && got < entries; --cq->receives) {
    memset(&out[got], 0, sizeof out[got]);
    out[got].opcode = kReceive;
    out[got++].qp_num = cq->receive_qp;
  }
  const uint64_t now = now_ns();
  for (MockQp* qp : cq->pairs) {
    Path& path = g_paths[qp->qp.qp_num];
    while (got < entries && !qp->queue.empty()) {
      const Pending done = qp->queue.front();
      if (qp->in_error || path.error_status != 0) {  // the first fails, everything behind is flushed (status 5)
        out[got++] = completion_of(*qp, done, qp->in_error ? 5 : path.error_status, path.vendor_error);
        qp->in_error = true;
      } else {
        if (path.stalled || done.due_ns > now) break;
        if (done.signaled) out[got++] = completion_of(*qp, done, 0, 0);
      }
      qp->queue.pop_front();
    }
  }
  return got;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Device** ibv_get_device_list(int* count) {
  static Device* list[3] = {&g_devices[0], &g_devices[1], nullptr};
  strcpy(g_devices[0].name, "mlx5_0");
  strcpy(g_devices[1].name, "mlx5_1");
  if (count != nullptr) *count = 2;
  return list;
}
EXPORT void ibv_free_device_list(Device**) {}
EXPORT const char* ibv_get_device_name(Device* device) { return device->name; }

EXPORT Context* ibv_open_device(Device* device) {
  Context* context = static_cast<Context*>(calloc(1, sizeof(Context) + 128));
  context->device = device;
  context->ops.post_send = post_send;
  context->ops.poll_cq = poll_cq;
  context->ops.post_recv = reinterpret_cast<void*>(post_recv);
  return context;
}
EXPORT int ibv_close_device(Context* context) {
  free(context);
  return 0;
}

EXPORT void* ibv_alloc_pd(Context* context) { return context; }
EXPORT int ibv_dealloc_pd(void*) { return 0; }

EXPORT Cq* ibv_create_cq(Context* context, int, void*, void*, int) {
  MockCq* cq = new MockCq();
  cq->cq.context = context;
  return &cq->cq;
}
EXPORT int ibv_destroy_cq(Cq* cq) {
  delete reinterpret_cast<MockCq*>(cq);
  return 0;
}

EXPORT Qp* ibv_create_qp(void* pd, QpInit* init) {
  MockQp* qp = new MockQp();
  qp->qp.context = static_cast<Context*>(pd);
  qp->cq = static_cast<MockCq*>(init->pointers[1]);
  qp->all_signaled = init->sq_sig_all != 0;
  std::lock_guard<std::mutex> held(g_lock);
  qp->qp.qp_num = g_next_qp++;
  qp->cq->pairs.push_back(qp);
  return &qp->qp;
}
EXPORT int ibv_modify_qp(Qp*, QpAttributes*, int) { return 0; }
EXPORT int ibv_destroy_qp(Qp* base) {
  MockQp* qp = reinterpret_cast<MockQp*>(base);
  std::lock_guard<std::mutex> held(g_lock);
  std::deque<MockQp*>& pairs = qp->cq->pairs;
  for (size_t i = 0; i < pairs.size(); ++i)
    if (pairs[i] == qp) pairs.erase(pairs.begin() + static_cast<long>(i));
  delete qp;
  return 0;
}

// Set from outside, while requests are on the way or not.
EXPORT void mock_path(uint32_t qp_num, uint64_t bytes_per_s, int stalled, int error_status, uint32_t vendor_error) {
  std::lock_guard<std::mutex> held(g_lock);
  g_paths[qp_num] = {bytes_per_s, stalled != 0, error_status, vendor_error};
}
