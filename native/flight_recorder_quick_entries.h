// The entries of a dump on the straight way (flight_recorder_quick.h): a row of numbers each.
#ifndef MEGATRACE_FLIGHT_RECORDER_QUICK_ENTRIES_H
#define MEGATRACE_FLIGHT_RECORDER_QUICK_ENTRIES_H

#include "flight_recorder_usual.h"

namespace fr {

// Reads the value of one key into its column.
inline bool Quick::field(int which, int64_t *row, int32_t *dtypes) {
  Item item;
  int32_t text;
  if (which == MEGATRACE_FR_GROUP_TEXT && is_couple() ? !couple<false>(2, &item) : !value<false>(2, &item)) return false;
  const bool listed = item.type == Type::kList || item.type == Type::kTuple;
  if ((listed || item.type == Type::kDict) && sums.at[item.extra].depth >= kNested) return false;
  switch (which) {
  case kNoField: return true;
  case MEGATRACE_FR_IS_P2P:
  case MEGATRACE_FR_RETIRED: row[which] = item.type == Type::kBool ? item.number : kAbsent; return true;
  case MEGATRACE_FR_COUNT_IN:
  case MEGATRACE_FR_COUNT_OUT: row[which] = listed ? sums.at[item.extra].total : kAbsent; return true;
  case kInDtypes: dtypes[0] = listed ? sums.at[item.extra].first : -1; return true;
  case kOutDtypes: dtypes[1] = listed ? sums.at[item.extra].first : -1; return true;
  case MEGATRACE_FR_NAME_TEXT:
  case MEGATRACE_FR_STATE_TEXT:
    if (!number_of(item, &text)) return false;
    row[which] = text < 0 ? kAbsent : text;
    return true;
  case MEGATRACE_FR_GROUP_TEXT: {
    int32_t desc = listed ? sums.at[item.extra].second : -1;
    if (listed) text = sums.at[item.extra].first;
    else if (!number_of(item, &text)) return false;
    row[MEGATRACE_FR_GROUP_TEXT] = text < 0 ? kAbsent : text;
    row[MEGATRACE_FR_DESC_TEXT] = desc < 0 ? kAbsent : desc;
    return true;
  }
  case MEGATRACE_FR_PG_ID:
    if (!number_of(item, &text)) return false;
    row[MEGATRACE_FR_PG_ID_TEXT] = text < 0 ? kAbsent : text;
    row[MEGATRACE_FR_PG_ID] = item.type == Type::kInt ? fr::number(data, item.type, 0, item.number) : kAbsent;
    return true;
  default: row[which] = fr::number(data, item.type, item.extra, item.number); return true;
  }
}

// Which column a key stands for.
inline bool Quick::key(int *which) {
  Item key;
  if (!value<false>(2, &key) || key.type != Type::kText) return false;
  *which = field_of(data + key.number, key.extra);
  if (key.memo >= 0) memo.at[key.memo].field = static_cast<int16_t>(*which);
  return true;
}

// A dictionary that is an entry, from its first byte on.
inline bool Quick::entry() {
  const uint64_t begin = at++, sums_before = sums.size, memo_before = memo.size;
  int32_t where;
  if (!rows.reserve(rows.size + MEGATRACE_FR_WIDTH) || !begins.add(static_cast<uint32_t>(begin)) ||
      !put(false, kOpen, &where) || !next('('))
    return false;
  int64_t *row = rows.at + rows.size;
  for (int i = 0; i < MEGATRACE_FR_WIDTH; ++i) row[i] = kAbsent;
  int32_t dtypes[2] = {-1, -1};
  Sum sum = {kAbsent, kAbsent, -1, -1, static_cast<uint32_t>(begin), 1};
  while (next('(')) {
    for (++at, usual(row, dtypes); !next('u'); usual(row, dtypes)) {
      int which;
      if (!key(&which) || !field(which, row, dtypes)) return false;
    }
    ++at;
  }
  if (where < 0 && !put(false, kOpen, &where)) return false;
  const int32_t dtype = dtypes[0] < 0 ? dtypes[1] : dtypes[0];
  row[MEGATRACE_FR_DTYPE_TEXT] = dtype < 0 ? kAbsent : dtype;
  rows.size += MEGATRACE_FR_WIDTH;
  if (memo.size == memo_before + (where >= 0)) sums.size = sums_before; // nothing of it can be referred to
  sum.depth = kNested; // no value of it is deeper than one less
  Item unused;
  return where < 0 || keep(Type::kDict, sum, where, &unused);
}

inline bool Quick::entries() {
  Item item;
  int32_t where;
  entries_at = at++;
  if (!put(false, kOpen, &where)) return false; // it stays open: nothing may refer to it
  while (next('(')) {
    for (++at; !next('e');) {
      if (next('}')) {
        if (!entry()) return false;
      } else {
        if (!value<false>(1, &item) || item.type == Type::kDict) return false;
        ++bad;
      }
    }
    ++at;
  }
  if (where < 0 && !put(false, kOpen, &where)) return false;
  entries_end = at;
  return true;
}

} // namespace fr

#endif
