// Rows of a dump -> the columns of calls: the twin of flight_recorder_entries.read_entries, for rows in the order of their
// numbers whose groups have one local id each. Others are left to it.
#ifndef MEGATRACE_FLIGHT_RECORDER_COLUMNS_H
#define MEGATRACE_FLIGHT_RECORDER_COLUMNS_H

#include "flight_recorder.h"
#include "flight_recorder_fields.h"

namespace fr {

constexpr uint8_t kSend = 6, kRecv = 7, kScatter = 10; // model.events.Op
constexpr int64_t kNone = -1;                          // NO_SEQ, NO_COUNT, NO_PEER

struct Calls {
  const int64_t *rows;
  uint64_t entries;
  const megatrace_fr_word *words;
  uint64_t texts;
  const megatrace_fr_columns *out;
  uint64_t from; // first row to write
  megatrace_fr_facts *facts;
  Array<int32_t> *group_of;  // by text, the last for none: number of a group + 1, 0 none yet
  Array<int64_t> *entry_of;  // the entry of each row written

  const int64_t *row(uint64_t i) const { return rows + i * MEGATRACE_FR_WIDTH; }
  const megatrace_fr_word &word(int64_t text) const {
    static const megatrace_fr_word none = {-1, -1, 0, 0, -1, 0};
    return text < 0 ? none : words[text];
  }
  bool is_message(const int64_t *row, const megatrace_fr_word &name) const {
    return name.op == kSend || name.op == kRecv || row[MEGATRACE_FR_IS_P2P] == 1;
  }
  int64_t sequence(const int64_t *row, bool message) const {
    const int64_t seq = row[message ? MEGATRACE_FR_P2P_SEQ : MEGATRACE_FR_COLLECTIVE_SEQ];
    if (seq >= 0) return seq;
    return row[MEGATRACE_FR_SEQ] < 0 ? kNone : row[MEGATRACE_FR_SEQ];
  }
  // Numbers groups in the order in which they come; false where one has several ids, or too many come.
  bool group(const int64_t *mine, int32_t *number) {
    const int64_t text = mine[MEGATRACE_FR_GROUP_TEXT];
    int32_t &known = group_of->at[text < 0 ? static_cast<int64_t>(texts) : text];
    if (!known) {
      if (facts->groups == MEGATRACE_FR_MOST_GROUPS) return false;
      const int64_t said[4] = {text, mine[MEGATRACE_FR_DESC_TEXT], mine[MEGATRACE_FR_PG_ID],
                               mine[MEGATRACE_FR_PG_ID_TEXT]};
      memcpy(facts->group[facts->groups], said, sizeof said);
      known = static_cast<int32_t>(++facts->groups);
    }
    *number = known - 1;
    const int64_t *first = facts->group[*number];
    return first[2] == mine[MEGATRACE_FR_PG_ID] && first[3] == mine[MEGATRACE_FR_PG_ID_TEXT];
  }
  void write(uint64_t at, const int64_t *mine, const megatrace_fr_word &name, int32_t group, int64_t seq) const {
    int64_t count = mine[name.op == kScatter || name.op == kRecv ? MEGATRACE_FR_COUNT_OUT : MEGATRACE_FR_COUNT_IN];
    if (count == kAbsent) count = kNone;
    const int64_t width = word(mine[MEGATRACE_FR_DTYPE_TEXT]).width;
    out->op[at] = name.op;
    out->group[at] = group;
    out->seq[at] = seq;
    out->peer[at] = name.peer;
    out->count[at] = count;
    out->nbytes[at] = count >= 0 && width > 0 && count < (kLimit >> 4) ? count * width : kNone;
    out->created[at] = mine[MEGATRACE_FR_CREATED] < 0 ? 0 : mine[MEGATRACE_FR_CREATED];
    out->coalesced[at] = 0;
  }
  // The times of an entry by itself, and what they say of the dump.
  void times(const int64_t *mine, const megatrace_fr_word &name, int64_t *started, int64_t *ended) const {
    const uint8_t state = word(mine[MEGATRACE_FR_STATE_TEXT]).flags;
    const int64_t created = mine[MEGATRACE_FR_CREATED] < 0 ? 0 : mine[MEGATRACE_FR_CREATED];
    const bool known = mine[MEGATRACE_FR_STARTED] > 0, begun = state & MEGATRACE_FR_WORD_STARTED;
    const bool done = state & MEGATRACE_FR_WORD_COMPLETED ||
                      (name.flags & MEGATRACE_FR_WORD_STATELESS && mine[MEGATRACE_FR_RETIRED] == 1);
    *ended = mine[MEGATRACE_FR_ENDED] > 0 ? mine[MEGATRACE_FR_ENDED] : done ? created : kAbsent;
    *started = known ? mine[MEGATRACE_FR_STARTED] : begun || *ended != kAbsent ? created : kAbsent;
    facts->has_start |= known || begun;
    const int64_t timeout = mine[MEGATRACE_FR_TIMEOUT_MS];
    if (*ended == kAbsent && timeout > 0 && timeout < facts->timeout_ms) facts->timeout_ms = timeout;
  }
  // Calls of a coalesced group get the times of the entry that closes it: the rows written from `first` on.
  void close(uint64_t first, uint64_t to, int64_t started, int64_t ended) const {
    for (uint64_t i = first; i < to; ++i) {
      out->started[i] = started;
      out->ended[i] = ended;
      out->coalesced[i] = 1;
    }
  }
  int64_t run();
};

// The rows written, -1 where the dump is to be read in the other way.
inline int64_t Calls::run() {
  facts->groups = facts->notes = facts->has_start = 0;
  facts->timeout_ms = kLimit;
  facts->lost = entries && row(0)[MEGATRACE_FR_RECORD_ID] > 0;
  facts->own = facts->own_group = -1;
  if (!group_of->reserve(texts + 1) || !entry_of->reserve(entries + 1)) return -1;
  memset(group_of->at, 0, (texts + 1) * sizeof(int32_t));
  uint64_t to = from, run = from; // `run`: the first row written of a run with the same group, number and kind
  int32_t group_before = -1;
  int64_t seq_before = kNone;
  bool message_before = false, closed_before = true;
  for (uint64_t i = 0; i < entries; ++i) {
    const int64_t *mine = row(i);
    if (i && mine[MEGATRACE_FR_RECORD_ID] < row(i - 1)[MEGATRACE_FR_RECORD_ID]) return -1;
    const megatrace_fr_word &name = word(mine[MEGATRACE_FR_NAME_TEXT]);
    const bool message = is_message(mine, name), closes = name.flags & MEGATRACE_FR_WORD_CLOSES;
    const int64_t seq = sequence(mine, message);
    int32_t number;
    int64_t started, ended;
    if (!group(mine, &number)) return -1;
    times(mine, name, &started, &ended);
    const bool same = i && number == group_before && seq == seq_before;
    if (!same || message != message_before || closed_before) run = to;
    if (closes) {
      close(run, to, started, ended);
    } else if (!(same && seq >= 0 && !message && !message_before)) {
      write(to, mine, name, number, seq);
      out->started[to] = started;
      out->ended[to] = ended;
      if (name.own >= 0 && facts->own < 0) facts->own = name.own, facts->own_group = number;
      entry_of->at[to - from] = static_cast<int64_t>(i);
      ++to;
    }
    group_before = number, seq_before = seq, message_before = message, closed_before = closes;
  }
  for (uint64_t i = from; i < to && facts->notes < MEGATRACE_FR_MOST_NOTES; ++i)
    if (out->ended[i] == kAbsent) {
      facts->note_row[facts->notes] = static_cast<int64_t>(i - from);
      facts->note_entry[facts->notes++] = entry_of->at[i - from];
    }
  return static_cast<int64_t>(to - from);
}

} // namespace fr

#endif
