// The call log parser. Two readers of one grammar: `canonical_line` takes the exact layout that the writers emit and
// gives up on the first byte that differs; `any_line` then reads the line token by token, bounds-checked, in any order
// of fields, and decides. See logparse.h for what this file promises.

#include "logparse.h"

#include <string.h>

// For the pieces of the canonical line: a call would cost more than what they do.
#define MEGATRACE_INLINE __attribute__((always_inline)) inline

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

// ------------------------------------------------------------------------------------------------- the common layout

inline uint64_t load8(const char *p) {
  uint64_t word;
  memcpy(&word, p, 8);
  return word;
}

// True where all eight bytes are decimal digits.
inline bool eight_digits(uint64_t word) {
  return ((word & (word + 0x0606060606060606u)) & 0xF0F0F0F0F0F0F0F0u) == 0x3030303030303030u;
}

// The value of eight digits, the first in the lowest byte: pairs, then fours, then all.
inline uint64_t eight_value(uint64_t word) {
  word = (word & 0x0F0F0F0F0F0F0F0Fu) * 2561 >> 8;
  word = (word & 0x00FF00FF00FF00FFu) * 6553601 >> 16;
  return (word & 0x0000FFFF0000FFFFu) * 42949672960001u >> 32;
}

// How many of the eight bytes are digits, from the first on.
inline int leading_digits(uint64_t word) {
  const uint64_t y = word ^ 0x3030303030303030u;
  const uint64_t other = (y | (y + 0x0606060606060606u)) & 0xF0F0F0F0F0F0F0F0u;
  return other == 0 ? 8 : __builtin_ctzll(other) >> 3;
}

// A decimal number of up to 16 digits, all of them; p ends behind it. False where there is none.
MEGATRACE_INLINE bool take_number(const char *&p, uint64_t *value) {
  const uint64_t word = load8(p);
  const int digits = leading_digits(word);
  if (digits == 0) return false;
  p += digits;
  if (digits < 8) {
    *value = eight_value((word ^ 0x3030303030303030u) << (64 - 8 * digits));
    return true;
  }
  const uint64_t next = load8(p);
  const int more = leading_digits(next);
  p += more;
  uint64_t sum = eight_value(word);
  for (int i = 0; i < more; ++i) sum = sum * 10 + ((next >> (8 * i)) & 0xF);
  *value = sum;
  return true;
}

constexpr uint64_t keep_first(size_t bytes) { return bytes >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1; }

// Up to 16 characters as the two words that load8 gives for their first and last eight: comparing them is two
// instructions, where memcmp would be a call. Make them constexpr, or the words are built at run time.
struct Literal {
  uint64_t first = 0;
  uint64_t last = 0;
  size_t size = 0;

  template <size_t N> constexpr Literal(const char (&text)[N]) : size(N - 1) { // NOLINT: meant to be implicit
    static_assert(N > 1 && N <= 17, "two words hold 16 characters");
    for (size_t i = 0; i < 8 && i < size; ++i) first |= uint64_t{static_cast<unsigned char>(text[i])} << (8 * i);
    for (size_t i = 0; i < 8 && size > 8; ++i) last |= uint64_t{static_cast<unsigned char>(text[size - 8 + i])} << (8 * i);
  }
};

// The literal is a template argument, so that its words become immediate operands.
template <const Literal &literal> MEGATRACE_INLINE bool take(const char *&p) {
  if constexpr (literal.size <= 8) {
    if (((load8(p) ^ literal.first) & keep_first(literal.size)) != 0) return false;
  } else {
    if (((load8(p) ^ literal.first) | (load8(p + literal.size - 8) ^ literal.last)) != 0) return false;
  }
  p += literal.size;
  return true;
}

