// Exercises ring.h for tests/components/test_ring_format.py:
//   layout                 the offsets as JSON
//   wrap THREADS RECORDS   so many threads write so many records each, several times round the ring
//   fork                   parent and child write; the child opens a ring of its own
//   exec                   writes, and becomes itself once more under the same number
//   full                   tells whether the ring is open
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
  printf(", \"header\": %zu, \"json\": %zu, \"control\": %zu}\n", sizeof(RingHeader), offsetof(RingHeader, json),
         offsetof(RingHeader, control));
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
