// libnccl-profiler-megatrace.so: NCCL's profiler plug-in, versions 1 to 6 over one core.
//
// From version 5 NCCL tells of a call when the program makes it, with its stream (CollApi, P2pApi), and again when it is
// given to the device (Coll, P2p), with its peer. Up to version 4 there is only the second. Neither tells when it is
// done: that is in the events of the kernels, which cost more and are switched on by the control word of the ring.
//
// NCCL takes one plug-in. Another one, named by MEGATRACE_CHAIN_PROFILER, is loaded behind this one and gets what it
// asked for, where it speaks the same version (5 and 6 are alike).
//
// Handles are numbers and never addresses: events come late, twice or not at all, and a number that is no longer known
// is simply passed over.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "nccl_profiler_abi.h"
#include "nccl_recorder.h"

namespace megatrace {

Recorder g_recorder(kPlugin);

namespace {

using namespace profiler;

constexpr int kKnown[] = {0, 0x3F, 0x3F, 0xFF, 0xFF, 0xFFF, 0x7FFF};  // types of events by version
constexpr uint64_t kSlots = 1u << 16;  // events that can be open at one time; older ones are forgotten

// What is known of an event while it is open. All relaxed, guarded by `ticket` (acquire and release) as in a seqlock.
struct Slot {
  std::atomic<uint64_t> ticket{0};
  std::atomic<Communicator*> communicator{nullptr};
  std::atomic<uint64_t> number{0};
  std::atomic<void*> theirs{nullptr};
  std::atomic<uint32_t> type{0}, stopped{0};
  std::atomic<uint8_t> op{0}, channels{0};
  std::atomic<bool> started{false};
};

Slot g_slots[kSlots];
std::atomic<uint64_t> g_next{1};  // slot 0 is never taken: its turn is passed over

struct Event {
  Communicator* communicator = nullptr;
  uint64_t number = 0;
  void* theirs = nullptr;
  uint32_t type = 0;
  uint8_t op = 0, channels = 0;
};

// A handle that says all that is needed of a call, so that it needs no slot: bit 63, communicator, what, number.
constexpr uint64_t kInline = uint64_t{1} << 63;
constexpr int kIndexAt = 53, kOpAt = 48, kMessageAt = 52;
constexpr uint64_t kNumbers = (uint64_t{1} << kOpAt) - 1;
static_assert(sizeof(void*) == 8 && (kCommunicators - 1) >> (63 - kIndexAt) == 0);

void* inlined(const Event& event) {
  const uint64_t message = event.type == kP2pApi ? 1 : 0;
  return reinterpret_cast<void*>(kInline | uint64_t{event.communicator->index} << kIndexAt | message << kMessageAt |
                                 uint64_t{event.op} << kOpAt | (event.number & kNumbers));
}

void* opened(const Event& event) {
  if (event.theirs == nullptr && (event.type == kCollApi || event.type == kP2pApi)) return inlined(event);
  uint64_t ticket = g_next.fetch_add(1, std::memory_order_relaxed);
  if (ticket % kSlots == 0) ticket = g_next.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = g_slots[ticket % kSlots];
  slot.ticket.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // nobody may see what follows and still the old ticket
  slot.communicator.store(event.communicator, std::memory_order_relaxed);
  slot.number.store(event.number, std::memory_order_relaxed);
  slot.theirs.store(event.theirs, std::memory_order_relaxed);
  slot.type.store(event.type, std::memory_order_relaxed);
  slot.stopped.store(0, std::memory_order_relaxed);
  slot.op.store(event.op, std::memory_order_relaxed);
  slot.channels.store(event.channels, std::memory_order_relaxed);
  slot.started.store(false, std::memory_order_relaxed);
  slot.ticket.store(ticket, std::memory_order_release);
  return reinterpret_cast<void*>(static_cast<uintptr_t>(ticket));
}

// The slot of a handle, and a copy of it; nullptr where it is not known, or no longer. All calls without a slot have one
// in common, which nobody writes to.
Slot* found(const void* handle, Event* event) {
  const uint64_t ticket = reinterpret_cast<uintptr_t>(handle);
  if ((ticket & kInline) != 0) {
    event->communicator = communicator_at(static_cast<uint32_t>(ticket >> kIndexAt) & (kCommunicators - 1));
    event->number = ticket & kNumbers;
    event->op = static_cast<uint8_t>(ticket >> kOpAt & 0xF);
    event->type = (ticket >> kMessageAt & 1) != 0 ? kP2pApi : kCollApi;
    return &g_slots[0];
  }
  Slot& slot = g_slots[ticket % kSlots];
  if (ticket == 0 || slot.ticket.load(std::memory_order_acquire) != ticket) return nullptr;
  event->communicator = slot.communicator.load(std::memory_order_relaxed);
  event->number = slot.number.load(std::memory_order_relaxed);
  event->theirs = slot.theirs.load(std::memory_order_relaxed);
  event->type = slot.type.load(std::memory_order_relaxed);
  event->op = slot.op.load(std::memory_order_relaxed);
  event->channels = slot.channels.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);  // nothing above may be read after the check below
  return slot.ticket.load(std::memory_order_relaxed) == ticket ? &slot : nullptr;
}

// The plug-in behind ours.
struct Chained {
  int (*start)(void*, void**, void*) = nullptr;
  int (*stop)(void*) = nullptr;
  int (*record)(void*, int, void*) = nullptr;
  int (*finalize)(void*) = nullptr;
  void* init = nullptr;
};

Chained g_chained;
std::atomic<int> g_chained_mask{0};
int g_version = 0;
pthread_mutex_t g_setup = PTHREAD_MUTEX_INITIALIZER;

void chain(int version) {
  const char* name = getenv("MEGATRACE_CHAIN_PROFILER");
  if (name == nullptr || name[0] == '\0') return;
  char path[1024];
  snprintf(path, sizeof path, "libnccl-profiler-%s.so", name);
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* table = nullptr;
  for (int at = version; library != nullptr && table == nullptr && at >= (version >= 5 ? 5 : version); --at) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", at);
    table = dlsym(library, symbol);
  }
  if (table == nullptr) {
    fprintf(stderr, "megatrace: the profiler plug-in %s is left out: %s\n", name,
            library == nullptr ? "it cannot be loaded" : "it does not speak the version of this NCCL");
    return;
  }
  const auto* theirs = static_cast<const Plugin<void*, void>*>(table);
  g_chained = {theirs->start, theirs->stop, theirs->record, theirs->finalize, theirs->init};
}