constexpr Literal kSaveCount("[save_count ");
constexpr Literal kClose("] ");
constexpr Literal kCloseRank("] [Rank ");
constexpr Literal kCloseFun("] Fun ");
constexpr Literal kDataIs("Data ");
constexpr Literal kStreamIs(" stream ");
constexpr Literal kNullStream("(nil)");
constexpr Literal kSeqIs(" opCount ");
constexpr Literal kHashIs(" groupHash ");
constexpr Literal kAllReduce("AllReduce ");
constexpr Literal kAllGather("AllGather ");
constexpr Literal kReduceScatter("ReduceScatter ");
constexpr Literal kBroadcast("Broadcast ");
constexpr Literal kReduce("Reduce ");
constexpr Literal kSend("Send ");
constexpr Literal kRecv("Recv ");

template <const Literal &name> MEGATRACE_INLINE bool take_name(const char *&p, uint8_t code, uint8_t *op) {
  if (!take<name>(p)) return false;
  *op = code;
  return true;
}

// The names that training emits, with the blank behind them; others are for any_line.
MEGATRACE_INLINE bool take_any_name(const char *&p, uint8_t *op) {
  return take_name<kAllReduce>(p, 1, op) || take_name<kSend>(p, 6, op) || take_name<kRecv>(p, 7, op) ||
         take_name<kAllGather>(p, 2, op) || take_name<kReduceScatter>(p, 3, op) || take_name<kBroadcast>(p, 4, op) ||
         take_name<kReduce>(p, 5, op);
}

// Eight lower-case hex digits, as %p prints them. False where one is not.
inline bool eight_hex(uint64_t word, uint64_t *value) {
  constexpr uint64_t ones = 0x0101010101010101u;
  uint64_t digit = (word & (ones * 0x0F)) + ((word >> 6) & ones) * 9;
  const uint64_t letter = ((digit + ones * 6) >> 4) & ones;
  // The second term: "g" gives 16, which would pass as a letter of its own.
  if (((digit + ones * '0' + letter * 0x27) ^ word) | (digit & (ones * 0xF0))) return false;
  digit = (digit * 0x1001 >> 8) & 0x00FF00FF00FF00FFu;
  digit = (digit * 0x1000001 >> 16) & 0x0000FFFF0000FFFFu;
  *value = digit * 0x1000000000001u >> 32;
  return true;
}

bool take_stream(const char *&p, uint64_t *stream) {
  if (*p == '(') {
    *stream = 0;
    return take<kNullStream>(p);
  }
  if (p[0] != '0' || p[1] != 'x') return false;
  const char *begin = p += 2;
  uint64_t sum = 0;
  if (eight_hex(load8(p), &sum)) p += 8;
  unsigned digit;
  while ((digit = hex_value(*p)) < 16 && p - begin < 16) {
    sum = (sum << 4) | digit;
    ++p;
  }
  *stream = sum;
  return p != begin;
}

// A decimal hash of up to 18 digits and a sign; longer ones (and hex) only where they surely fit.
bool take_hash(const char *&p, uint64_t *hash) {
  const bool negative = *p == '-';
  if (negative) ++p;
  const char *begin = p;
  uint64_t sum = 0;
  while (p - begin <= 8 && eight_digits(load8(p))) {
    sum = sum * 100000000 + eight_value(load8(p));
    p += 8;
  }
  unsigned digit;
  while ((digit = static_cast<unsigned char>(*p - '0')) < 10 && p - begin < 20) {
    // 19 digits always fit 64 bits; the 20th may not.
    if (p - begin == 19 && (sum > UINT64_MAX / 10 || sum * 10 > UINT64_MAX - digit)) return false;
    sum = sum * 10 + digit;
    ++p;
  }
  if (p == begin || (negative && sum > (uint64_t{1} << 63))) return false;
  *hash = negative ? uint64_t{0} - sum : sum;
  return true;
}

// Texts of a pointer or a hash that were read before, with their value: a rank repeats a handful of them, and comparing
// is cheaper than converting. Words are compared up to and including the character that ends the text, so equal words
// are equal texts.
struct Memo {
  uint64_t head;
  uint64_t middle; // under middle_mask
  uint64_t tail;   // under tail_mask
  uint64_t middle_mask;
  uint64_t tail_mask;
  uint64_t value;
  uint64_t size; // 0 while empty
};

constexpr unsigned kMemos = 16; // a rank has 3 to 12 communicators

