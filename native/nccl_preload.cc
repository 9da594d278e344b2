// libmegatrace_preload.so: stands before NCCL (or RCCL) in a process and records the calls of the program.
//
// For releases of NCCL that tell a profiler plug-in no stream (before 2.28), or that have none (before 2.23). Sees what
// is called by name, also from a library that was opened with RTLD_LOCAL; who asks dlsym for the functions of a handle
// passes by, and is seen by the plug-in.
//
// A communicator is called by its unique id, or by its parent, the number of the split and the colour: the same on all
// of its members. A call is recorded before it is made: what a hang shows is a call that was made and is not done.
#include <atomic>
#include <cstring>
#include <dlfcn.h>

#include "nccl_recorder.h"

#define MT_EXPORT extern "C" __attribute__((visibility("default")))

namespace megatrace {

Recorder g_recorder(kPreload);

namespace {

using Comm = void*;
struct UniqueId {
  char bytes[128];
};
static_assert(sizeof(UniqueId) == 128);

constexpr int kMissing = 3, kInProgress = 7;  // ncclInternalError, ncclInProgress
constexpr uint32_t kPlaces = 4096;            // four times the communicators that are recorded: a search stays short
constexpr uint32_t kPending = 64;             // communicators of one NCCL group

struct Known {
  std::atomic<Comm> comm{nullptr};
  std::atomic<Communicator*> communicator{nullptr};
};

// A communicator whose handle is written when its group ends.
struct Pending {
  Comm* place;
  uint64_t hash;
  int ranks, rank;
};

Known g_known[kPlaces];
std::atomic<uint64_t> g_made{0}, g_groups{0};

// initial-exec: a place in the thread's own block, without a call that could allocate. NCCL's own functions may call
// each other by name: what is inside of a call is none of the program's.
__attribute__((tls_model("initial-exec"))) thread_local bool t_inside = false;
__attribute__((tls_model("initial-exec"))) thread_local uint32_t t_depth = 0, t_pending = 0, t_calls = 0;
__attribute__((tls_model("initial-exec"))) thread_local uint8_t t_group = 0;
__attribute__((tls_model("initial-exec"))) thread_local Pending t_waiting[kPending];

// The function behind ours. Where we were preloaded and NCCL came with a library of local scope there is nothing behind
// us; then NCCL is loaded already, and asked by its other name.
void* real(const char* name, const char* other) {
  void* found = dlsym(RTLD_NEXT, name);
  constexpr const char* kLibraries[] = {"libnccl.so.2", "librccl.so.1"};
  for (const char* library : kLibraries) {
    if (found != nullptr) break;
    void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    found = dlsym(handle, other);
    // RCCL's releases differ in whether they have the other name. Ours is not in the scope of a handle.
    if (found == nullptr) found = dlsym(handle, name);
  }
  return found;
}

template <class F>
F known(std::atomic<void*>& place, const char* name, const char* other) {
  // Relaxed: two threads find the same function, and the code it points to was there before.
  void* found = place.load(std::memory_order_relaxed);
  if (found == nullptr && (found = real(name, other)) != nullptr) place.store(found, std::memory_order_relaxed);
  return reinterpret_cast<F>(found);
}

uint64_t mixed(uint64_t hash, const void* data, size_t size) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ at[i]) * 0x100000001B3u;
  hash ^= hash >> 31;
  return hash != 0 ? hash : 1;  // 0 means "not known"
}

constexpr uint64_t kSeed = 0xCBF29CE484222325u;

uint32_t first_place(const Comm comm) {
  const uint64_t word = reinterpret_cast<uintptr_t>(comm) >> 4;
  return static_cast<uint32_t>((word * 0x9E3779B97F4A7C15u) >> 52);  // 12 bits: kPlaces
}

Communicator* find(const Comm comm) {
  for (uint32_t i = 0, at = first_place(comm); i < kPlaces; ++i, at = (at + 1) % kPlaces) {
    // Acquire: whoever sees the handle sees the communicator that was stored before.
    const Comm there = g_known[at].comm.load(std::memory_order_acquire);
    if (there == comm) return g_known[at].communicator.load(std::memory_order_acquire);
    if (there == nullptr) return nullptr;
  }
  return nullptr;
}

