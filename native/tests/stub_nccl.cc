// A libnccl.so.2 without GPUs, for tests: operations of real processes meet in shared memory, and the profiler plug-in is
// loaded and told what NCCL would tell it. The device is a thread that does one batch of operations after another.
//
// STUB_SHM names the file in which they meet; STUB_PROFILER the newest version of the plug-in's interface that this NCCL
// speaks (6 where it is not set). One program = one rank.
#include "stub_nccl.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../nccl_profiler_abi.h"

using namespace megatrace::profiler;

namespace {

constexpr int kComms = 64, kRanks = 16;
constexpr const char* kNames[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send", "Recv"};
constexpr uint8_t kOldNames[] = {4, 2, 3, 0, 6, 7};
enum What { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kSends, kReceives };

struct Meeting {  // of one communicator
  std::atomic<uint64_t> hash;
  std::atomic<uint64_t> begun[kRanks];            // collectives whose kernel began, by member
  std::atomic<uint64_t> sends[kRanks * kRanks];   // from, to
  std::atomic<uint64_t> receives[kRanks * kRanks];
};

struct Operation {
  ncclComm* comm;
  What what;
  size_t count;
  int type, peer, root;
  Stream stream;
  void *api, *event;
  uint64_t number;
};

Meeting* g_meetings;
std::once_flag g_once;
// Never destroyed: the device still waits on them when the program ends.
std::mutex& g_lock = *new std::mutex;
std::condition_variable& g_changed = *new std::condition_variable;
std::deque<std::vector<Operation>>& g_queue = *new std::deque<std::vector<Operation>>;
bool g_busy = false;
thread_local int t_depth = 0;
thread_local std::vector<Operation> t_group;

int g_mask = 0;  // as NCCL's: one for all communicators, the plug-in keeps its address
int g_version = 0;
void* g_plugin = nullptr;

}  // namespace

struct ncclComm {
  uint64_t hash;
  int ranks, rank;
  Meeting* meeting;
  void* context;
  uint64_t collectives, sends[kRanks], receives[kRanks], splits;
};

namespace {

template <class Init, class D>
const Plugin<Init, D>* plugin() {
  return static_cast<const Plugin<Init, D>*>(g_plugin);
}

bool wants(int type) { return g_plugin != nullptr && (__atomic_load_n(&g_mask, __ATOMIC_RELAXED) & type) != 0; }

template <class Init, class D>
void* start_as(ncclComm* comm, D& descr) {
  void* handle = nullptr;
  descr.rank = comm->rank;
  plugin<Init, D>()->start(comm->context, &handle, &descr);
  return handle;
}

void stop(void* handle) {
  if (handle != nullptr) plugin<InitV5, DescrV5>()->stop(handle);
}

const char* type_name(int type) { return type == 7 ? "ncclFloat32" : "ncclInt8"; }

template <class D, class Init, class Coll, class P2p>
void* given_as(const Operation& op, Coll coll, P2p p2p) {
  D descr;
  memset(static_cast<void*>(&descr), 0, sizeof descr);
  descr.parent = op.api;
  const bool message = op.what >= kSends;
  descr.type = message ? static_cast<uint8_t>(kP2p) : static_cast<uint8_t>(kColl);
  if (message) p2p(descr.p2p); else coll(descr.coll);
  return start_as<Init>(op.comm, descr);
}

// Coll or P2p: the operation is given to the device.
void* given(const Operation& op) {
  if (!wants(op.what >= kSends ? kP2p : kColl)) return nullptr;
  auto coll = [&](auto& to) {
    to.seq = op.number;
    to.count = op.count;
    to.root = op.root;
  };
  auto coll_named = [&](auto& to) {
    coll(to);
    to.func = kNames[op.what];
    to.datatype = type_name(op.type);
  };
  auto p2p = [&](auto& to) {
    to.count = op.count;
    to.peer = op.peer;
  };
  auto p2p_named = [&](auto& to) {
    p2p(to);
    to.func = kNames[op.what];
    to.datatype = type_name(op.type);
  };
  auto old_coll = [&](auto& to) {
    coll_named(to);
    to.comm_hash = op.comm->hash;
    to.channels = 1;
  };
  auto old_p2p = [&](auto& to) {
    p2p_named(to);
    to.comm_hash = op.comm->hash;
  };
  auto new_coll = [&](auto& to) {
    coll_named(to);
    to.channels = 2;
  };
  auto new_p2p = [&](auto& to) {
    p2p_named(to);
    to.channels = 2;
  };
  switch (g_version) {
    case 1:
      return given_as<DescrV1, InitV1>(
          op,
          [&](CollV1& to) {
            coll(to);
            to.comm_hash = op.comm->hash;
            to.func = kOldNames[op.what];
            to.datatype = static_cast<uint8_t>(op.type);
          },
          [&](P2pV1& to) {
            p2p(to);
            to.comm_hash = op.comm->hash;
            to.func = kOldNames[op.what];
            to.datatype = static_cast<uint8_t>(op.type);
          });
    case 2: return given_as<DescrV2, InitV1>(op, old_coll, old_p2p);
    case 3: return given_as<DescrV3, InitV1>(op, old_coll, old_p2p);
    case 4: return given_as<DescrV4, InitV4>(op, new_coll, new_p2p);
    default: return given_as<DescrV5, InitV5>(op, new_coll, new_p2p);
  }
}

// CollApi or P2pApi: the program makes the call.
void* api(const Operation& op) {
  const bool message = op.what >= kSends;
  if (g_version < 5 || !wants(message ? kP2pApi : kCollApi)) return nullptr;
  DescrV5 descr;
  memset(static_cast<void*>(&descr), 0, sizeof descr);
  descr.type = message ? kP2pApi : kCollApi;
  if (message)
    descr.p2p_api = {kNames[op.what], op.count, type_name(op.type), op.stream, false};
  else
    descr.coll_api = {kNames[op.what], op.count, type_name(op.type), op.root, op.stream, false};
  return start_as<InitV5>(op.comm, descr);
}

void* kernel(const Operation& op, uint8_t channel) {
  if (g_version < 3 || op.event == nullptr || !wants(kKernelCh)) return nullptr;
  if (g_version == 3) {
    DescrV3 descr;
    memset(static_cast<void*>(&descr), 0, sizeof descr);
    descr.type = kKernelCh;
    descr.parent = op.event;
    descr.kernel.channel = channel;
    return start_as<InitV1>(op.comm, descr);
  }
  if (g_version == 4) {
    DescrV4 descr;
    memset(static_cast<void*>(&descr), 0, sizeof descr);
    descr.type = kKernelCh;
    descr.parent = op.event;
    descr.kernel.channel = channel;
    return start_as<InitV4>(op.comm, descr);
  }
  DescrV5 descr;
  memset(static_cast<void*>(&descr), 0, sizeof descr);
  descr.type = kKernelCh;
  descr.parent = op.event;
  descr.kernel.channel = channel;
  return start_as<InitV5>(op.comm, descr);
}

std::atomic<uint64_t>& place(const Operation& op, bool theirs) {
  const bool send = (op.what == kSends) != theirs;
  const int from = (op.what == kSends) ? op.comm->rank : op.peer, to = (op.what == kSends) ? op.peer : op.comm->rank;
  return (send ? op.comm->meeting->sends : op.comm->meeting->receives)[from * kRanks + to];
}

bool done(const Operation& op) {
  if (op.what >= kSends) return place(op, true).load() > op.number;
  for (int rank = 0; rank < op.comm->ranks; ++rank)
    if (op.comm->meeting->begun[rank].load() <= op.number) return false;
  return true;
}

void device() {
  for (;;) {
    std::vector<Operation> batch;
    {
      std::unique_lock<std::mutex> held(g_lock);
      g_busy = false;
      g_changed.notify_all();
      g_changed.wait(held, [] { return !g_queue.empty(); });
      batch = g_queue.front();
      g_queue.pop_front();
      g_busy = true;
    }
    std::vector<void*> kernels;
    for (const Operation& op : batch) {
      for (uint8_t channel = 0; channel < (g_version >= 4 ? 2 : 1); ++channel) kernels.push_back(kernel(op, channel));
      if (op.what >= kSends) place(op, false).store(op.number + 1);
      else op.comm->meeting->begun[op.comm->rank].store(op.number + 1);
    }
    for (const Operation& op : batch)
      while (!done(op)) usleep(100);
    for (void* handle : kernels) stop(handle);
  }
}

void load() {
  const char* name = getenv("NCCL_PROFILER_PLUGIN");
  if (name == nullptr || strcmp(name, "none") == 0) return;
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "stub: %s\n", dlerror());
    return;
  }
  const char* newest = getenv("STUB_PROFILER");
  for (int version = newest != nullptr ? atoi(newest) : 6; version > 0 && g_plugin == nullptr; --version) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    g_plugin = dlsym(library, symbol);
    g_version = version;
  }
}

