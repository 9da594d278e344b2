// libmegatrace_ibverbs.so: stands before libibverbs.so.1 and sees what is posted and what completes.
//
// NCCL posts and polls through function pointers in the ibv_context, so one changed table per opened device suffices.
// Three ways lead to our ibv_open_device, and this one library serves all:
//   NCCL_IBVERBS_LIB=libmegatrace_ibverbs.so   NCCL 2.30.3 and newer; every function is looked up here
//   LD_PRELOAD=libmegatrace_ibverbs.so         any NCCL: it asks dlvsym, and ours answers for four names
//   LD_LIBRARY_PATH with a libibverbs.so of ours   NCCL looks for that name before libibverbs.so.1
// It does not depend on libibverbs: preloaded into a process on a machine without RDMA it must do nothing.
//
// GPU-initiated RDMA and the extended post interface (ibv_wr_*) do not come by here.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

#include "verbs_abi.h"
#include "work_requests.h"
#include "work_requests_ring.h"

#define MT_EXPORT extern "C" __attribute__((visibility("default")))

using megatrace::WorkRequests;
namespace verbs = megatrace::verbs;

namespace {

constexpr uint32_t kContexts = 64;  // devices of a process, opened more than once included

struct Opened {
  std::atomic<verbs::Context*> context{nullptr};
  std::atomic<verbs::PollCq> poll_cq{nullptr};
  std::atomic<verbs::PostSend> post_send{nullptr};
};

Opened g_opened[kContexts];
WorkRequests g_requests;
std::atomic<bool> g_recording{false};

using Any = long (*)(long, long, long, long, long, long);
using OpenDevice = verbs::Context* (*)(verbs::Device*);
using CreateQp = verbs::Qp* (*)(void*, verbs::QpInit*);
using ModifyQp = int (*)(verbs::Qp*, verbs::QpAttributes*, int);
using DestroyQp = int (*)(verbs::Qp*);

// What dlvsym found for a caller who asked a handle of his own; else looked up in libibverbs.so.1.
std::atomic<void*> g_open_device{nullptr}, g_create_qp{nullptr}, g_modify_qp{nullptr}, g_destroy_qp{nullptr};

void* real(const char* name) {
  // Not RTLD_NEXT: where we were opened with RTLD_LOCAL there is nothing behind us. The handle is kept for good.
  static std::atomic<void*> library{nullptr};
  void* handle = library.load(std::memory_order_acquire);
  if (handle == nullptr) {
    handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return nullptr;
    library.store(handle, std::memory_order_release);  // a second dlopen gives the same handle: no race worth a lock
  }
  return dlsym(handle, name);
}

void* known(std::atomic<void*>& place, const char* name) {
  void* found = place.load(std::memory_order_acquire);
  if (found == nullptr && (found = real(name)) != nullptr) place.store(found, std::memory_order_release);
  return found;
}

// The number of a context, kContexts where it is not ours. A handful of devices: a scan beats a table.
uint32_t number_of(const verbs::Context* context) {
  for (uint32_t i = 0; i < kContexts; ++i) {
    const verbs::Context* at = g_opened[i].context.load(std::memory_order_acquire);
    if (at == context) return i;
    if (at == nullptr) break;
  }
  return kContexts;
}

uint64_t key_of(uint32_t number, uint32_t qp_num) { return static_cast<uint64_t>(number) << 32 | qp_num; }

int post_send(verbs::Qp* qp, verbs::SendRequest* chain, verbs::SendRequest** bad) {
  const uint32_t number = number_of(qp->context);
  return g_requests.post(
      key_of(number, qp->qp_num), g_opened[number].post_send.load(std::memory_order_relaxed), qp, chain, bad);
}

int poll_cq(verbs::Cq* cq, int entries, verbs::Completion* completions) {
  const uint32_t number = number_of(cq->context);
  const int got = g_opened[number].poll_cq.load(std::memory_order_relaxed)(cq, entries, completions);
  if (got == 0) g_requests.idle();
  for (int i = 0; i < got; ++i) g_requests.completed(key_of(number, completions[i].qp_num), completions[i]);
  return got;
}

void watch(verbs::Context* context) {
  if (number_of(context) != kContexts && context->ops.post_send == post_send) return;
  for (Opened& opened : g_opened) {
    verbs::Context* free_place = nullptr;
    // An address that is opened again (closed before, as it is not patched) keeps its number.
    if (opened.context.load(std::memory_order_acquire) != context) {
      if (!opened.context.compare_exchange_strong(free_place, context, std::memory_order_acq_rel)) continue;
    }
    opened.poll_cq.store(context->ops.poll_cq, std::memory_order_relaxed);
    opened.post_send.store(context->ops.post_send, std::memory_order_relaxed);
    // Nobody else has this context yet: it was opened in this very call.
    context->ops.poll_cq = poll_cq;
    context->ops.post_send = post_send;
    megatrace::wr_device(number_of(context), context->device->name);
    return;
  }
}

void start_once() {
  if (g_recording.exchange(true, std::memory_order_acq_rel)) return;
  const char* interval = getenv("MEGATRACE_WR_INTERVAL_US");
  const uint64_t us = interval != nullptr ? strtoull(interval, nullptr, 10) : 1000;
  g_requests.start(megatrace::wr_sink(), us * 1000u);
}

}  // namespace