// Once a process: what the header tells, and the plug-in behind.
void setup(int version) {
  pthread_mutex_lock(&g_setup);
  if (g_version == 0) {
    g_version = version;
    snprintf(g_about, sizeof g_about, ", \"profiler\": %d", version);
    chain(version);
  }
  pthread_mutex_unlock(&g_setup);
}

int usual(int version) { return version >= 5 ? kColl | kP2p | kCollApi | kP2pApi : kColl | kP2p; }

// Brings NCCL's mask to what is wanted now. It is one for all communicators, and read by NCCL without a lock.
int refresh(Communicator* communicator, int version) {
  const int asked = static_cast<int>(g_recorder.control() & kKernelCh) & kKnown[version];
  const int wanted = usual(version) | asked | g_chained_mask.load(std::memory_order_relaxed);
  if (communicator->applied.load(std::memory_order_relaxed) != wanted) {
    communicator->applied.store(wanted, std::memory_order_relaxed);
    __atomic_store_n(communicator->mask, wanted, __ATOMIC_RELAXED);
  }
  return wanted;
}

// Must be called first: what the other plug-in makes of an event, nullptr where it does not want it. The parent in the
// description is a handle of ours, and becomes one of theirs for the time of the call.
template <int V, class D>
void* relay(Communicator* communicator, D* descr) {
  if (g_chained.start == nullptr || communicator->theirs == nullptr) return nullptr;
  if ((static_cast<int>(descr->type) & g_chained_mask.load(std::memory_order_relaxed)) == 0) return nullptr;
  Event parent;
  D copy = *descr;
  copy.parent = found(descr->parent, &parent) != nullptr ? parent.theirs : nullptr;
  if constexpr (V >= 5) {
    void** group = descr->type == kColl ? &copy.coll.parent_group : descr->type == kP2p ? &copy.p2p.parent_group : nullptr;
    if (group != nullptr) *group = found(*group, &parent) != nullptr ? parent.theirs : nullptr;
  }
  void* theirs = nullptr;
  g_chained.start(communicator->theirs, &theirs, &copy);
  return theirs;
}

template <int V, class D>
bool kernels_on(Communicator* communicator) {
  return (refresh(communicator, V) & kKernelCh) != 0;
}

template <int V, class D>
void learn(Communicator* communicator, const D& descr) {
  if constexpr (V <= 3) {
    if (communicator->told.load(std::memory_order_relaxed)) return;
    const uint64_t hash = descr.type == kColl ? descr.coll.comm_hash : descr.p2p.comm_hash;
    g_recorder.learn(communicator, hash, static_cast<uint32_t>(descr.rank));
  }
}

