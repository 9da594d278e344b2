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

#include "stub_events.h"

using namespace stub;

namespace {

Meeting* g_meetings;
std::once_flag g_once;
// Never destroyed: the device still waits on them when the program ends.
std::mutex& g_lock = *new std::mutex;
std::condition_variable& g_changed = *new std::condition_variable;
std::deque<std::vector<Operation>>& g_queue = *new std::deque<std::vector<Operation>>;
bool g_busy = false;
thread_local int t_depth = 0;
thread_local std::vector<Operation> t_group;

// A message over the network: four requests of the proxy that are on the way together.
//   STUB_NET=BYTES_PER_S           how fast they come through; without it, and without a plug-in that asks, none are made
//   STUB_NET_SLOW=RANK:BYTES_PER_S the messages of that rank
//   STUB_NET_STALL=RANK:MESSAGES   after so many messages nothing comes through
//   STUB_NET_UNPAIRED=1            the end of the last request of a message is never told
constexpr int kRequests = 4;
struct Transfer {
  void* operation = nullptr;
  void* steps[kRequests] = {};
};

bool of_rank(const char* variable, double* value) {
  const char* word = getenv(variable);
  int rank = -1;
  double said = 0;
  if (word == nullptr || sscanf(word, "%d:%lf", &rank, &said) != 2 || rank != atoi(getenv("RANK"))) return false;
  *value = said;
  return true;
}

Transfer post(const Operation& op) {
  Transfer made;
  if (op.what != kSends || getenv("STUB_NET") == nullptr) return made;
  const size_t part = op.count * 4 / kRequests;
  made.operation = told(op.comm, kProxyOp, op.event, [&](auto& descr) {
    descr.proxy_op = {getpid(), 0, op.peer, kRequests, static_cast<int>(part), 1};
  });
  for (int i = 0; i < kRequests && made.operation != nullptr; ++i) {
    made.steps[i] = told(op.comm, kProxyStep, made.operation, [&](auto& descr) { descr.step = i; });
    if (made.steps[i] == nullptr) continue;
    size_t sizes[2] = {part, 0};
    for (int state : {8, 9})
      plugin<InitV5, DescrV5>()->record(made.steps[i], state, g_version >= 4 ? sizes : nullptr);
  }
  return made;
}

void carry(const Operation& op, const Transfer& transfer) {
  const char* usual = getenv("STUB_NET");
  if (op.what != kSends || usual == nullptr) return;
  static uint64_t messages = 0;
  double rate = atof(usual), most = 0;
  of_rank("STUB_NET_SLOW", &rate);
  if (of_rank("STUB_NET_STALL", &most) && ++messages > static_cast<uint64_t>(most)) pause();
  for (int i = 0; i < kRequests; ++i) {
    usleep(static_cast<useconds_t>(static_cast<double>(op.count) * 4e6 / kRequests / rate));
    if (i + 1 < kRequests || getenv("STUB_NET_UNPAIRED") == nullptr) stop(transfer.steps[i]);
  }
  stop(transfer.operation);
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
    std::vector<Transfer> transfers;
    for (const Operation& op : batch) {
      for (uint8_t channel = 0; channel < (g_version >= 4 ? 2 : 1); ++channel) kernels.push_back(kernel(op, channel));
      transfers.push_back(post(op));
      if (op.what == kReceives) place(op, false).store(op.number + 1);
      else if (op.what < kSends) op.comm->meeting->begun[op.comm->rank].store(op.number + 1);
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      if (batch[i].what != kSends) continue;
      while (!done(batch[i])) usleep(100);
      carry(batch[i], transfers[i]);
      place(batch[i], false).store(batch[i].number + 1);
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

// A call alone is a group as well. Versions 5 and 6 tell of it when it begins, earlier ones when it is given to the device.
void begin_group(ncclComm* comm) {
  if (g_version >= 5 && t_group_event == nullptr && comm != nullptr)
    t_group_event = told(comm, kGroupApi, nullptr, [](auto&) {});
}

int end_group() {
  if (--t_depth > 0) return 0;
  if (t_group_event != nullptr) plugin<InitV5, DescrV5>()->record(t_group_event, 24, nullptr);
  if (g_version <= 4 && !t_group.empty()) t_group_event = told(t_group[0].comm, kGroup, nullptr, [](auto&) {});
  for (Operation& op : t_group) {
    if (g_version <= 4) op.api = t_group_event;  // the parent
    op.event = given(op);
    stop(op.event);  // of Coll: not the end of the operation
  }
  stop(t_group_event);
  t_group_event = nullptr;
  std::lock_guard<std::mutex> held(g_lock);
  if (!t_group.empty()) g_queue.push_back(t_group);
  t_group.clear();
  g_changed.notify_all();
  return 0;
}

int call(ncclComm* comm, What what, size_t count, int type, int peer, int root, Stream stream) {
  if (comm == nullptr || peer >= comm->ranks) return 4;  // ncclInvalidArgument
  ++t_depth;
  begin_group(comm);
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
STUB(int, ncclGetVersion, int* version) {
  const char* word = getenv("STUB_VERSION");
  *version = word != nullptr ? atoi(word) : 22907;
  return 0;
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
