// Keys and values as nearly all are, read without a call or a value in between: keys that were seen before, small numbers,
// texts that were seen before, lists of those. It stops before the first that is another, and changes nothing of it.
#ifndef MEGATRACE_FLIGHT_RECORDER_USUAL_H
#define MEGATRACE_FLIGHT_RECORDER_USUAL_H

#include "flight_recorder_quick.h"

namespace fr {

constexpr uint64_t kMargin = 32; // the longest value below that is no list, and what is looked at behind it

// Whether a container that ends before `p` ends there: it is neither filled once more nor put into the memo.
inline bool ends(const uint8_t *p) { return *p != '(' && *p != 'q' && *p != 'r' && *p != 0x94; }

// The byte after a number from 0 on of at most 31 bits, nullptr for anything else.
inline const uint8_t *small(const uint8_t *p, int64_t *out) {
  uint32_t wide;
  if (*p == 'K') {
    *out = p[1];
    return p + 2;
  }
  if (*p == 'M') {
    *out = p[1] | p[2] << 8;
    return p + 3;
  }
  memcpy(&wide, p + 1, 4);
  *out = wide;
  return *p == 'J' && wide <= INT32_MAX ? p + 5 : nullptr;
}

// The byte after a number of the recorder or None, nullptr for anything else.
inline const uint8_t *usual_number(const uint8_t *p, int64_t *out) {
  if (*p == 0x8a && p[1] == 8) {
    int64_t value;
    memcpy(&value, p + 2, 8);
    *out = value >= -1 && value < kLimit ? value : kAbsent;
    return p + 10;
  }
  if (*p == 'N') {
    *out = kAbsent;
    return p + 1;
  }
  return small(p, out);
}

// The byte after a list of shapes, with the elements of all of them together; nullptr for anything else.
inline const uint8_t *usual_sizes(const uint8_t *p, const uint8_t *stop, int64_t *out, uint64_t *lists) {
  if (p[0] != ']' || p[1] != '(') return nullptr;
  int64_t total = 0;
  uint64_t count = 1;
  for (p += 2; *p != 'e';) {
    if (p[0] != ']' || p[1] != '(') return nullptr;
    int64_t product = 1;
    for (p += 2; *p != 'e';) {
      int64_t side;
      p = small(p, &side);
      if (!p || p >= stop || product > INT32_MAX) return nullptr; // so that the next product fits into 62 bits
      product *= side;
    }
    if (++p >= stop || !ends(p) || total > kLimit / 2 || product > kLimit / 2) return nullptr;
    total += product;
    ++count;
  }
  *out = total;
  *lists += count;
  return ends(++p) ? p : nullptr;
}

inline void Quick::usual(int64_t *row, int32_t *dtypes) {
  if (length - at <= kMargin) return;
  const uint8_t *p = data + at, *const stop = data + length - kMargin, *end = p;
  const Memo *const known = memo.at;
  const uint64_t size = memo.size;
  const auto text = [&](const uint8_t *q) { // of a text that has a number, else -1
    return q[0] == 'h' && q[1] < size && known[q[1]].type == Type::kText && known[q[1]].text >= 0 ? known[q[1]].text : -1;
  };
  const auto frames = [&](const uint8_t *q) -> const uint8_t * { // of values that were seen before
    if (q[0] != ']' || q[1] != '(') return nullptr;
    for (q += 2; *q != 'e';) {
      uint32_t index = q[1];
      if (*q == 'j') memcpy(&index, q + 1, 4);
      else if (*q != 'h') return nullptr;
      if (index >= size || known[index].type != Type::kDict || sums.at[known[index].extra].depth >= kNested - 1) return nullptr;
      q += *q == 'h' ? 2 : 5;
      if (q >= stop) return nullptr;
    }
    ++containers;
    return ends(++q) ? q : nullptr;
  };
  for (; p < stop && p[0] == 'h' && p[1] < size; p = end) {
    const int which = known[p[1]].field;
    const uint8_t *const value = p + 2;
    int64_t unused;
    switch (which) {
    case -2: at = static_cast<uint64_t>(p - data); return;
    case kNoField:
      if (*value == 'h') end = value[1] < size && known[value[1]].type == Type::kText ? value + 2 : nullptr;
      else end = *value == ']' ? frames(value) : usual_number(value, &unused);
      break;
    case MEGATRACE_FR_NAME_TEXT:
    case MEGATRACE_FR_STATE_TEXT:
      if (text(value) >= 0) row[which] = text(value);
      end = text(value) >= 0 ? value + 2 : nullptr;
      break;
    case MEGATRACE_FR_IS_P2P:
    case MEGATRACE_FR_RETIRED:
      end = *value == 0x88 || *value == 0x89 ? value + 1 : nullptr;
      if (end) row[which] = *value == 0x88;
      break;
    case MEGATRACE_FR_COUNT_IN:
    case MEGATRACE_FR_COUNT_OUT: end = usual_sizes(value, stop, &row[which], &containers); break;
    case kInDtypes:
    case kOutDtypes:
      end = value[0] == ']' && value[1] == '(' && text(value + 2) >= 0 && value[4] == 'e' && ends(value + 5) ? value + 5
                                                                                                             : nullptr;
      if (!end) break;
      dtypes[which - kInDtypes] = text(value + 2);
      ++containers;
      break;
    case MEGATRACE_FR_GROUP_TEXT:
      end = text(value) >= 0 && text(value + 2) >= 0 && value[4] == 0x86 && ends(value + 5) ? value + 5 : nullptr;
      if (!end) break;
      row[MEGATRACE_FR_GROUP_TEXT] = text(value);
      row[MEGATRACE_FR_DESC_TEXT] = text(value + 2);
      ++containers;
      break;
    case MEGATRACE_FR_PG_ID:
      end = small(value, &row[which]);
      if (end) row[MEGATRACE_FR_PG_ID_TEXT] = kAbsent;
      break;
    default: end = usual_number(value, &row[which]); break;
    }
    if (!end) break;
  }
  at = static_cast<uint64_t>(p - data);
}

} // namespace fr

#endif
