// One line of the call log in any dialect, token by token, bounds-checked, fields in any order. This is the parser that
// decides; its readable twin is megatrace/readers/calllog_line.py. Included by logparse.cc only.
#ifndef MEGATRACE_LOGPARSE_ANY_H
#define MEGATRACE_LOGPARSE_ANY_H

#include "logparse.h"

#include <string.h>

namespace {


constexpr size_t kMaxLine = 4096;     // no dialect comes near; a longer "line" is not text
constexpr size_t kBodyLimit = 127;    // the original formats the body into char[128]; some builds lose the NUL
constexpr size_t kCanonicalMax = 288; // the longest canonical line is under 260 bytes, see canonical_line
constexpr int64_t kInt64Max = INT64_MAX;
constexpr uint64_t kNsPerSecond = 1000000000u;

struct Row {
  int64_t enqueue;
  int64_t count;
  int64_t seq;
  uint64_t stream;
  uint64_t group_hash;
  int32_t rank;
  uint32_t save_count;
  uint8_t op;
  uint8_t flags;
};

struct Span {
  const char *at;
  size_t size;
};

inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

inline bool is_blank(char c) { return c == ' ' || c == '\t'; }

inline bool equals(Span span, const char *literal, size_t size) {
  return span.size == size && memcmp(span.at, literal, size) == 0;
}

template <size_t N> inline bool equals(Span span, const char (&literal)[N]) { return equals(span, literal, N - 1); }

// The value of a hex digit, 16 for any other byte.
inline unsigned hex_value(char c) {
  if (is_digit(c)) return static_cast<unsigned>(c - '0');
  const unsigned letter = static_cast<unsigned char>(c | 0x20) - static_cast<unsigned>('a');
  return letter < 6 ? letter + 10 : 16;
}

// ---------------------------------------------------------------------------------------------- values of any length

// Decimal digits, at least one, at most `limit`.
bool parse_unsigned(Span span, uint64_t limit, uint64_t *value) {
  if (span.size == 0 || span.size > 20) return false;
  uint64_t sum = 0;
  for (size_t i = 0; i < span.size; ++i) {
    if (!is_digit(span.at[i])) return false;
    const uint64_t digit = static_cast<uint64_t>(span.at[i] - '0');
    if (sum > (UINT64_MAX - digit) / 10) return false;
    sum = sum * 10 + digit;
  }
  *value = sum;
  return sum <= limit;
}

bool parse_hex(Span span, uint64_t *value) {
  if (span.size < 3 || span.size > 18 || span.at[0] != '0' || span.at[1] != 'x') return false;
  uint64_t sum = 0;
  for (size_t i = 2; i < span.size; ++i) {
    const unsigned digit = hex_value(span.at[i]);
    if (digit > 15) return false;
    sum = (sum << 4) | digit;
  }
  *value = sum;
  return true;
}

// seconds '.' fraction, as nanoseconds. Up to 9 digits of fraction.
bool parse_timestamp(Span span, int64_t *value) {
  const char *dot = static_cast<const char *>(memchr(span.at, '.', span.size));
  if (dot == nullptr) return false;
  const Span seconds{span.at, static_cast<size_t>(dot - span.at)};
  const Span fraction{dot + 1, span.size - seconds.size - 1};
  uint64_t whole = 0;
  uint64_t part = 0;
  if (seconds.size > 10 || fraction.size > 9) return false;
  // One second less than what int64 nanoseconds hold, so that the fraction always fits.
  if (!parse_unsigned(seconds, static_cast<uint64_t>(kInt64Max) / kNsPerSecond - 1, &whole)) return false;
  if (!parse_unsigned(fraction, kNsPerSecond - 1, &part)) return false;
  for (size_t i = fraction.size; i < 9; ++i) part *= 10;
  *value = static_cast<int64_t>(whole * kNsPerSecond + part);
  return true;
}

bool parse_stream(Span span, uint64_t *value) {
  if (equals(span, "(nil)")) {
    *value = 0;
    return true;
  }
  return parse_hex(span, value);
}

// Decimal, signed or unsigned, or 0x hex.
bool parse_hash(Span span, uint64_t *value) {
  if (span.size > 1 && span.at[0] == '0' && span.at[1] == 'x') return parse_hex(span, value);
  if (span.size > 0 && span.at[0] == '-') {
    uint64_t magnitude = 0;
    if (!parse_unsigned({span.at + 1, span.size - 1}, uint64_t{1} << 63, &magnitude)) return false;
    *value = uint64_t{0} - magnitude;
    return true;
  }
  return parse_unsigned(span, UINT64_MAX, value);
}

// What is left of a hash that the writer cut: also "", "-" and "0x", which say nothing.
bool parse_cut_hash(Span span, uint64_t *value) {
  if (span.size == 0 || equals(span, "-") || equals(span, "0x")) {
    *value = 0;
    return true;
  }
  return parse_hash(span, value);
}

struct Name {
  const char *text;
  uint8_t size;
  uint8_t op; // megatrace.model.events.Op
};

constexpr Name kNames[] = {
    {"AllReduce", 9, 1}, {"AllGather", 9, 2}, {"ReduceScatter", 13, 3}, {"Broadcast", 9, 4}, {"Bcast", 5, 4},
    {"Reduce", 6, 5},    {"Send", 4, 6},      {"Recv", 4, 7},           {"AllToAll", 8, 8},  {"AlltoAll", 8, 8},
    {"Gather", 6, 9},    {"Scatter", 7, 10},  {"Barrier", 7, 11},
};

bool parse_name(Span span, uint8_t *op) {
  if (span.size == 0 || span.size > 48) return false;
  for (size_t i = 0; i < span.size; ++i) {
    const char c = span.at[i];
    const bool letter = static_cast<unsigned char>((c | 0x20) - 'a') < 26;
    if (!is_digit(c) && !letter && c != '_') return false;
  }
  if (span.size > 4 && memcmp(span.at, "nccl", 4) == 0) span = {span.at + 4, span.size - 4};
  *op = 0; // a call that this release has no name for is still a call
  for (const Name &name : kNames) {
    if (equals(span, name.text, name.size)) *op = name.op;
  }
  return true;
}

// ------------------------------------------------------------------------------------------------------- any dialect

enum Key : unsigned { kNone = 0, kTime = 1, kSave = 2, kRank = 4, kFun = 8, kData = 16, kStream = 32, kSeq = 64, kHash = 128 };

constexpr unsigned kRequired = kTime | kRank | kFun | kData | kStream;

Key key_of(Span word) {
  switch (word.size) {
  case 3: return equals(word, "Fun") ? kFun : kNone;
  case 4: return equals(word, "Data") ? kData : equals(word, "Rank") ? kRank : equals(word, "Func") ? kFun : kNone;
  case 6: return equals(word, "stream") ? kStream : kNone;
  case 7: return equals(word, "opCount") ? kSeq : kNone;
  case 9: return equals(word, "groupHash") ? kHash : kNone;
  case 10: return equals(word, "save_count") ? kSave : kNone;
  default: return kNone;
  }
}

// Takes one field; false where the value is wrong or the line has the field already.
bool set_field(Key key, Span value, unsigned *seen, Row *row) {
  if (*seen & key) return false;
  *seen |= key;
  uint64_t number = 0;
  switch (key) {
  case kSave:
    if (!parse_unsigned(value, kInt64Max, &number)) return false;
    row->save_count = number > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(number);
    row->flags |= MEGATRACE_LINE_SAVE_COUNT;
    return true;
  case kRank:
    if (!parse_unsigned(value, INT32_MAX, &number)) return false;
    row->rank = static_cast<int32_t>(number);
    return true;
  case kFun: return parse_name(value, &row->op);
  case kData:
    if (!parse_unsigned(value, kInt64Max, &number)) return false;
    row->count = static_cast<int64_t>(number);
    return true;
  case kStream: return parse_stream(value, &row->stream);
  case kSeq:
    if (!parse_unsigned(value, kInt64Max, &number)) return false;
    row->seq = static_cast<int64_t>(number);
    row->flags |= MEGATRACE_LINE_SEQ;
    return true;
  case kHash:
    if (!parse_hash(value, &row->group_hash)) return false;
    row->flags |= MEGATRACE_LINE_HASH;
    return true;
  default: return false;
  }
}

struct Cursor {
  const char *line;
  size_t size;
  size_t at;
  size_t body; // where the timestamp's bracket is; size + 1 while there is none
  unsigned seen;
  Key last_bare;

