// The pickle machine: opcodes that build data, one at a time, no recursion. See flight_recorder.h.
#ifndef MEGATRACE_FLIGHT_RECORDER_MACHINE_H
#define MEGATRACE_FLIGHT_RECORDER_MACHINE_H

#include "flight_recorder.h"
#include "flight_recorder_fields.h"
#include "flight_recorder_values.h"

namespace fr {

struct Machine {
  const uint8_t *data;
  uint64_t length, at = 0;
  Store *store;
  Array<Value> stack, memo;
  uint64_t memo_count = 0;
  int32_t reason = MEGATRACE_FR_OK;
  Value result = {Type::kNone, 0, 0};

  bool fail(int32_t why) {
    reason = why;
    return false;
  }
  bool push(const Value &value) { return stack.add(value) || fail(MEGATRACE_FR_MEMORY); }
  bool number(uint64_t size, bool is_signed, uint64_t *out) {
    if (length - at < size) return fail(MEGATRACE_FR_CUT);
    uint64_t value = 0;
    if (size == 1) value = data[at];
    else memcpy(&value, data + at, size); // little endian on both sides
    if (is_signed && size && size < 8 && (value >> (8 * size - 1)) & 1) value |= ~0ull << (8 * size);
    at += size;
    *out = value;
    return true;
  }
  bool push_int(uint64_t size, bool is_signed) {
    uint64_t value;
    return number(size, is_signed, &value) && push({Type::kInt, 0, static_cast<int64_t>(value)});
  }
  bool skip(uint64_t size) {
    if (length - at < size) return fail(MEGATRACE_FR_CUT);
    at += size;
    return true;
  }
  bool text(uint64_t width) {
    uint64_t size;
    if (!number(width, false, &size)) return false;
    if (size > kMaxText) return fail(MEGATRACE_FR_TOO_LARGE);
    if (length - at < size) return fail(MEGATRACE_FR_CUT);
    at += size;
    return push({Type::kText, static_cast<uint32_t>(size), static_cast<int64_t>(at - size)});
  }
  bool decimal();
  bool begin(Type type) {
    Value made;
    if (type != Type::kTuple && store->containers.size >= kMaxContainers) return fail(MEGATRACE_FR_TOO_LARGE);
    return (store->begin(type, &made) || fail(MEGATRACE_FR_MEMORY)) && push(made);
  }
  bool pop(Value *out) {
    if (!stack.size || stack.at[stack.size - 1].type == Type::kMark) return fail(MEGATRACE_FR_DAMAGED);
    *out = stack.at[--stack.size];
    return true;
  }
  // Finds the last mark; the values after it stay on the stack until drop().
  bool marked(uint64_t *mark) {
    for (uint64_t i = stack.size; i-- > 0;)
      if (stack.at[i].type == Type::kMark) {
        *mark = i;
        return true;
      }
    return fail(MEGATRACE_FR_DAMAGED);
  }
  bool fits(const Value &key) const {
    return key.type == Type::kText || key.type == Type::kInt || key.type == Type::kNone || key.type == Type::kBool;
  }
  bool extend(Type type, uint64_t from, uint64_t target_below) {
    if (!target_below) return fail(MEGATRACE_FR_DAMAGED);
    const Value target = stack.at[target_below - 1];
    const uint64_t count = stack.size - from;
    if (target.type != type) return fail(MEGATRACE_FR_DAMAGED);
    if (type == Type::kDict) {
      if (count % 2) return fail(MEGATRACE_FR_DAMAGED);
      for (uint64_t i = from; i < stack.size; i += 2)
        if (!fits(stack.at[i])) return fail(MEGATRACE_FR_DAMAGED);
    }
    if (!store->extend(target.extra, stack.at + from, count)) return fail(MEGATRACE_FR_MEMORY);
    stack.size = target_below;
    return true;
  }
  bool since_mark(Type type) {
    uint64_t mark;
    return marked(&mark) && extend(type, mark + 1, mark);
  }
  // Makes a new container of everything since the last mark.
  bool gather(Type type) {
    uint64_t mark;
    Value made;
    if (!marked(&mark)) return false;
    if (type != Type::kTuple && store->containers.size >= kMaxContainers) return fail(MEGATRACE_FR_TOO_LARGE);
    if (!store->begin(type, &made)) return fail(MEGATRACE_FR_MEMORY);
    const Value *items = stack.at + mark + 1;
    const uint64_t count = stack.size - mark - 1;
    if (type == Type::kDict) {
      if (count % 2) return fail(MEGATRACE_FR_DAMAGED);
      for (uint64_t i = 0; i < count; i += 2)
        if (!fits(items[i])) return fail(MEGATRACE_FR_DAMAGED);
    }
    if (!store->extend(made.extra, items, count)) return fail(MEGATRACE_FR_MEMORY);
    stack.size = mark;
    return push(made);
  }
  bool tuple(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i)
      if (stack.size <= i || stack.at[stack.size - 1 - i].type == Type::kMark) return fail(MEGATRACE_FR_DAMAGED);
    Value made;
    if (!store->begin(Type::kTuple, &made) || !store->extend(made.extra, stack.at + stack.size - count, count))
      return fail(MEGATRACE_FR_MEMORY);
    stack.size -= count;
    return push(made);
  }
  bool put(uint64_t index) {
    if (!stack.size || stack.at[stack.size - 1].type == Type::kMark || index > length) return fail(MEGATRACE_FR_DAMAGED);
    if (!memo.reserve(index + 1)) return fail(MEGATRACE_FR_MEMORY);
    for (; memo.size <= index; ++memo.size) memo.at[memo.size] = {Type::kMark, 0, 0}; // not put yet
    if (memo.at[index].type == Type::kMark) ++memo_count;
    memo.at[index] = stack.at[stack.size - 1];
    return true;
  }
  bool get(uint64_t index) {
    if (index >= memo.size || memo.at[index].type == Type::kMark) return fail(MEGATRACE_FR_DAMAGED);
    return push(memo.at[index]);
  }
  bool indexed(uint64_t width, bool is_put) {
    uint64_t index;
    return number(width, false, &index) && (is_put ? put(index) : get(index));
  }
  bool pair() { // SETITEM: key and value on top of a dictionary
    Value key, value;
    if (!pop(&value) || !pop(&key)) return false;
    stack.at[stack.size] = key; // still in the memory of the stack
    stack.at[stack.size + 1] = value;
    stack.size += 2;
    return extend(Type::kDict, stack.size - 2, stack.size - 2);
  }
  bool append() {
    Value value;
    if (!pop(&value)) return false;
    stack.at[stack.size++] = value;
    return extend(Type::kList, stack.size - 1, stack.size - 1);
  }
  bool step(uint8_t code);
  bool run();
};

