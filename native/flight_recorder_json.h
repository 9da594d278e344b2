// Writes JSON into a buffer that may be too small; counts what it would take.
#ifndef MEGATRACE_FLIGHT_RECORDER_JSON_H
#define MEGATRACE_FLIGHT_RECORDER_JSON_H

#include "flight_recorder_values.h"

namespace fr {

constexpr int kDeepest = 32; // nested values of the rest of a dump: groups are three deep

struct Writer {
  const uint8_t *data; // the file, in which texts lie
  char *out;
  uint64_t room, most, size; // beyond `most` nothing is written: lists that share lists could go on without end

  bool full() const { return size > most; }
  void byte(char c) {
    if (size < room) out[size] = c;
    ++size;
  }
  void word(const char *text) {
    while (*text) byte(*text++);
  }
  void text(uint64_t offset, uint32_t length) {
    static const char hex[] = "0123456789abcdef";
    byte('"');
    for (uint32_t i = 0; i < length; ++i) {
      const uint8_t c = data[offset + i];
      if (c == '"' || c == '\\') {
        byte('\\');
        byte(static_cast<char>(c));
      } else if (c < 0x20) {
        word("\\u00");
        byte(hex[c >> 4]);
        byte(hex[c & 15]);
      } else {
        byte(static_cast<char>(c));
      }
    }
    byte('"');
  }
  void integer(int64_t value) {
    char digits[24];
    int count = 0;
    uint64_t left = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    do digits[count++] = static_cast<char>('0' + left % 10);
    while (left /= 10);
    if (value < 0) byte('-');
    while (count) byte(digits[--count]);
  }
};

} // namespace fr

#endif