void add(const Comm comm, uint64_t hash, int ranks, int rank) {
  if (comm == nullptr || hash == 0 || ranks < 0 || rank < 0) return;
  Communicator* made = g_recorder.begin(hash, static_cast<uint32_t>(ranks), static_cast<uint32_t>(rank));
  if (made == nullptr) return;
  for (uint32_t i = 0, at = first_place(comm); i < kPlaces; ++i, at = (at + 1) % kPlaces) {
    Comm there = nullptr;
    // An address that is used again belongs to the new one from now on.
    if (!g_known[at].comm.compare_exchange_strong(there, comm, std::memory_order_acq_rel) && there != comm) continue;
    g_known[at].communicator.store(made, std::memory_order_release);
    return;
  }
}

// Size and own number, asked where the call did not tell them. -1: NCCL does not know them yet.
int asked(const Comm comm, std::atomic<void*>& place, const char* name, const char* other) {
  const auto ask = known<int (*)(Comm, int*)>(place, name, other);
  int value = -1;
  return ask != nullptr && ask(comm, &value) == 0 ? value : -1;
}

void adopt(const Pending& pending) {
  static std::atomic<void*> count{nullptr}, rank{nullptr};
  const Comm comm = *pending.place;
  if (comm == nullptr) return;
  t_inside = true;
  const int ranks = pending.ranks > 0 ? pending.ranks : asked(comm, count, "ncclCommCount", "pncclCommCount");
  const int own = pending.rank >= 0 ? pending.rank : asked(comm, rank, "ncclCommUserRank", "pncclCommUserRank");
  t_inside = false;
  add(comm, pending.hash, ranks, own);
}

// A communicator was asked for. Within a group its handle and its size are there when the group ends.
void expect(Comm* place, uint64_t hash, int ranks, int rank, int result) {
  if (place == nullptr || (result != 0 && result != kInProgress)) return;
  const Pending pending{place, hash, ranks, rank};
  if (t_depth == 0) return adopt(pending);
  if (t_pending < kPending) t_waiting[t_pending++] = pending;
}

uint64_t derived(const Comm parent, uint64_t what, uint64_t which) {
  Communicator* of = find(parent);
  if (of == nullptr) return 0;
  const uint64_t words[] = {of->hash.load(std::memory_order_relaxed), of->children.fetch_add(1), what, which};
  return mixed(kSeed, words, sizeof words);
}

// The mark of the program's group that a call is made in, 0 for none.
inline uint8_t grouped() {
  if (t_depth == 0) return 0;
  ++t_calls;
  return t_group;
}

}  // namespace
}  // namespace megatrace

using namespace megatrace;

#define MT_REAL(name, signature)                     \
  static std::atomic<void*> place{nullptr};          \
  const auto next = known<signature>(place, "nccl" #name, "pnccl" #name); \
  if (next == nullptr) return kMissing

// Calls that are recorded.
#define MT_CALL(name, operation, parameters, arguments, count, type, peer, root)                                        \
  MT_EXPORT int nccl##name parameters {                                                                                 \
    MT_REAL(name, int(*) parameters);                                                                                   \
    if (t_inside) return next arguments;                                                                                \
    Communicator* of = find(comm);                                                                                      \
    if (of == nullptr) return next arguments;                                                                           \
    const uint64_t number =                                                                                             \
        g_recorder.call(of,                                                                                             \
                        {operation, static_cast<uint8_t>(type), count, reinterpret_cast<uintptr_t>(stream), peer,       \
                         static_cast<uint32_t>(root), grouped()},                                                       \
                        false);                                                                                         \
    t_inside = true;                                                                                                    \
    const int result = next arguments;                                                                                  \
    t_inside = false;                                                                                                   \
    if (result != 0 && result != kInProgress)                                                                           \
      g_recorder.mark(kFailed, of, operation, number, static_cast<uint32_t>(result), 0);                                \
    return result;                                                                                                      \
  }
#include "nccl_prototypes.h"
#undef MT_CALL

MT_EXPORT int ncclGroupStart() {
  MT_REAL(GroupStart, int (*)());
  const int result = next();
  if (result != 0 || t_inside || t_depth++ != 0) return result;
  t_group = group_mark(g_groups.fetch_add(1, std::memory_order_relaxed));
  t_calls = 0;
  return result;
}

