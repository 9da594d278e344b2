// The straight way through a pickle that is put together as recorders do it: keys and values one after the other, each
// list and dictionary filled at once where it is made. Rows are filled in while their bytes are in the cache, and no
// value is kept but what later ones refer to. Whatever is put together otherwise is left to the machine
// (flight_recorder_machine.h), which has the last word on every file: this way gives up rather than to guess, so what
// it returns is what the machine would have built. A value takes one call, and calls nest as deep as values do (kNested).
#ifndef MEGATRACE_FLIGHT_RECORDER_QUICK_H
#define MEGATRACE_FLIGHT_RECORDER_QUICK_H

#include "flight_recorder.h"
#include "flight_recorder_fields.h"
#include "flight_recorder_json.h"
#include "flight_recorder_texts.h"

namespace fr {

constexpr int kNested = 8;      // a recorder's values are five deep
constexpr uint32_t kShared = 24; // as deep as values may be that share others: less than what JSON is written of

// What is remembered of a list, tuple or dictionary.
struct Sum {
  int64_t product, total; // of its numbers as the sides of one tensor; of its lists as the shapes of several
  int32_t first, second;  // texts, -1 for anything else
  uint32_t begin, depth;  // its place in the file
};
struct Item {
  Type type;
  uint32_t extra; // length of a text, index of a Sum
  int64_t number; // the number, or the offset of a text
  int32_t memo;   // its place in the memo, -1 none
};
struct Memo {
  uint32_t place, extra; // offset and length of a text; 0 and the index of a Sum
  int32_t text;          // its number, -2 not looked up yet
  int16_t field;         // -2 not looked up yet
  Type type;             // kMark: not complete yet
};

constexpr Memo kOpen = {0, 0, -2, -2, Type::kMark};

struct Quick {
  const uint8_t *data;
  uint64_t length, at, wasted, containers, bad;
  uint64_t entries_at, entries_end; // of the list of entries in the file; 0 none
  bool groups;
  int64_t version, configs, statuses; // see megatrace_fr_facts
  int64_t config[MEGATRACE_FR_MOST_GROUPS][3], status[MEGATRACE_FR_MOST_GROUPS][4];
  Texts *texts;
  Writer *writer;
  Array<Memo> memo;
  Array<Sum> sums;
  Array<int64_t> rows;    // MEGATRACE_FR_WIDTH numbers an entry
  Array<uint32_t> begins; // the place of each entry