void begin() {
  const int file = open(getenv("STUB_SHM"), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Meeting) * kComms) != 0) abort();
  g_meetings = static_cast<Meeting*>(
      mmap(nullptr, sizeof(Meeting) * kComms, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
  load();
  std::thread(device).detach();
}

int make(ncclComm** out, int ranks, int rank, uint64_t hash) {
  std::call_once(g_once, begin);
  ncclComm* comm = new ncclComm();
  comm->hash = hash;
  comm->ranks = ranks;
  comm->rank = rank;
  for (Meeting* at = g_meetings;; ++at) {
    uint64_t free_place = 0;
    if (at->hash.compare_exchange_strong(free_place, hash) || free_place == hash) {
      comm->meeting = at;
      break;
    }
  }
  if (g_plugin != nullptr) {
    if (g_version <= 3) plugin<InitV1, DescrV1>()->init(&comm->context, &g_mask);
    else if (g_version == 4)
      plugin<InitV4, DescrV4>()->init(&comm->context, &g_mask, "", hash, 1, ranks, rank, nullptr);
    else
      plugin<InitV5, DescrV5>()->init(&comm->context, hash, &g_mask, "", 1, ranks, rank, nullptr);
  }
  *out = comm;
  return 0;
}

int end_group() {
  if (--t_depth > 0) return 0;
  for (Operation& op : t_group) {
    op.event = given(op);
    stop(op.event);  // of Coll: not the end of the operation
  }
  std::lock_guard<std::mutex> held(g_lock);
  if (!t_group.empty()) g_queue.push_back(t_group);
  t_group.clear();
  g_changed.notify_all();
  return 0;
}

int call(ncclComm* comm, What what, size_t count, int type, int peer, int root, Stream stream) {
  if (comm == nullptr || peer >= comm->ranks) return 4;  // ncclInvalidArgument
  ++t_depth;
  Operation op{comm, what, count, type, peer, root, stream, nullptr, nullptr, 0};
  uint64_t& number = what == kSends ? comm->sends[peer] : what == kReceives ? comm->receives[peer] : comm->collectives;
  op.number = number++;
  op.api = api(op);
  t_group.push_back(op);
  stop(op.api);
  return end_group();
}

}  // namespace

