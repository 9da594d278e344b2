// One line of the call log exactly as the writers lay it out: words are compared and converted eight bytes at a time, and
// texts that a rank repeats are remembered. Gives up on the first byte that differs; logparse_any.h then decides.
// Included by logparse.cc only.
#ifndef MEGATRACE_LOGPARSE_CANONICAL_H
#define MEGATRACE_LOGPARSE_CANONICAL_H

#include "logparse_any.h"

// For the pieces of the canonical line: a call would cost more than what they do.
#define MEGATRACE_INLINE __attribute__((always_inline)) inline

namespace {

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

} // namespace

#endif