  void skip_blanks() {
    while (at < size && is_blank(line[at])) ++at;
  }

  // The line is exactly as long as the writer's buffer allows: its end may be missing.
  bool at_limit() const { return body <= size && (size - body == kBodyLimit || size - body == kBodyLimit + 1); }

  // A run of non-blanks; false where it holds a bracket, which only a line torn into another one does.
  bool word(Span *out) {
    const size_t begin = at;
    while (at < size && !is_blank(line[at])) {
      if (line[at] == '[' || line[at] == ']') return false;
      ++at;
    }
    *out = {line + begin, at - begin};
    return true;
  }
};

bool take_bracket(Cursor *cursor, Row *row) {
  const size_t begin = cursor->at + 1;
  size_t end = begin;
  while (end < cursor->size && cursor->line[end] != ']') {
    if (cursor->line[end] == '[') return false;
    ++end;
  }
  if (end == cursor->size) return false;
  const Span content{cursor->line + begin, end - begin};
  const size_t start = cursor->at;
  cursor->at = end + 1;
  const char *space = static_cast<const char *>(memchr(content.at, ' ', content.size));
  if (space == nullptr) {
    int64_t time = 0;
    if (!parse_timestamp(content, &time)) return true; // an address, a host name: not ours
    if (cursor->seen & kTime) return false;
    cursor->seen |= kTime;
    cursor->body = start;
    row->enqueue = time;
    return true;
  }
  const size_t key_size = static_cast<size_t>(space - content.at);
  const Key key = key_of({content.at, key_size});
  if (key == kNone) return true; // [PCI ...] and whatever else a writer adds
  if (key & (kFun | kData | kStream)) row->flags |= MEGATRACE_LINE_BRACKETED;
  return set_field(key, {space + 1, content.size - key_size - 1}, &cursor->seen, row);
}

bool take_bare(Cursor *cursor, Row *row) {
  Span word{nullptr, 0};
  if (!cursor->word(&word)) return false;
  const bool cut = cursor->at_limit();
  const Key key = key_of(word);
  cursor->last_bare = key;
  if (key == kNone) {
    if (!cut || cursor->at != cursor->size || word.size >= 9 || memcmp(word.at, "groupHash", word.size) != 0) return false;
    row->flags |= MEGATRACE_LINE_HASH_CUT;
    return true;
  }
  cursor->skip_blanks();
  Span value{nullptr, 0};
  if (!cursor->word(&value)) return false;
  if (cut && cursor->at == cursor->size) {
    if (key == kHash) {
      if (cursor->seen & kHash) return false;
      cursor->seen |= kHash;
      row->flags |= MEGATRACE_LINE_HASH_CUT;
      return parse_cut_hash(value, &row->group_hash);
    }
    if (key == kSeq && value.size > 0) { // the number itself may be cut: not trusted
      if (cursor->seen & kSeq) return false;
      cursor->seen |= kSeq;
      return true;
    }
  }
  return value.size > 0 && set_field(key, value, &cursor->seen, row);
}

bool any_line(const char *line, size_t size, Row *row) {
  while (size > 0 && line[size - 1] == '\r') --size;
  if (size > kMaxLine) return false;
  *row = Row{};
  row->seq = -1;
  Cursor cursor{line, size, 0, size + 1, 0, kNone};
  for (cursor.skip_blanks(); cursor.at < size; cursor.skip_blanks()) {
    const bool ok = line[cursor.at] == '[' ? take_bracket(&cursor, row) : take_bare(&cursor, row);
    if (!ok) return false;
  }
  if ((cursor.seen & kRequired) != kRequired) return false;
  // The buffer ended right after the opCount: a hash, if there was one, is lost.
  if (cursor.last_bare == kSeq && cursor.at_limit()) row->flags |= MEGATRACE_LINE_HASH_CUT;
  if (row->flags & MEGATRACE_LINE_HASH_CUT) row->flags &= static_cast<uint8_t>(~MEGATRACE_LINE_HASH);
  return true;
}

} // namespace

#endif
