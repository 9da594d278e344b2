// What recording a work request costs: a post and a poll of one request through libmegatrace_ibverbs.so, beside the same
// without it; ns of CPU, the least of many rounds, in which all take turns. Prints JSON.
// The argument is the library; null_ibverbs.cc must be found as libibverbs.so.1.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <dlfcn.h>

#include "../verbs_abi.h"

using namespace megatrace::verbs;

namespace {

constexpr int kCalls = 20000, kRounds = 41;

uint64_t ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

struct Queue {
  Context* context;
  Qp* qp;
  Cq* cq;
};

Queue g_watched, g_plain;

Queue made(void* library) {
  const auto function = [&](const char* name) { return dlsym(library, name); };
  Device** devices = reinterpret_cast<Device** (*)(int*)>(function("ibv_get_device_list"))(nullptr);
  Queue queue;
  queue.context = reinterpret_cast<Context* (*)(Device*)>(function("ibv_open_device"))(devices[0]);
  queue.cq = reinterpret_cast<Cq* (*)(Context*, int, void*, void*, int)>(function("ibv_create_cq"))(
      queue.context, 64, nullptr, nullptr, 0);
  QpInit init;
  memset(&init, 0, sizeof init);
  void* pd = reinterpret_cast<void* (*)(Context*)>(function("ibv_alloc_pd"))(queue.context);
  queue.qp = reinterpret_cast<Qp* (*)(void*, QpInit*)>(function("ibv_create_qp"))(pd, &init);
  return queue;
}

// One request is always on the way, as in a queue that is in use.
void request(const Queue& queue) {
  Sge sge{0, 4096, 0};
  SendRequest one{1, nullptr, &sge, 1, 0, kSignaled};
  SendRequest* bad = nullptr;
  queue.context->ops.post_send(queue.qp, &one, &bad);
  Completion done[1];
  queue.context->ops.poll_cq(queue.cq, 1, done);
}

void watched() { request(g_watched); }
void plain() { request(g_plain); }

struct Method {
  const char* name;
  void (*run)();
  double least;
};

}  // namespace

int main(int count, char** words) {
  void* ours = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  void* theirs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (ours == nullptr || theirs == nullptr) return 2;
  g_plain = made(theirs);
  g_watched = made(ours);
  Sge sge{0, 4096, 0};
  SendRequest first{0, nullptr, &sge, 1, 0, kSignaled};
  SendRequest* bad = nullptr;
  g_watched.context->ops.post_send(g_watched.qp, &first, &bad);
  Method methods[] = {{"watched request", watched, 1e9}, {"request", plain, 1e9}};
  for (int round = 0; round < kRounds; ++round)
    for (Method& method : methods) {
      const uint64_t begin = ns(CLOCK_THREAD_CPUTIME_ID);
      for (int i = 0; i < kCalls; ++i) method.run();
      const double each = static_cast<double>(ns(CLOCK_THREAD_CPUTIME_ID) - begin) / kCalls;
      if (each < method.least) method.least = each;
    }
  const char* comma = "{";
  for (const Method& method : methods) {
    printf("%s\"%s\": %.2f", comma, method.name, method.least);
    comma = ", ";
  }
  puts("}");
  return 0;
}