MT_EXPORT int ncclGroupEnd() {
  MT_REAL(GroupEnd, int (*)());
  if (t_inside || t_depth != 1) {
    const int inner = next();
    if (!t_inside && t_depth != 0) --t_depth;
    return inner;
  }
  // Here the program waits where NCCL has to connect, or communicators are not blocking.
  const bool several = t_calls > 1;
  if (several) g_recorder.group(t_group, t_calls, false);
  const int result = next();
  if (several) g_recorder.group(t_group, t_calls, true);
  t_depth = 0;
  const uint32_t waiting = t_pending;
  t_pending = 0;
  for (uint32_t i = 0; i < waiting && (result == 0 || result == kInProgress); ++i) adopt(t_waiting[i]);
  return result;
}

// Communicators that are made. What NCCL does inside is not the program's.
#define MT_MAKE(call)   \
  t_inside = true;      \
  const int result = call; \
  t_inside = false

MT_EXPORT int ncclCommInitRank(Comm* comm, int ranks, UniqueId id, int rank) {
  MT_REAL(CommInitRank, int (*)(Comm*, int, UniqueId, int));
  MT_MAKE(next(comm, ranks, id, rank));
  expect(comm, mixed(kSeed, &id, sizeof id), ranks, rank, result);
  return result;
}

MT_EXPORT int ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, void* config) {
  MT_REAL(CommInitRankConfig, int (*)(Comm*, int, UniqueId, int, void*));
  MT_MAKE(next(comm, ranks, id, rank, config));
  expect(comm, mixed(kSeed, &id, sizeof id), ranks, rank, result);
  return result;
}

MT_EXPORT int ncclCommInitRankScalable(Comm* comm, int ranks, int rank, int count, UniqueId* ids, void* config) {
  MT_REAL(CommInitRankScalable, int (*)(Comm*, int, int, int, UniqueId*, void*));
  MT_MAKE(next(comm, ranks, rank, count, ids, config));
  const size_t size = ids != nullptr && count > 0 ? static_cast<size_t>(count) * sizeof(UniqueId) : 0;
  expect(comm, mixed(kSeed, ids, size), ranks, rank, result);
  return result;
}

MT_EXPORT int ncclCommInitAll(Comm* comms, int count, const int* devices) {
  MT_REAL(CommInitAll, int (*)(Comm*, int, const int*));
  MT_MAKE(next(comms, count, devices));
  // All members are in this process: a number of ours serves as well as an id.
  const uint64_t words[] = {clock_ns(CLOCK_REALTIME), g_made.fetch_add(1)};
  for (int i = 0; i < count && comms != nullptr; ++i)
    expect(comms + i, mixed(kSeed, words, sizeof words), count, i, result);
  return result;
}

MT_EXPORT int ncclCommSplit(Comm comm, int color, int key, Comm* made, void* config) {
  MT_REAL(CommSplit, int (*)(Comm, int, int, Comm*, void*));
  const uint64_t hash = derived(comm, 1, static_cast<uint64_t>(color));
  MT_MAKE(next(comm, color, key, made, config));
  expect(made, hash, 0, -1, result);
  return result;
}

MT_EXPORT int ncclCommShrink(Comm comm, int* excluded, int count, Comm* made, void* config, int flags) {
  MT_REAL(CommShrink, int (*)(Comm, int*, int, Comm*, void*, int));
  const uint64_t hash = derived(comm, 2, static_cast<uint64_t>(count));
  MT_MAKE(next(comm, excluded, count, made, config, flags));
  expect(made, hash, 0, -1, result);
  return result;
}

// Communicators that end: their handle may come again.
#define MT_END(name)                                                                    \
  MT_EXPORT int nccl##name(Comm comm) {                                                 \
    MT_REAL(name, int (*)(Comm));                                                       \
    Communicator* of = t_inside ? nullptr : find(comm);                                 \
    MT_MAKE(next(comm));                                                                \
    if (of != nullptr) g_recorder.mark(kFinished, of, 0, 0, static_cast<uint32_t>(result), 0); \
    return result;                                                                      \
  }
MT_END(CommFinalize)
MT_END(CommDestroy)
MT_END(CommAbort)