// What neighbouring lines share.
struct Memos {
  Memo streams[kMemos] = {};
  Memo hashes[kMemos] = {};
  // Seconds: the first eight digits, and the last three with the point. "0000000000." to begin with, which is valid.
  uint64_t seconds_head = 0x3030303030303030u;
  uint32_t seconds_tail = 0x2E303030u;
  int64_t seconds_ns = 0;

  MEGATRACE_INLINE bool take_seconds(const char *p, int64_t *ns) {
    const uint64_t head = load8(p);
    uint32_t tail;
    memcpy(&tail, p + 7, 4);
    if (head == seconds_head && tail == seconds_tail) {
      *ns = seconds_ns;
      return true;
    }
    const unsigned tens = static_cast<unsigned char>(p[8] - '0');
    const unsigned ones = static_cast<unsigned char>(p[9] - '0');
    if (p[10] != '.' || tens > 9 || ones > 9 || !eight_digits(head)) return false;
    const uint64_t seconds = eight_value(head) * 100 + tens * 10 + ones;
    if (seconds >= static_cast<uint64_t>(kInt64Max) / kNsPerSecond) return false;
    seconds_head = head;
    seconds_tail = tail;
    *ns = seconds_ns = static_cast<int64_t>(seconds * kNsPerSecond);
    return true;
  }
};

template <bool (*convert)(const char *&, uint64_t *)>
MEGATRACE_INLINE bool take_memo(Memo *memos, const char *&p, uint64_t *value) {
  const uint64_t head = load8(p);
  const uint64_t middle = load8(p + 8);
  const uint64_t tail = load8(p + 16);
  Memo &memo = memos[((head + middle) * 0x9E3779B97F4A7C15u) >> 60];
  const uint64_t differ =
      (memo.head ^ head) | (memo.middle ^ (middle & memo.middle_mask)) | (memo.tail ^ (tail & memo.tail_mask));
  if (differ == 0 && memo.size != 0) {
    *value = memo.value;
    p += memo.size;
    return true;
  }
  const char *begin = p;
  if (!convert(p, value)) return false;
  const size_t size = static_cast<size_t>(p - begin);
  if (size >= 8 && size < 24) {
    const uint64_t middle_mask = keep_first(size - 7);
    const uint64_t tail_mask = size < 16 ? 0 : keep_first(size - 15);
    memo = {head, middle & middle_mask, tail & tail_mask, middle_mask, tail_mask, *value, size};
  }
  return true;
}

// Reads one line as the writers lay it out, with single blanks, ended by "\n" or "\r\n". At least kCanonicalMax bytes
// must be readable at p. Every step below moves at most: 31 + 22 + 18 + 4 + 14 + 5 + 19 + 8 + 18 + 9 + 19 + 11 + 21 + 2
// = 201 bytes, and loads at most 8 beyond. False means "not this layout", never "not a call".
MEGATRACE_INLINE bool canonical_line(const char *&at, Memos *memos, Row *row) {
  const char *p = at;
  uint64_t number = 0;
  uint8_t flags = 0;
  row->save_count = 0;
  if (p[0] != '[') return false;
  if (p[1] == 's') {
    if (!take<kSaveCount>(p) || !take_number(p, &number) || !take<kClose>(p)) return false;
    row->save_count = number > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(number);
    flags |= MEGATRACE_LINE_SAVE_COUNT;
  }
  const char *body = p;
  // "[1755590104.253968145] [Rank ": ten digits of seconds, nine of fraction
  if (p[0] != '[' || !memos->take_seconds(p + 1, &row->enqueue)) return false;
  const uint64_t fraction = load8(p + 12);
  const unsigned last = static_cast<unsigned char>(p[20] - '0');
  if (last > 9 || !eight_digits(fraction)) return false;
  row->enqueue += static_cast<int64_t>(eight_value(fraction) * 10 + last);
  p += 21;
  if (!take<kCloseRank>(p) || !take_number(p, &number) || number > INT32_MAX) return false;
  row->rank = static_cast<int32_t>(number);
  if (!take<kCloseFun>(p) || !take_any_name(p, &row->op) || !take<kDataIs>(p) || !take_number(p, &number)) return false;
  row->count = static_cast<int64_t>(number);
  if (!take<kStreamIs>(p) || !take_memo<take_stream>(memos->streams, p, &row->stream)) return false;
  row->seq = -1;
  row->group_hash = 0;
  if (*p == ' ') {
    if (!take<kSeqIs>(p) || !take_number(p, &number)) return false;
    row->seq = static_cast<int64_t>(number);
    flags |= MEGATRACE_LINE_SEQ;
    if (*p == ' ') {
      if (!take<kHashIs>(p) || !take_memo<take_hash>(memos->hashes, p, &row->group_hash)) return false;
      flags |= MEGATRACE_LINE_HASH;
    }
  }
  if (static_cast<size_t>(p - body) - kBodyLimit < 2) { // as long as the writer's buffer: the end may be missing
    if (!(flags & MEGATRACE_LINE_HASH)) return false;
    flags ^= MEGATRACE_LINE_HASH | MEGATRACE_LINE_HASH_CUT;
  }
  if (*p == '\r') ++p;
  if (*p != '\n') return false;
  row->flags = flags;
  at = p + 1;
  return true;
}