inline bool Machine::decimal() {
  const uint64_t room = length - at < kMaxText ? length - at : kMaxText;
  const void *found = memchr(data + at, '\n', room);
  if (!found) return fail(MEGATRACE_FR_CUT);
  const uint8_t *begin = data + at, *end = static_cast<const uint8_t *>(found);
  at = static_cast<uint64_t>(end - data) + 1;
  while (end > begin && end[-1] == 'L') --end;
  const uint64_t size = static_cast<uint64_t>(end - begin);
  if (size == 2 && begin[0] == '0' && (begin[1] == '0' || begin[1] == '1'))
    return push({Type::kBool, 0, begin[1] == '1'});
  const bool minus = size && begin[0] == '-';
  if (size <= minus || size > 19u + minus) return fail(MEGATRACE_FR_DAMAGED);
  uint64_t value = 0; // 19 digits fit
  for (const uint8_t *digit = begin + minus; digit < end; ++digit) {
    if (*digit < '0' || *digit > '9') return fail(MEGATRACE_FR_DAMAGED);
    value = value * 10 + (*digit - uint64_t{'0'});
  }
  if (value > (uint64_t{1} << 63) - !minus) return fail(MEGATRACE_FR_DAMAGED);
  return push({Type::kInt, 0, static_cast<int64_t>(minus ? 0 - value : value)});
}

inline bool Machine::step(uint8_t code) {
  uint64_t size;
  Value value;
  switch (code) {
  case 0x80: return skip(1);
  case 0x95: return skip(8);
  case '(': return push({Type::kMark, 0, 0});
  case '0': return pop(&value);
  case '1': return marked(&stack.size);
  case 'N': return push({Type::kNone, 0, 0});
  case 0x88: return push({Type::kBool, 0, 1});
  case 0x89: return push({Type::kBool, 0, 0});
  case 'K': return push_int(1, false);
  case 'M': return push_int(2, false);
  case 'J': return push_int(4, true);
  case 'I':
  case 'L': return decimal();
  case 0x8a:
    if (!number(1, false, &size)) return false;
    return size > 8 ? fail(MEGATRACE_FR_TOO_LARGE) : push_int(size, true);
  case 0x8b:
    if (!number(4, false, &size)) return false;
    return size > 8 ? fail(MEGATRACE_FR_TOO_LARGE) : push_int(size, true);
  case 'G': return skip(8) && push({Type::kReal, 0, 0});
  case 'X':
  case 'T':
  case 'B': return text(4);
  case 0x8c:
  case 'U':
  case 'C': return text(1);
  case 0x8d: return text(8);
  case ']': return begin(Type::kList);
  case '}': return begin(Type::kDict);
  case ')': return begin(Type::kTuple);
  case 'a': return append();
  case 'e': return since_mark(Type::kList);
  case 'u': return since_mark(Type::kDict);
  case 's': return pair();
  case 'l': return gather(Type::kList);
  case 't': return gather(Type::kTuple);
  case 'd': return gather(Type::kDict);
  case 0x85: return tuple(1);
  case 0x86: return tuple(2);
  case 0x87: return tuple(3);
  case 'q': return indexed(1, true);
  case 'r': return indexed(4, true);
  case 0x94: return put(memo_count);
  case 'h': return indexed(1, false);
  case 'j': return indexed(4, false);
  case 'c': case 'R': case 'i': case 'b': case 'o': case 0x81: case 0x92: case 0x93: case 0x82: case 0x83: case 0x84:
  case 'P': case 'Q': --at; return fail(MEGATRACE_FR_CALLS);
  default: --at; return fail(MEGATRACE_FR_UNKNOWN);
  }
}

inline bool Machine::run() {
  while (at < length) {
    const uint8_t code = data[at++];
    if (code == '.') return pop(&result);
    if (!step(code)) return false;
  }
  return fail(MEGATRACE_FR_CUT);
}

} // namespace fr

#endif
