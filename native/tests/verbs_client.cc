// A client of libibverbs in the manner of NCCL, for tests: finds the library and its functions as NCCL does, posts chains
// of two requests of which the last asks for a completion, and polls.
//
//   verbs_client requests=N queues=Q bytes=B [depth=D] [threads=T] [slow=QP:BYTES_PER_S] [rate=BYTES_PER_S] [stall=QP]
//                [error=QP:STATUS:VENDOR] [signal_all=1] [hold_ms=M]
// QP counts from 0. Prints one line: posted, completed, and what the recorder counted if it is there.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <thread>
#include <time.h>
#include <vector>

#include "../verbs_abi.h"
#include "../work_requests.h"

using namespace megatrace::verbs;

namespace {

void* g_library;

template <typename F>
F function(const char* name) {
  void* found = dlvsym(g_library, name, "IBVERBS_1.1");
  if (found == nullptr) {
    fprintf(stderr, "no %s: %s\n", name, dlerror());
    exit(3);
  }
  return reinterpret_cast<F>(found);
}

uint64_t number(int argc, char** argv, const char* key, uint64_t otherwise) {
  const size_t length = strlen(key);
  for (int i = 1; i < argc; ++i)
    if (strncmp(argv[i], key, length) == 0 && argv[i][length] == '=') return strtoull(argv[i] + length + 1, nullptr, 10);
  return otherwise;
}

const char* word(int argc, char** argv, const char* key) {
  const size_t length = strlen(key);
  for (int i = 1; i < argc; ++i)
    if (strncmp(argv[i], key, length) == 0 && argv[i][length] == '=') return argv[i] + length + 1;
  return nullptr;
}

void open_library() {
  const char* named = getenv("NCCL_IBVERBS_LIB");
  if (named != nullptr) g_library = dlopen(named, RTLD_NOW);
  if (g_library == nullptr) g_library = dlopen("libibverbs.so", RTLD_NOW);
  if (g_library == nullptr) g_library = dlopen("libibverbs.so.1", RTLD_NOW);
  if (g_library == nullptr) {
    fprintf(stderr, "no libibverbs: %s\n", dlerror());
    exit(3);
  }
}

struct Load {
  uint64_t requests, bytes, depth;
  uint64_t posted = 0, completed = 0, failed = 0;
};

// Posts and polls on one queue pair until all is done or it stands still for `hold_ms`.
void drive(Qp* qp, Cq* cq, Load* load, uint64_t hold_ms, bool all_signaled) {
  Context* context = qp->context;
  Sge sge{0, static_cast<uint32_t>(load->bytes), 0};
  uint64_t waiting = 0;
  timespec began{}, now{};
  clock_gettime(CLOCK_MONOTONIC, &began);
  while (load->completed + load->failed < load->requests) {
    while (load->posted < load->requests && waiting + 2 <= load->depth) {
      SendRequest last{load->posted + 1, nullptr, &sge, 1, 0, kSignaled};
      SendRequest first{load->posted, &last, &sge, 1, 0, 0};
      SendRequest* bad = nullptr;
      if (context->ops.post_send(qp, &first, &bad) != 0) break;
      load->posted += 2;
      waiting += 2;
    }
    Completion done[8];
    const int got = context->ops.poll_cq(cq, 8, done);
    for (int i = 0; i < got; ++i) {
      if ((done[i].status == 0) && (done[i].opcode & kReceive) != 0) continue;
      const uint64_t retired = done[i].status != 0 || all_signaled ? 1 : 2;
      (done[i].status == 0 ? load->completed : load->failed) += retired;
      waiting -= retired;
    }
    if (got > 0) clock_gettime(CLOCK_MONOTONIC, &began);
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t still = (now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000;
    if (hold_ms != 0 && still > static_cast<int64_t>(hold_ms)) break;
  }
}

void connect(Qp* qp, uint64_t index, int (*modify)(Qp*, QpAttributes*, int)) {
  QpAttributes attributes;
  memset(&attributes, 0, sizeof attributes);
  attributes.dest_qp_num = static_cast<uint32_t>(900 + index);
  attributes.ah.is_global = 1;
  attributes.ah.port_num = 1;
  uint8_t gid[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0b, static_cast<uint8_t>(index)};
  memcpy(attributes.ah.grh.gid, gid, 16);
  modify(qp, &attributes, kAddressGiven | kDestinationGiven);
}

void set_faults(int argc, char** argv, const std::vector<Qp*>& pairs) {
  const auto set = reinterpret_cast<void (*)(uint32_t, uint64_t, int, int, uint32_t)>(
      dlsym(dlopen("libibverbs.so.1", RTLD_NOW), "mock_path"));
  if (set == nullptr) return;
  for (Qp* qp : pairs) set(qp->qp_num, number(argc, argv, "rate", 0), 0, 0, 0);
  unsigned long qp = 0, a = 0, b = 0;
  if (const char* slow = word(argc, argv, "slow"))
    if (sscanf(slow, "%lu:%lu", &qp, &a) == 2) set(pairs[qp]->qp_num, a, 0, 0, 0);
  if (const char* stall = word(argc, argv, "stall"))
    if (sscanf(stall, "%lu", &qp) == 1) set(pairs[qp]->qp_num, 0, 1, 0, 0);
  if (const char* error = word(argc, argv, "error"))
    if (sscanf(error, "%lu:%lu:%lu", &qp, &a, &b) == 3)
      set(pairs[qp]->qp_num, 0, 0, static_cast<int>(a), static_cast<uint32_t>(b));
}

}  // namespace

int main(int argc, char** argv) {
  open_library();
  const auto devices = function<Device** (*)(int*)>("ibv_get_device_list");
  const auto open = function<Context* (*)(Device*)>("ibv_open_device");
  const auto create_cq = function<Cq* (*)(Context*, int, void*, void*, int)>("ibv_create_cq");
  const auto create_qp = function<Qp* (*)(void*, QpInit*)>("ibv_create_qp");
  const auto modify_qp = function<int (*)(Qp*, QpAttributes*, int)>("ibv_modify_qp");
  const auto destroy_qp = function<int (*)(Qp*)>("ibv_destroy_qp");
  const auto alloc_pd = function<void* (*)(Context*)>("ibv_alloc_pd");

  const uint64_t queues = number(argc, argv, "queues", 1), hold = number(argc, argv, "hold_ms", 0);
  std::vector<Context*> contexts;
  int count = 0;
  Device** list = devices(&count);
  for (int i = 0; i < count; ++i) contexts.push_back(open(list[i]));
  std::vector<Qp*> pairs;
  std::vector<Cq*> completions;
  std::vector<Load> loads(queues);
  for (uint64_t i = 0; i < queues; ++i) {
    Context* context = contexts[i % contexts.size()];
    completions.push_back(create_cq(context, 64, nullptr, nullptr, 0));
    QpInit init;
    memset(&init, 0, sizeof init);
    init.pointers[1] = completions.back();
    init.sq_sig_all = static_cast<int>(number(argc, argv, "signal_all", 0));
    pairs.push_back(create_qp(alloc_pd(context), &init));
    connect(pairs.back(), i, modify_qp);
    loads[i].requests = number(argc, argv, "requests", 1000) / queues;
    loads[i].bytes = number(argc, argv, "bytes", 4096);
    loads[i].depth = number(argc, argv, "depth", 8);
  }
  set_faults(argc, argv, pairs);
  timespec begin{}, end{};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < queues; ++i)
    threads.emplace_back(drive, pairs[i], completions[i], &loads[i], hold, number(argc, argv, "signal_all", 0) != 0);
  for (std::thread& thread : threads) thread.join();
  clock_gettime(CLOCK_MONOTONIC, &end);
  Load all{};
  for (const Load& load : loads) {
    all.posted += load.posted;
    all.completed += load.completed;
    all.failed += load.failed;
  }
  const double ns = static_cast<double>(end.tv_sec - begin.tv_sec) * 1e9 + static_cast<double>(end.tv_nsec - begin.tv_nsec);
  printf("{\"posted\": %lu, \"completed\": %lu, \"failed\": %lu, \"ns_per_request\": %.1f", all.posted, all.completed,
         all.failed, ns / static_cast<double>(all.posted == 0 ? 1 : all.posted));
  void* totals = dlsym(RTLD_DEFAULT, "megatrace_work_request_totals");
  if (totals == nullptr) totals = dlsym(g_library, "megatrace_work_request_totals");
  if (totals != nullptr) {
    megatrace::QueueTotals seen;
    reinterpret_cast<void (*)(megatrace::QueueTotals*)>(totals)(&seen);
    printf(", \"seen\": {\"posted\": %lu, \"completed\": %lu, \"posted_bytes\": %lu, \"completed_bytes\": %lu, "
           "\"errors\": %lu, \"queues\": %u, \"max_depth\": %u}",
           seen.posted, seen.completed, seen.posted_bytes, seen.completed_bytes, seen.errors, seen.queues, seen.max_depth);
  }
  printf("}\n");
  if (number(argc, argv, "keep", 0) == 0)
    for (Qp* qp : pairs) destroy_qp(qp);
  return 0;
}