MT_EXPORT verbs::Context* ibv_open_device(verbs::Device* device) {
  const auto next = reinterpret_cast<OpenDevice>(known(g_open_device, "ibv_open_device"));
  if (next == nullptr) {
    errno = ENOSYS;
    return nullptr;
  }
  verbs::Context* context = next(device);
  if (context != nullptr) {
    start_once();
    watch(context);
  }
  return context;
}

MT_EXPORT verbs::Qp* ibv_create_qp(void* pd, verbs::QpInit* init) {
  const auto next = reinterpret_cast<CreateQp>(known(g_create_qp, "ibv_create_qp"));
  if (next == nullptr) {
    errno = ENOSYS;
    return nullptr;
  }
  verbs::Qp* qp = next(pd, init);
  if (qp != nullptr) {
    const uint32_t number = number_of(qp->context);
    if (number != kContexts) g_requests.created(key_of(number, qp->qp_num), init->sq_sig_all != 0);
  }
  return qp;
}

MT_EXPORT int ibv_modify_qp(verbs::Qp* qp, verbs::QpAttributes* attributes, int mask) {
  const auto next = reinterpret_cast<ModifyQp>(known(g_modify_qp, "ibv_modify_qp"));
  if (next == nullptr) return ENOSYS;
  const int result = next(qp, attributes, mask);
  const uint32_t number = number_of(qp->context);
  if (result == 0 && number != kContexts && (mask & verbs::kAddressGiven) != 0) {
    const uint32_t peer = (mask & verbs::kDestinationGiven) != 0 ? attributes->dest_qp_num : 0;
    megatrace::wr_path(key_of(number, qp->qp_num), qp->context->device->name, attributes->ah, peer);
  }
  return result;
}

MT_EXPORT int ibv_destroy_qp(verbs::Qp* qp) {
  const auto next = reinterpret_cast<DestroyQp>(known(g_destroy_qp, "ibv_destroy_qp"));
  if (next == nullptr) return ENOSYS;
  const uint32_t number = number_of(qp->context);
  const uint64_t key = key_of(number, qp->qp_num);
  const int result = next(qp);
  if (result == 0 && number != kContexts) g_requests.forget(key);
  return result;
}

// glibc's dlvsym, except that whoever asks for one of our four functions gets ours in front of what he would have got.
MT_EXPORT void* dlvsym(void* handle, const char* name, const char* version) {
  using Lookup = void* (*)(void*, const char*, const char*);
  static std::atomic<void*> original{nullptr};
  void* lookup = original.load(std::memory_order_relaxed);
  if (lookup == nullptr) original.store(lookup = dlsym(RTLD_NEXT, "dlvsym"), std::memory_order_relaxed);
  if (lookup == nullptr) return nullptr;
  void* found = reinterpret_cast<Lookup>(lookup)(handle, name, version);
  if (found == nullptr || strncmp(name, "ibv_", 4) != 0) return found;
  const struct {
    const char* name;
    void* ours;
    std::atomic<void*>& next;
  } replaced[] = {
      {"ibv_open_device", reinterpret_cast<void*>(ibv_open_device), g_open_device},
      {"ibv_create_qp", reinterpret_cast<void*>(ibv_create_qp), g_create_qp},
      {"ibv_modify_qp", reinterpret_cast<void*>(ibv_modify_qp), g_modify_qp},
      {"ibv_destroy_qp", reinterpret_cast<void*>(ibv_destroy_qp), g_destroy_qp},
  };
  for (const auto& item : replaced) {
    if (strcmp(name, item.name) != 0) continue;
    if (found != item.ours) item.next.store(found, std::memory_order_release);
    return item.ours;
  }
  return found;
}

// Everything else, as it is.
#define MT_Pointer (errno = ENOSYS, 0L)
#define MT_Status (static_cast<long>(ENOSYS))
#define MT_VERBS(name, kind)                                                          \
  MT_EXPORT long ibv_##name(long a, long b, long c, long d, long e, long f) {         \
    static std::atomic<void*> next{nullptr};                                          \
    void* found = known(next, "ibv_" #name);                                          \
    return found == nullptr ? MT_##kind : reinterpret_cast<Any>(found)(a, b, c, d, e, f); \
  }
#include "verbs_symbols.h"
#undef MT_VERBS

// For tests and benchmarks: what was counted so far in this process.
MT_EXPORT void megatrace_work_request_totals(megatrace::QueueTotals* totals) { *totals = g_requests.totals(); }