inline void store(const megatrace_log_columns &out, uint64_t i, const Row &row) {
  out.rank[i] = row.rank;
  out.op[i] = row.op;
  out.count[i] = row.count;
  out.stream[i] = row.stream;
  out.seq[i] = row.seq;
  out.group_hash[i] = row.group_hash;
  out.enqueue[i] = row.enqueue;
  out.save_count[i] = row.save_count;
  out.flags[i] = row.flags;
}

} // namespace

extern "C" {

void megatrace_log_parse(const char *text, uint64_t length, const megatrace_log_columns *columns,
                         megatrace_log_result *result) {
  const megatrace_log_columns out = *columns;
  const char *p = text;
  const char *const end = text + length;
  uint64_t rows = 0;
  uint64_t rejects = 0;
  Memos memos;
  unsigned flags_or = 0;
  unsigned flags_and = 0xFF;
  while (rows < out.row_capacity && rejects < out.reject_capacity) {
    if (static_cast<size_t>(end - p) >= kCanonicalMax) {
      Row row; // one of its own: its address is not passed on, so it stays in registers
      if (canonical_line(p, &memos, &row)) {
        flags_or |= row.flags;
        flags_and &= row.flags;
        store(out, rows++, row);
        continue;
      }
    }
    const char *newline = p == end ? nullptr : static_cast<const char *>(memchr(p, '\n', static_cast<size_t>(end - p)));
    if (newline == nullptr) break;
    Row row;
    if (any_line(p, static_cast<size_t>(newline - p), &row)) {
      flags_or |= row.flags;
      flags_and &= row.flags;
      store(out, rows++, row);
    } else {
      out.reject_line[rejects] = static_cast<int64_t>(rows + rejects);
      out.reject_offset[rejects] = static_cast<int64_t>(p - text);
      ++rejects;
    }
    p = newline + 1;
  }
  *result = {rows, rejects, static_cast<uint64_t>(p - text), flags_or, flags_and};
}

uint64_t megatrace_log_codes(const uint64_t *group_hash, const uint8_t *flags, uint64_t rows, const uint64_t *keys,
                             const int32_t *slot_codes, uint32_t bits, int32_t *codes) {
  uint64_t unknown = 0;
  for (uint64_t i = 0; i < rows; ++i) {
    if (!(flags[i] & (MEGATRACE_LINE_HASH | MEGATRACE_LINE_HASH_CUT))) {
      codes[i] = -1;
      continue;
    }
    const uint64_t cut = (flags[i] & MEGATRACE_LINE_HASH_CUT) != 0;
    const uint64_t slot = ((group_hash[i] * 0x9E3779B97F4A7C15u) >> (64 - bits)) | (cut << bits);
    const bool known = keys[slot] == group_hash[i] && slot_codes[slot] != -1;
    codes[i] = known ? slot_codes[slot] : INT32_MIN;
    unknown += !known;
  }
  return unknown;
}

uint32_t megatrace_abi_version(void) { return 3; }

} // extern "C"