// The call that an event belongs to: that of its parent where NCCL told of it before, else a new one. Whether a handle
// is needed: only the kernels come back to it, and NCCL says no more of an event without one.
template <int V, class D>
bool given(Communicator* communicator, D* descr, Event* event) {
  if (V >= 5 && descr->type == kColl && (reinterpret_cast<uintptr_t>(descr->parent) & kInline) != 0 &&
      (communicator->applied.load(std::memory_order_relaxed) & kKernelCh) == 0)
    return false;  // recorded as CollApi, and nothing new in it
  const bool kernels = kernels_on<V, D>(communicator);
  Event parent;
  const bool known = V >= 5 && found(descr->parent, &parent) != nullptr && parent.communicator == communicator &&
                     (parent.type == kCollApi || parent.type == kP2pApi);
  learn<V>(communicator, *descr);
  if (descr->type == kColl) {
    event->channels = descr->coll.channels;
    event->op = known ? parent.op : op_of(descr->coll.func);
    event->number = known ? parent.number
                          : g_recorder.call(communicator,
                                            {event->op, type_of(descr->coll.datatype), descr->coll.count, 0, -1,
                                             static_cast<uint32_t>(descr->coll.root)},
                                            kernels);
    return kernels;
  }
  if constexpr (V >= 4) event->channels = descr->p2p.channels;
  event->op = op_of(descr->p2p.func);
  if (known) {
    event->number = parent.number;
    g_recorder.peer(communicator, event->op, parent.number, descr->p2p.peer);
  } else {
    event->number = g_recorder.call(
        communicator, {event->op, type_of(descr->p2p.datatype), descr->p2p.count, 0, descr->p2p.peer, 0}, kernels);
  }
  return kernels;
}

template <int V, class D>
bool api(Communicator* communicator, D* descr, Event* event) {
  if constexpr (V >= 5) {
    if (descr->type == kCollApi) {
      const CollApi& call = descr->coll_api;
      event->op = op_of(call.func);
      event->number = g_recorder.call(communicator,
                                      {event->op, type_of(call.datatype), call.count,
                                       reinterpret_cast<uintptr_t>(call.stream), -1, static_cast<uint32_t>(call.root)},
                                      kernels_on<V, D>(communicator));
      return true;
    }
    if (descr->type == kP2pApi) {
      const P2pApi& call = descr->p2p_api;
      event->op = op_of(call.func);
      event->number = g_recorder.call(
          communicator,
          {event->op, type_of(call.datatype), call.count, reinterpret_cast<uintptr_t>(call.stream), -1, 0},
          kernels_on<V, D>(communicator));
      return true;
    }
  }
  return false;
}

// A kernel began on one channel: the first of a call is its start.
bool kernel(void* parent, uint64_t timer, Event* event) {
  Event call;
  Slot* slot = found(parent, &call);
  if (slot == nullptr || (call.type != kColl && call.type != kP2p)) return false;
  if (!slot->started.exchange(true, std::memory_order_relaxed))
    g_recorder.mark(kStart, call.communicator, call.op, call.number, 0, timer);
  event->number = reinterpret_cast<uintptr_t>(parent);  // to find the call again when the kernel stops
  return true;
}

template <int V, class D>
int start(void* context, void** handle, D* descr) {
  if (handle == nullptr) return 0;
  *handle = nullptr;
  auto* communicator = static_cast<Communicator*>(context);
  if (communicator == nullptr || descr == nullptr) return 0;
  Event event;
  event.communicator = communicator;
  event.type = static_cast<uint32_t>(descr->type);
  event.theirs = relay<V>(communicator, descr);
  bool ours = false;
  if (event.type == kColl || event.type == kP2p) {
    ours = given<V>(communicator, descr, &event);
  } else if (event.type == kKernelCh && V >= 3) {
    ours = kernel(descr->parent, V >= 4 ? descr->kernel.timer : 0, &event);
  } else {
    ours = api<V>(communicator, descr, &event);
  }
  if (ours || event.theirs != nullptr) *handle = opened(event);
  return 0;
}

// The last channel of a call is its end; where NCCL did not say how many there are, every one may be.
void kernel_ended(const Event& event) {
  Event call;
  Slot* slot = found(reinterpret_cast<void*>(static_cast<uintptr_t>(event.number)), &call);
  if (slot == nullptr) return;
  const uint32_t stopped = slot->stopped.fetch_add(1, std::memory_order_relaxed) + 1;
  if (call.channels == 0 || stopped == call.channels)
    g_recorder.mark(kEnd, call.communicator, call.op, call.number, 0, 0);
}

