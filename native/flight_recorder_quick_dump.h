// A whole dump on the straight way (flight_recorder_quick.h): what it says besides its entries, and JSON of its parts.
#ifndef MEGATRACE_FLIGHT_RECORDER_QUICK_DUMP_H
#define MEGATRACE_FLIGHT_RECORDER_QUICK_DUMP_H

#include "flight_recorder_quick_entries.h"

namespace fr {

// What is said of one group: its description and ranks, or how far it got.
inline bool Quick::described_group(bool counts, int64_t *row) {
  static const char *const counted[] = {"last_enqueued_collective", "last_started_collective",
                                        "last_completed_collective"};
  static const char *const told[] = {"", "desc", "ranks"};
  if (!next('}')) return false;
  ++at;
  int32_t where, text;
  Item key, item;
  for (int i = 1; i < 4 - !counts; ++i) row[i] = -1;
  if (!put(false, kOpen, &where) || !next('(')) return false;
  for (++at; !next('u');) {
    if (!value<false>(2, &key) || key.type != Type::kText || !value<false>(2, &item)) return false;
    const auto is = [&](const char *word) {
      return key.extra == strlen(word) && !memcmp(data + key.number, word, key.extra);
    };
    for (int i = counts ? 0 : 1; i < 3; ++i) {
      if (!is(counts ? counted[i] : told[i])) continue;
      if (!counts) {
        if (!number_of(item, &text) || text < 0) return false;
        row[i] = text;
      } else {
        const int64_t number = fr::number(data, item.type, item.extra, item.number);
        row[i + 1] = number == kAbsent ? -1 : number;
      }
    }
  }
  ++at;
  return !next('(') && (where >= 0 || put(false, kOpen, &where));
}

// What is said of all groups; nothing is changed where it is said otherwise.
inline bool Quick::described(bool counts) {
  const uint64_t back = at, memos = memo.size, kept = sums.size;
  int64_t &count = counts ? statuses : configs;
  const auto read = [&] {
    int32_t where, text;
    Item key;
    if (!next('}')) return false;
    ++at;
    if (!put(false, kOpen, &where) || !next('(')) return false;
    for (++at; !next('u'); ++count) {
      if (count == MEGATRACE_FR_MOST_GROUPS || !value<false>(2, &key) || !number_of(key, &text) || text < 0) return false;
      int64_t *row = counts ? status[count] : config[count];
      row[0] = text;
      if (!described_group(counts, row)) return false;
    }
    ++at;
    return !next('(') && (where >= 0 || put(false, kOpen, &where));
  };
  count = 0;
  if (read()) return true;
  wasted += at - back;
  at = back, memo.size = memos, sums.size = kept, count = -1;
  return false;
}

// The value of a key of the dump.
inline bool Quick::root_value(const Item &key) {
  const auto is = [&](const char *word) {
    return key.extra == strlen(word) && !memcmp(data + key.number, word, key.extra);
  };
  Item item;
  if (is("entries")) return !entries_at && next(']') && entries();
  if (is("version")) {
    int32_t text;
    if (version != -1 || !value<false>(1, &item) || !number_of(item, &text) || text < 0) return false;
    version = text;
    return true;
  }
  if (is("pg_status")) return statuses == 0 && (described(true) || value<false>(1, &item));
  if (!is("pg_config")) return value<false>(1, &item);
  if (groups || configs) return false;
  groups = described(false);
  if (groups) return true;
  if (!value<false>(1, &item)) return false;
  groups = item.type == Type::kDict;
  return true;
}

// Reads the whole file; false where it is put together in another way.
inline bool Quick::run() {
  at = wasted = containers = bad = entries_at = entries_end = 0;
  groups = false;
  version = -1;
  configs = statuses = 0;
  memo.size = sums.size = rows.size = begins.size = 0;
  int32_t where;
  if (length < 8 || length > UINT32_MAX || data[0] != 0x80 || data[1] > 5) return false;
  at = data[2] == 0x95 ? 11 : 2;
  if (!next('}')) return false;
  ++at;
  if (!put(false, kOpen, &where)) return false;
  while (next('(')) {
    for (++at; !next('u');) {
      Item key;
      if (!value<false>(1, &key) || key.type != Type::kText || !root_value(key)) return false;
    }
    ++at;
  }
  if (where < 0 && !put(false, kOpen, &where)) return false;
  return next('.') && (entries_at || groups);
}

// Writes one entry as JSON, or everything but the entries with -1.
inline void Quick::write(int64_t which) {
  wasted = 0;
  Item unused;
  if (which < 0) return write_rest();
  if (static_cast<uint64_t>(which) >= begins.size) return writer->word("{}");
  at = begins.at[which];
  value<true>(0, &unused);
}

inline void Quick::write_rest() {
  int32_t where;
  Item item;
  bool more = false;
  at = data[2] == 0x95 ? 12 : 3; // after the opcode that makes the dictionary
  if (!put(true, kOpen, &where)) return;
  writer->byte('{');
  while (next('(')) {
    for (++at; !next('u');) {
      const uint64_t size = writer->size;
      if (more) writer->byte(',');
      if (!value<true>(1, &item)) return;
      if (at == entries_at) {
        at = entries_end;
        writer->size = size;
        continue;
      }
      more = true;
      writer->byte(':');
      if (!value<true>(1, &item)) return;
    }
    ++at;
  }
  writer->byte('}');
}

} // namespace fr

#endif
