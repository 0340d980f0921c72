/* As much JSON as the test adapter's requests and the agent's reports need (contract openvmm 10, item 7). */
#ifndef NVX_JSON_H
#define NVX_JSON_H

#include <stddef.h>
#include <stdint.h>

enum json_kind { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_INTEGER, JSON_FRACTION, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_kind kind;
    int64_t integer;
    const char *text; /* a string's decoded bytes, in the document's buffer */
    uint32_t length;
    int broken;               /* a string that holds half of a surrogate pair, which is no text */
    const struct json *name;  /* a member's name */
    const struct json *first; /* the first entry of an array or member of an object */
    const struct json *next;  /* the next one of the same parent */
};

/* Parses a document, whose buffer is decoded in place; NULL if it is no JSON, no UTF-8, or too large to be a request.
   What it gives is valid until the next call. */
const struct json *json_parse(uint8_t *raw, size_t size);

/* Gives a member of an object, the last of that name, or NULL. */
const struct json *json_member(const struct json *object, const char *name);

/* A text that grows; when memory is short it is marked and stays as it is. */
struct text {
    char *at;
    size_t length;
    size_t room;
    int failed;
};

void text_add(struct text *text, const void *data, size_t size);
void text_format(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds a quoted JSON string; bytes that aren't UTF-8 become U+FFFD. */
void text_quote(struct text *text, const void *data, size_t size);
void text_base64(struct text *text, const uint8_t *data, size_t size);

#endif