#define STUB(result, name, ...)                                                                    \
  extern "C" __attribute__((visibility("default"), weak, alias("p" #name))) result name(__VA_ARGS__); \
  extern "C" __attribute__((visibility("default"))) result p##name(__VA_ARGS__)

STUB(int, ncclCommInitRank, ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  uint64_t hash = 1469598103934665603u;
  for (char letter : id.internal) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return make(comm, ranks, rank, hash);
}
STUB(int, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t* made, void*) {
  // Colours are runs of equal length, which is all that the tests need.
  const int size = key;
  return make(made, size, comm->rank % size, comm->hash * 31 + ++comm->splits * 1009 + static_cast<uint64_t>(color));
}
STUB(int, ncclCommCount, ncclComm_t comm, int* count) {
  *count = comm->ranks;
  return 0;
}
STUB(int, ncclCommUserRank, ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return 0;
}
STUB(int, ncclCommDestroy, ncclComm_t comm) {
  if (g_plugin != nullptr) plugin<InitV5, DescrV5>()->finalize(comm->context);
  return 0;
}
STUB(int, ncclCommAbort, ncclComm_t comm) { return pncclCommDestroy(comm); }
STUB(int, ncclAllReduce, const void*, void*, size_t count, int type, int, ncclComm_t comm, Stream stream) {
  return call(comm, kAllReduce, count, type, -1, 0, stream);
}
STUB(int, ncclAllGather, const void*, void*, size_t count, int type, ncclComm_t comm, Stream stream) {
  return call(comm, kAllGather, count, type, -1, 0, stream);
}
STUB(int, ncclReduceScatter, const void*, void*, size_t count, int type, int, ncclComm_t comm, Stream stream) {
  return call(comm, kReduceScatter, count, type, -1, 0, stream);
}
STUB(int, ncclBroadcast, const void*, void*, size_t count, int type, int root, ncclComm_t comm, Stream stream) {
  return call(comm, kBroadcast, count, type, -1, root, stream);
}
STUB(int, ncclSend, const void*, size_t count, int type, int peer, ncclComm_t comm, Stream stream) {
  return call(comm, kSends, count, type, peer, 0, stream);
}
STUB(int, ncclRecv, void*, size_t count, int type, int peer, ncclComm_t comm, Stream stream) {
  return call(comm, kReceives, count, type, peer, 0, stream);
}
STUB(int, ncclGroupStart) {
  ++t_depth;
  return 0;
}
STUB(int, ncclGroupEnd) { return end_group(); }

extern "C" __attribute__((visibility("default"))) void stubSynchronize() {
  std::unique_lock<std::mutex> held(g_lock);
  g_changed.wait(held, [] { return g_queue.empty() && !g_busy; });
}
