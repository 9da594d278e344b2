// Exercises ring.h for tests/components/test_ring_format.py:
//   layout                 the offsets as JSON
//   wrap THREADS RECORDS   so many threads write so many records each, several times round the ring
//   fork                   parent and child write; the child opens a ring of its own
//   exec                   writes, and becomes itself once more under the same number
//   full                   tells whether the ring is open
//   step                   writes for five seconds of the records' time; the clock is set before the third
// A record of `wrap` holds its number in every column, so that a mixture of two is seen.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <vector>

#include <sys/wait.h>

#include "../ring.h"

using namespace megatrace;

namespace {

Ring g_ring;

Record filled(uint64_t value) {
  Record made{};
  made.time_ns = made.comm = made.number = made.nbytes = made.stream = value;
  made.flags = static_cast<uint32_t>(value);
  made.peer = static_cast<int32_t>(value);
  made.kind = kCall;
  made.thread = static_cast<uint16_t>(value);
  made.source = kPlugin;
  return made;
}

bool opened() { return g_ring.open({"records", "check", "check", records_of("RECORDS", 256), 4, ""}); }

#define OFFSET(name) printf(", \"%s\": %zu", #name, offsetof(Record, name))

int layout() {
  printf("{\"size\": %zu", sizeof(Record));
  OFFSET(seq);
  OFFSET(time_ns);
  OFFSET(comm);
  OFFSET(number);
  OFFSET(nbytes);
  OFFSET(stream);
  OFFSET(flags);
  OFFSET(peer);
  OFFSET(kind);
  OFFSET(op);
  OFFSET(dtype);
  OFFSET(channel);
  OFFSET(thread);
  OFFSET(source);
  printf(", \"header\": %zu, \"json\": %zu, \"control\": %zu", sizeof(RingHeader), offsetof(RingHeader, json),
         offsetof(RingHeader, control));
  printf(", \"offset\": %zu, \"anchored\": %zu}\n", offsetof(RingHeader, offset_ns), offsetof(RingHeader, anchored_ns));
  return 0;
}

int wrap(int threads, uint64_t records) {
  if (!opened()) return 1;
  std::vector<std::thread> writers;
  for (int i = 0; i < threads; ++i)
    writers.emplace_back([=] {
      for (uint64_t n = 0; n < records; ++n) g_ring.put(filled(static_cast<uint64_t>(i) * records + n));
    });
  for (std::thread& writer : writers) writer.join();  // what threads wrote stays when they are gone
  return 0;
}

// tests/stepped_clock.cc adds what CLOCK_STEP_NS says to CLOCK_REALTIME.
int step() {
  if (!opened()) return 1;
  const uint64_t begin = clock_ns(CLOCK_MONOTONIC);
  for (uint64_t second = 0; second < 5; ++second) {
    if (second == 2) setenv("CLOCK_STEP_NS", "3600000000000", 1);
    Record made = filled(second);
    made.time_ns = begin + second * 1000000000u;
    g_ring.put(made);
  }
  return 0;
}

int forks() {
  if (!opened()) return 1;
  g_ring.put(filled(1));
  const pid_t child = fork();
  if (child == 0) {
    g_ring.forget();
    g_ring.put(filled(2));  // nowhere
    if (!opened()) _exit(1);
    g_ring.put(filled(3));
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  g_ring.put(filled(4));
  return status;
}

}  // namespace

int main(int count, char** words) {
  const char* what = count > 1 ? words[1] : "";
  if (strcmp(what, "layout") == 0) return layout();
  if (strcmp(what, "wrap") == 0 && count > 3) return wrap(atoi(words[2]), strtoull(words[3], nullptr, 10));
  if (strcmp(what, "fork") == 0) return forks();
  if (strcmp(what, "step") == 0) return step();
  if (strcmp(what, "exec") == 0) {
    if (!opened()) return 1;
    g_ring.put(filled(count > 2 ? 2 : 1));
    if (count > 2) return 0;
    char* again[] = {words[0], words[1], words[1], nullptr};
    execv(words[0], again);
    return 1;
  }
  if (strcmp(what, "full") == 0) {
    puts(opened() ? "open" : "off");
    g_ring.put(filled(1));  // does nothing where it is off
    return 0;
  }
  return 2;
}
