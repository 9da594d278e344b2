// One rank of a training with TP 2 x PP 2 x DP 2 over the stub of NCCL: 8 processes, four micro-batches an iteration.
//
//   nccl_job iterations=N [stall=RANK:ITERATION] [kill=RANK:ITERATION] [slow=RANK:FIRST:LAST] [split=1] [fork=1] [grouped=1]
// The rank is in RANK. `stall`: that rank makes no further call and waits for ever; `kill`: it is gone.
// `split`: the tensor groups are split from the world, in an NCCL group, and not made by an id.
// `grouped`: both collectives of a layer are made in one NCCL group. `fork`: a child makes a communicator of its own and ends.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "stub_nccl.h"

namespace {

constexpr int kFloat = 7, kSum = 0, kMicroBatches = 4;
constexpr size_t kActivations = 4096, kGradients = 65536;

ncclComm_t open_group(const char* name, int number, int ranks, int rank) {
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  snprintf(id.internal, sizeof id.internal, "%s %d", name, number);
  ncclComm_t made = nullptr;
  if (ncclCommInitRank(&made, ranks, id, rank) != 0) exit(3);
  return made;
}

struct Rank {
  int rank, tp, stage, dp;
  ncclComm_t world, tensor = nullptr, pipeline, data;
  Stream stream = reinterpret_cast<Stream>(0x1000);
  useconds_t work_us = 2000;
  bool grouped = false;

  void layer() {
    usleep(work_us);
    if (grouped) ncclGroupStart();
    ncclAllReduce(nullptr, nullptr, kActivations, kFloat, kSum, tensor, stream);
    ncclAllReduce(nullptr, nullptr, kActivations, kFloat, kSum, tensor, stream);
    if (grouped) ncclGroupEnd();
  }
  void send(int to) { ncclSend(nullptr, kActivations, kFloat, to, pipeline, stream); }
  void receive(int from) { ncclRecv(nullptr, kActivations, kFloat, from, pipeline, stream); }

  void forward() {
    if (stage == 1) receive(0);
    layer();
    if (stage == 0) send(1);
  }
  void backward() {
    if (stage == 0) receive(1);
    layer();
    if (stage == 1) send(0);
  }
};

bool is_at(const std::string& word, const char* what, int rank, int iteration) {
  return word == std::string(what) + "=" + std::to_string(rank) + ":" + std::to_string(iteration);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int job(int count, char** words) {
  const int rank = atoi(getenv("RANK"));
  Rank me;
  me.rank = rank;
  me.tp = rank % 2;
  me.dp = rank / 2 % 2;
  me.stage = rank / 4;
  me.world = open_group("world", 0, 8, rank);
  bool split = false;
  for (int i = 1; i < count; ++i) split = split || strcmp(words[i], "split=1") == 0;
  ncclGroupStart();
  if (split) ncclCommSplit(me.world, rank / 2, 2, &me.tensor, nullptr);
  ncclGroupEnd();
  if (!split) me.tensor = open_group("tensor", rank / 2, 2, me.tp);
  me.data = open_group("data", me.stage * 2 + me.tp, 2, me.dp);
  me.pipeline = open_group("pipeline", rank % 4, 2, me.stage);
  int iterations = 1, slow_first = 0, slow_last = -1, slow_rank = -1;
  for (int i = 1; i < count; ++i) {
    if (strncmp(words[i], "iterations=", 11) == 0) iterations = atoi(words[i] + 11);
    me.grouped = me.grouped || strcmp(words[i], "grouped=1") == 0;
    sscanf(words[i], "slow=%d:%d:%d", &slow_rank, &slow_first, &slow_last);
  }
  ncclBroadcast(nullptr, nullptr, 1, kFloat, 0, me.world, me.stream);
  for (int i = 1; i < count; ++i) {
    if (strcmp(words[i], "fork=1") != 0) continue;
    const pid_t child = fork();
    if (child == 0) {
      open_group("child", rank, 1, 0);
      _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    if (status != 0) return 4;
  }
  for (int iteration = 0; iteration < iterations; ++iteration) {
    me.work_us = rank == slow_rank && iteration >= slow_first && iteration <= slow_last ? 20000 : 2000;
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      for (int i = 1; i < count && micro == 1; ++i) {
        if (is_at(words[i], "kill", rank, iteration)) kill(getpid(), SIGKILL);
        if (is_at(words[i], "stall", rank, iteration)) pause();
      }
      me.forward();
    }
    for (int micro = 0; micro < kMicroBatches; ++micro) me.backward();
    ncclAllReduce(nullptr, nullptr, kGradients, kFloat, kSum, me.data, me.stream);
    stubSynchronize();
  }
  for (ncclComm_t comm : {me.tensor, me.data, me.pipeline, me.world}) ncclCommDestroy(comm);
  puts("done");
  return 0;
}