  bool next(uint8_t code) const { return at < length && data[at] == code; }
  template <unsigned kWidth> bool take(uint64_t *out) {
    if (length - at < kWidth) return false;
    *out = 0;
    memcpy(out, data + at, kWidth); // little endian on both sides
    at += kWidth;
    return true;
  }
  bool take_signed(uint64_t width, int64_t *out) {
    if (length - at < width || width > 8) return false;
    uint64_t value = 0;
    if (width == 8) memcpy(&value, data + at, 8);
    else
      for (uint64_t i = width; i-- > 0;) value = value << 8 | data[at + i];
    if (width && width < 8 && (value >> (8 * width - 1)) & 1) value |= ~0ull << (8 * width);
    at += width;
    *out = static_cast<int64_t>(value);
    return true;
  }
  // An integer whose opcode was read; false for any other opcode, or where the file ends in it.
  bool integer(uint8_t code, int64_t *out) {
    uint64_t value;
    int32_t narrow;
    switch (code) {
    case 'K':
      if (!take<1>(&value)) return false;
      break;
    case 'M':
      if (!take<2>(&value)) return false;
      break;
    case 'J':
      if (!take<4>(&value)) return false;
      memcpy(&narrow, &value, 4);
      *out = narrow;
      return true;
    case 0x8a: return at < length && take_signed(data[at++], out);
    default: return false;
    }
    *out = static_cast<int64_t>(value);
    return true;
  }
  // The place in the memo where the value just read is put, if it is. The memo is only ever added to. Containers are put
  // there before they are filled (Python) or after (PyTorch).
  bool put(bool writes, const Memo &value, int32_t *where) {
    *where = -1;
    if (at >= length) return false;
    const uint8_t code = data[at];
    if (code != 'q' && code != 'r' && code != 0x94) return true;
    uint64_t index = memo.size;
    ++at;
    if ((code == 'q' && !take<1>(&index)) || (code == 'r' && !take<4>(&index))) return false;
    if (writes) return true;
    *where = static_cast<int32_t>(index);
    return index == memo.size && index < INT32_MAX && memo.add(value);
  }
  template <bool kWrites> bool text(uint64_t size, Item *out) {
    if (size > kMaxText || length - at < size) return false;
    *out = {Type::kText, static_cast<uint32_t>(size), static_cast<int64_t>(at), -1};
    at += size;
    if (kWrites) writer->text(static_cast<uint64_t>(out->number), out->extra);
    return put(kWrites, {static_cast<uint32_t>(out->number), out->extra, -2, -2, Type::kText}, &out->memo);
  }
  template <bool kWrites> bool get(uint64_t index, int deep, Item *out) {
    if (index >= memo.size) return false;
    const Memo &known = memo.at[index];
    *out = {known.type, known.extra, known.place, static_cast<int32_t>(index)};
    if (!kWrites) return known.type != Type::kMark;
    if (known.type == Type::kText) {
      writer->text(known.place, known.extra);
      return true;
    }
    const uint64_t back = at;
    Item unused;
    at = sums.at[known.extra].begin;
    const bool good = known.type == Type::kTuple ? couple<true>(deep, &unused) : value<true>(deep, &unused);
    at = back;
    return good;
  }
  template <bool kWrites> bool value(int deep, Item *out);
  template <bool kWrites> bool list(int deep, Item *out);
  template <bool kWrites> bool dict(int deep, Item *out);
  template <bool kWrites> bool pair(int deep, Sum *sum);
  template <bool kWrites> bool couple(int deep, Item *out);
  // Reads what may be the one value of a container that is appended by `code`; nothing is changed where it is not.
  template <bool kWrites, typename Read> bool lone(uint8_t code, Read read) {
    const uint64_t back = at, memos = memo.size, kept = sums.size, size = kWrites ? writer->size : 0;
    if (read() && next(code)) {
      ++at;
      return true;
    }
    wasted += at - back;
    at = back, memo.size = memos, sums.size = kept;
    if (kWrites) writer->size = size;
    return false;
  }
  bool number_of(const Item &text, int32_t *out);
  bool count(const Item &one, uint64_t place, Sum *sum);
  bool keep(Type type, const Sum &sum, int32_t where, Item *out);
  uint64_t text_end(uint64_t from) const;
  bool is_couple() const;
  bool entry();
  bool key(int *which);
  void usual(int64_t *row, int32_t *dtypes);
  bool field(int which, int64_t *row, int32_t *dtypes);
  bool entries();
  bool root_value(const Item &key);
  bool described(bool counts);
  bool described_group(bool counts, int64_t *row);
  bool run();
  void write(int64_t which);
  void write_rest();
};

// The number of a text among all texts, -1 for another value.
inline bool Quick::number_of(const Item &text, int32_t *out) {
  *out = -1;
  if (text.type != Type::kText) return true;
  int32_t *known = text.memo < 0 ? nullptr : &memo.at[text.memo].text;
  if (!known || *known == -2) {
    int64_t found;
    if (!texts->number(data + text.number, text.extra, &found)) return false;
    *out = static_cast<int32_t>(found);
    if (known) *known = *out;
  } else {
    *out = *known;
  }
  return true;
}

inline bool Quick::count(const Item &one, uint64_t place, Sum *sum) {
  if (one.type != Type::kInt || one.number < 0 || sum->product == kAbsent ||
      __builtin_mul_overflow(sum->product, one.number, &sum->product) || sum->product > kLimit)
    sum->product = kAbsent;
  const bool listed = one.type == Type::kList || one.type == Type::kTuple, held = listed || one.type == Type::kDict;
  const int64_t part = listed ? sums.at[one.extra].product : 1;
  if (part == kAbsent || sum->total == kAbsent || __builtin_add_overflow(sum->total, part, &sum->total) ||
      sum->total > kLimit)
    sum->total = kAbsent;
  if (held && sum->depth <= sums.at[one.extra].depth) sum->depth = sums.at[one.extra].depth + 1;
  if (place == 0) return number_of(one, &sum->first);
  return place != 1 || number_of(one, &sum->second);
}

inline bool Quick::keep(Type type, const Sum &sum, int32_t where, Item *out) {
  *out = {type, static_cast<uint32_t>(sums.size), 0, where};
  if (++containers > kMaxContainers || sum.depth > kShared || !sums.add(sum)) return false;
  if (where >= 0) memo.at[where] = {0, out->extra, -2, -2, type};
  return true;
}

template <bool kWrites> bool Quick::value(int deep, Item *out) {
  if (at >= length || deep > (kWrites ? kDeepest : kNested) || (kWrites && writer->full())) return false;
  const uint8_t code = data[at++];
  uint64_t size;
  switch (code) {
  case 'h': return take<1>(&size) && get<kWrites>(size, deep, out);
  case 'j': return take<4>(&size) && get<kWrites>(size, deep, out);
  case 'X': return take<4>(&size) && text<kWrites>(size, out);
  case 0x8c: return take<1>(&size) && text<kWrites>(size, out);
  case ']': return list<kWrites>(deep, out);
  case '}': return dict<kWrites>(deep, out);
  case 'N':
    *out = {Type::kNone, 0, 0, -1};
    if (kWrites) writer->word("null");
    return true;
  case 0x88:
  case 0x89:
    *out = {Type::kBool, 0, code == 0x88, -1};
    if (kWrites) writer->word(code == 0x88 ? "true" : "false");
    return true;
  default:
    *out = {Type::kInt, 0, 0, -1};
    if (!integer(code, &out->number)) return false;
    if (kWrites) writer->integer(out->number);
    return true;
  }
}

template <bool kWrites> bool Quick::list(int deep, Item *out) {
  Sum sum = {1, 0, -1, -1, static_cast<uint32_t>(at - 1), 1};
  int32_t where;
  uint64_t place = 0;
  if (!put(kWrites, kOpen, &where)) return false;
  if (kWrites) writer->byte('[');
  const auto one = [&] {
    if (kWrites && place) writer->byte(',');
    return value<kWrites>(deep + 1, out) && (kWrites || count(*out, place, &sum)) && ++place;
  };
  bool filled = false;
  for (; next('('); filled = true) {
    for (++at; !next('e');)
      if (!one()) return false;
    ++at;
  }
  const Sum empty = sum;
  if (!filled && !lone<kWrites>('a', one)) sum = empty;
  if (kWrites) writer->byte(']');
  if (wasted > length || (where < 0 && !put(kWrites, kOpen, &where))) return false;
  return kWrites || keep(Type::kList, sum, where, out);
}

// A key and its value.
template <bool kWrites> bool Quick::pair(int deep, Sum *sum) {
  Item item;
  if (!value<kWrites>(deep, &item) || item.type != Type::kText) return false;
  if (kWrites) writer->byte(':');
  if (!(is_couple() ? couple<kWrites>(deep, &item) : value<kWrites>(deep, &item))) return false;
  if (kWrites || item.type == Type::kText || item.type < Type::kText) return true;
  if (sum->depth <= sums.at[item.extra].depth) sum->depth = sums.at[item.extra].depth + 1;
  return true;
}

template <bool kWrites> bool Quick::dict(int deep, Item *out) {
  Sum sum = {kAbsent, kAbsent, -1, -1, static_cast<uint32_t>(at - 1), 1};
  int32_t where;
  bool filled = false, more = false;
  if (!put(kWrites, kOpen, &where)) return false;
  if (kWrites) writer->byte('{');
  const auto one = [&] {
    if (kWrites && more) writer->byte(',');
    more = true;
    return pair<kWrites>(deep + 1, &sum);
  };
  for (; next('('); filled = true) {
    for (++at; !next('u');)
      if (!one()) return false;
    ++at;
  }
  const Sum empty = sum;
  if (!filled && !lone<kWrites>('s', one)) sum = empty;
  if (kWrites) writer->byte('}');
  if (wasted > length || (where < 0 && !put(kWrites, kOpen, &where))) return false;
  return kWrites || keep(Type::kDict, sum, where, out);
}

// Where a text that begins at `from` ends, 0 for anything else.
inline uint64_t Quick::text_end(uint64_t from) const {
  if (length - from < 5) return 0;
  uint32_t number;
  memcpy(&number, data + from + 1, 4);
  const uint8_t code = data[from];
  if (code == 'h') return data[from + 1] < memo.size && memo.at[data[from + 1]].type == Type::kText ? from + 2 : 0;
  if (code == 'j') return number < memo.size && memo.at[number].type == Type::kText ? from + 5 : 0;
  if (code != 'X' || number > kMaxText || length - from < uint64_t{number} + 10) return 0;
  const uint64_t end = from + 5 + number;
  return end + (data[end] == 'q' ? 2 : data[end] == 'r' ? 5 : 0);
}

// Whether two texts follow that are put into a tuple: the name and the description of a group.
inline bool Quick::is_couple() const {
  const uint64_t first = at < length ? text_end(at) : 0, second = first && first < length ? text_end(first) : 0;
  return second && second < length && data[second] == 0x86;
}

template <bool kWrites> bool Quick::couple(int deep, Item *out) {
  Sum sum = {kAbsent, 2, -1, -1, static_cast<uint32_t>(at), 1};
  Item one, two;
  int32_t where;
  if (kWrites) writer->byte('[');
  if (!value<kWrites>(deep + 1, &one)) return false;
  if (kWrites) writer->byte(',');
  if (!value<kWrites>(deep + 1, &two) || !next(0x86)) return false;
  if (kWrites) writer->byte(']');
  ++at;
  if (!put(kWrites, kOpen, &where)) return false;
  return kWrites || (number_of(one, &sum.first) && number_of(two, &sum.second) && keep(Type::kTuple, sum, where, out));
}

} // namespace fr

#endif