int stop(void* handle) {
  if (handle == nullptr || (reinterpret_cast<uintptr_t>(handle) & kInline) != 0) return 0;
  Event event;
  Slot* slot = found(handle, &event);
  if (slot == nullptr) return 0;
  if (event.type == kKernelCh && !slot->stopped.exchange(1, std::memory_order_relaxed)) kernel_ended(event);
  if (event.theirs != nullptr && g_chained.stop != nullptr) g_chained.stop(event.theirs);
  return 0;
}

int record(void* handle, int state, void* arguments) {
  if (g_chained.record == nullptr) return 0;
  Event event;
  if (found(handle, &event) != nullptr && event.theirs != nullptr) g_chained.record(event.theirs, state, arguments);
  return 0;
}

int finalize(void* context) {
  auto* communicator = static_cast<Communicator*>(context);
  if (communicator != nullptr && communicator->theirs != nullptr && g_chained.finalize != nullptr) {
    g_chained.finalize(communicator->theirs);
    communicator->theirs = nullptr;
  }
  return 0;
}

// What is common to the three forms of init. `call` starts the other plug-in, which may refuse.
template <class Theirs>
int begin(int version, void** context, int* mask, uint64_t hash, int ranks, int rank, Theirs call) {
  if (context == nullptr || mask == nullptr) return 0;
  *context = nullptr;
  setup(version);
  // Where nothing can be recorded, the other plug-in is served all the same.
  const bool chained = g_chained.init != nullptr;
  Communicator* made = g_recorder.begin(hash, static_cast<uint32_t>(ranks), static_cast<uint32_t>(rank), chained);
  *context = made;
  if (made == nullptr) {
    *mask = 0;
    return 0;
  }
  made->mask = mask;
  int theirs = 0;
  if (chained && call(&made->theirs, &theirs) != 0) made->theirs = nullptr;
  if (made->theirs != nullptr) g_chained_mask.fetch_or(theirs & kKnown[version], std::memory_order_relaxed);
  refresh(made, version);
  return 0;
}

template <int V>
int init_v1(void** context, int* mask) {
  return begin(V, context, mask, 0, 0, 0, [](void** theirs, int* events) {
    return reinterpret_cast<InitV1>(g_chained.init)(theirs, events);
  });
}

int init_v4(void** context, int* mask, const char* name, uint64_t hash, int nodes, int ranks, int rank, Logger log) {
  return begin(4, context, mask, hash, ranks, rank, [&](void** theirs, int* events) {
    return reinterpret_cast<InitV4>(g_chained.init)(theirs, events, name, hash, nodes, ranks, rank, log);
  });
}

template <int V>
int init_v5(void** context, uint64_t id, int* mask, const char* name, int nodes, int ranks, int rank, Logger log) {
  return begin(V, context, mask, id, ranks, rank, [&](void** theirs, int* events) {
    return reinterpret_cast<InitV5>(g_chained.init)(theirs, id, events, name, nodes, ranks, rank, log);
  });
}

template <class Init, class D, int V>
constexpr Plugin<Init, D> table(Init init) {
  return {"megatrace", init, start<V, D>, stop, record, finalize};
}

}  // namespace
}  // namespace megatrace

#define MT_EXPORT extern "C" __attribute__((visibility("default")))
#define MT_PLUGIN(version, init, descr, function)                                                           \
  MT_EXPORT const megatrace::profiler::Plugin<megatrace::profiler::init, megatrace::profiler::descr>        \
      ncclProfiler_v##version;                                                                              \
  const megatrace::profiler::Plugin<megatrace::profiler::init, megatrace::profiler::descr>                  \
      ncclProfiler_v##version =                                                                             \
          megatrace::table<megatrace::profiler::init, megatrace::profiler::descr, version>(megatrace::function);

MT_PLUGIN(1, InitV1, DescrV1, init_v1<1>)
MT_PLUGIN(2, InitV1, DescrV2, init_v1<2>)
MT_PLUGIN(3, InitV1, DescrV3, init_v1<3>)
MT_PLUGIN(4, InitV4, DescrV4, init_v4)
MT_PLUGIN(5, InitV5, DescrV5, init_v5<5>)
MT_PLUGIN(6, InitV5, DescrV6, init_v5<6>)
