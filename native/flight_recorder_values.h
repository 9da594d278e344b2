// Values of a pickle in flat memory: no pointers between them, so that freeing a million nested lists is freeing four
// arrays. A container is a chain of segments in one arena of items.
#ifndef MEGATRACE_FLIGHT_RECORDER_VALUES_H
#define MEGATRACE_FLIGHT_RECORDER_VALUES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace fr {

constexpr uint32_t kEnd = UINT32_MAX; // no segment
constexpr int64_t kAbsent = INT64_MIN;

enum class Type : uint8_t { kNone, kBool, kInt, kReal, kText, kList, kTuple, kDict, kMark };

struct Value {
  Type type;
  uint32_t extra; // length of a text, id of a container
  int64_t number; // the number, or the offset of a text
};

// Growing memory without exceptions: add() says whether there was room.
template <typename T> struct Array {
  T *at = nullptr;
  uint64_t size = 0, room = 0;
  bool reserve(uint64_t wanted) {
    if (wanted <= room) return true;
    uint64_t next = room ? room * 2 : 256;
    if (next < wanted) next = wanted;
    T *moved = static_cast<T *>(realloc(at, next * sizeof(T)));
    if (!moved) return false;
    at = moved;
    room = next;
    return true;
  }
  bool add(const T &value) {
    if (size == room && !reserve(size + 1)) return false;
    at[size++] = value;
    return true;
  }
  void release() {
    free(at);
    at = nullptr;
    size = room = 0;
  }
};

struct Segment {
  uint64_t start;
  uint32_t count, next;
};
struct Container {
  uint32_t first, last;
};

struct Store {
  Array<Value> items;
  Array<Segment> segments;
  Array<Container> containers;

  bool begin(Type type, Value *out) {
    if (containers.size >= kEnd || !containers.add({kEnd, kEnd})) return false;
    *out = {type, static_cast<uint32_t>(containers.size - 1), 0};
    return true;
  }
  // Appends values to a container (for dictionaries: key, value, key, value).
  bool extend(uint32_t id, const Value *values, uint64_t count) {
    if (!count) return true;
    if (count > UINT32_MAX || segments.size >= kEnd || !items.reserve(items.size + count)) return false;
    memcpy(items.at + items.size, values, count * sizeof(Value));
    const uint32_t number = static_cast<uint32_t>(segments.size);
    if (!segments.add({items.size, static_cast<uint32_t>(count), kEnd})) return false;
    items.size += count;
    Container &mine = containers.at[id];
    if (mine.last == kEnd) mine.first = number;
    else segments.at[mine.last].next = number;
    mine.last = number;
    return true;
  }
  void forget() { items.size = segments.size = containers.size = 0; }
  void release() {
    items.release();
    segments.release();
    containers.release();
  }
};

// Calls visit(value) for every item of a container, in order.
template <typename Visit> void each(const Store &store, const Value &container, Visit visit) {
  for (uint32_t s = store.containers.at[container.extra].first; s != kEnd; s = store.segments.at[s].next)
    for (uint64_t i = store.segments.at[s].start, end = i + store.segments.at[s].count; i < end; ++i)
      visit(store.items.at[i]);
}

// Calls visit(key, value) for every pair of a dictionary; a key that comes twice comes twice.
template <typename Visit> void pairs(const Store &store, const Value &dict, Visit visit) {
  for (uint32_t s = store.containers.at[dict.extra].first; s != kEnd; s = store.segments.at[s].next)
    for (uint64_t i = store.segments.at[s].start, end = i + store.segments.at[s].count; i + 1 < end; i += 2)
      visit(store.items.at[i], store.items.at[i + 1]);
}

} // namespace fr

#endif
