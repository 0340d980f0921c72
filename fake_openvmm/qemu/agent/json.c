#include "json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NODES = 65536, MOST_DEPTH = 64 };

static struct json nodes[MOST_NODES];

struct parser {
    uint8_t *at;
    uint8_t *end;
    unsigned used;
    unsigned depth;
};

/* How many bytes the UTF-8 character at `at` has; 0 if it is none. */
static size_t character(const uint8_t *at, const uint8_t *end) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = at[0] < 0x80 ? 1 : at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (size == 1)
        return 1;
    if (at[0] < 0xc2 || at[0] > 0xf4 || size > (size_t)(end - at))
        return 0;
    uint32_t code = at[0] & (0xffu >> (size + 1));
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    return code < least[size] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ? 0 : size;
}

static int is_text(const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        size_t size = character(at, end);
        if (!size)
            return 0;
        at += size;
    }
    return 1;
}

static void skip_space(struct parser *parser) {
    while (parser->at < parser->end && memchr(" \t\n\r", *parser->at, 4))
        parser->at++;
}

static struct json *node(struct parser *parser, enum json_kind kind) {
    if (parser->used == MOST_NODES)
        return NULL;
    struct json *made = &nodes[parser->used++];
    memset(made, 0, sizeof *made);
    made->kind = kind;
    return made;
}

static int take_hex(struct parser *parser, uint32_t *code) {
    if (parser->end - parser->at < 4)
        return -1;
    *code = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t one = *parser->at++;
        uint32_t digit = one >= '0' && one <= '9' ? one - 48u : (one | 32u) - 97u + 10u;
        if (digit > 15 || (digit > 9 && ((one | 32) < 'a' || (one | 32) > 'f')))
            return -1;
        *code = *code << 4 | digit;
    }
    return 0;
}

static uint8_t *put_character(uint8_t *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = (uint8_t)code;
    } else if (code < 0x800) {
        *to++ = (uint8_t)(0xc0 | code >> 6);
        *to++ = (uint8_t)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *to++ = (uint8_t)(0xe0 | code >> 12);
        *to++ = (uint8_t)(0x80 | (code >> 6 & 0x3f));
        *to++ = (uint8_t)(0x80 | (code & 0x3f));
    } else {
        *to++ = (uint8_t)(0xf0 | code >> 18);
        *to++ = (uint8_t)(0x80 | (code >> 12 & 0x3f));
        *to++ = (uint8_t)(0x80 | (code >> 6 & 0x3f));
        *to++ = (uint8_t)(0x80 | (code & 0x3f));
    }
    return to;
}

/* Decodes the escape whose backslash has been read; an escape is longer than what it stands for. */
static uint8_t *take_escape(struct parser *parser, uint8_t *to, struct json *text) {
    static const char from[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    if (parser->at == parser->end)
        return NULL;
    uint8_t one = *parser->at++;
    const char *found = one ? strchr(from, one) : NULL;
    if (found) {
        *to++ = (uint8_t)means[found - from];
        return to;
    }
    uint32_t code, low;
    if (one != 'u' || take_hex(parser, &code))
        return NULL;
    if (code >= 0xd800 && code <= 0xdbff && parser->end - parser->at >= 6 && parser->at[0] == '\\' &&
        parser->at[1] == 'u') {
        uint8_t *before = parser->at;
        parser->at += 2;
        if (take_hex(parser, &low))
            return NULL;
        if (low >= 0xdc00 && low <= 0xdfff)
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        else
            parser->at = before;
    }
    text->broken |= code >= 0xd800 && code <= 0xdfff;
    return put_character(to, code);
}

static struct json *take_string(struct parser *parser) {
    struct json *made = node(parser, JSON_STRING);
    uint8_t *to = ++parser->at;
    if (!made)
        return NULL;
    made->text = (char *)to;
    while (parser->at < parser->end) {
        uint8_t one = *parser->at++;
        if (one == '"') {
            made->length = (uint32_t)(to - (uint8_t *)made->text);
            return made;
        }
        if (one < 0x20)
            return NULL;
        if (one != '\\')
            *to++ = one;
        else if (!(to = take_escape(parser, to, made)))
            return NULL;
    }
    return NULL;
}

static size_t digits(struct parser *parser) {
    uint8_t *from = parser->at;
    while (parser->at < parser->end && *parser->at >= '0' && *parser->at <= '9')
        parser->at++;
    return (size_t)(parser->at - from);
}

static struct json *take_number(struct parser *parser) {
    struct json *made = node(parser, JSON_INTEGER);
    uint8_t *from = parser->at;
    int minus = *from == '-';
    parser->at += minus;
    uint8_t *start = parser->at;
    size_t count = digits(parser);
    if (!made || !count || (count > 1 && *start == '0'))
        return NULL;
    if (parser->at < parser->end && *parser->at == '.') {
        made->kind = JSON_FRACTION;
        parser->at++;
        if (!digits(parser))
            return NULL;
    }
    if (parser->at < parser->end && (*parser->at | 32) == 'e') {
        made->kind = JSON_FRACTION;
        parser->at++;
        if (parser->at < parser->end && (*parser->at == '+' || *parser->at == '-'))
            parser->at++;
        if (!digits(parser))
            return NULL;
    }
    if (made->kind == JSON_INTEGER && count > 18)
        made->kind = JSON_FRACTION; /* no number of a request is that large */
    for (size_t i = 0; made->kind == JSON_INTEGER && i < count; i++)
        made->integer = made->integer * 10 + (start[i] - '0');
    if (minus)
        made->integer = -made->integer;
    return made;
}

static struct json *take_word(struct parser *parser, const char *word, enum json_kind kind) {
    size_t size = strlen(word);
    if ((size_t)(parser->end - parser->at) < size || memcmp(parser->at, word, size))
        return NULL;
    parser->at += size;
    return node(parser, kind);
}

static struct json *take_value(struct parser *parser);

static struct json *take_named(struct parser *parser) {
    if (parser->at == parser->end || *parser->at != '"')
        return NULL;
    struct json *name = take_string(parser);
    skip_space(parser);
    if (!name || parser->at == parser->end || *parser->at++ != ':')
        return NULL;
    struct json *value = take_value(parser);
    if (value)
        value->name = name;
    return value;
}

static struct json *take_many(struct parser *parser, enum json_kind kind, uint8_t close) {
    struct json *made = node(parser, kind), *last = NULL;
    parser->at++;
    if (!made || ++parser->depth > MOST_DEPTH)
        return NULL;
    skip_space(parser);
    if (parser->at < parser->end && *parser->at == close) {
        parser->at++;
        parser->depth--;
        return made;
    }
    for (;;) {
        skip_space(parser);
        struct json *one = kind == JSON_OBJECT ? take_named(parser) : take_value(parser);
        if (!one)
            return NULL;
        if (last)
            last->next = one;
        else
            made->first = one;
        last = one;
        skip_space(parser);
        if (parser->at == parser->end)
            return NULL;
        uint8_t mark = *parser->at++;
        if (mark == close) {
            parser->depth--;
            return made;
        }
        if (mark != ',')
            return NULL;
    }
}

static struct json *take_value(struct parser *parser) {
    skip_space(parser);
    if (parser->at == parser->end)
        return NULL;
    switch (*parser->at) {
    case '{':
        return take_many(parser, JSON_OBJECT, '}');
    case '[':
        return take_many(parser, JSON_ARRAY, ']');
    case '"':
        return take_string(parser);
    case 't':
        return take_word(parser, "true", JSON_TRUE);
    case 'f':
        return take_word(parser, "false", JSON_FALSE);
    case 'n':
        return take_word(parser, "null", JSON_NULL);
    default:
        return take_number(parser);
    }
}

const struct json *json_parse(uint8_t *raw, size_t size) {
    struct parser parser = {raw, raw + size, 0, 0};
    if (!is_text(raw, raw + size))
        return NULL;
    const struct json *found = take_value(&parser);
    skip_space(&parser);
    return found && parser.at == parser.end ? found : NULL;
}

const struct json *json_member(const struct json *object, const char *name) {
    const struct json *found = NULL;
    size_t length = strlen(name);
    if (object->kind != JSON_OBJECT)
        return NULL;
    for (const struct json *one = object->first; one; one = one->next)
        if (one->name->length == length && !memcmp(one->name->text, name, length))
            found = one;
    return found;
}

void text_add(struct text *text, const void *data, size_t size) {
    if (text->failed)
        return;
    if (text->room - text->length < size) {
        size_t room = (text->length + size) * 2 + 256;
        char *more = realloc(text->at, room);
        if (!more) {
            text->failed = 1;
            return;
        }
        text->at = more;
        text->room = room;
    }
    if (size)
        memcpy(text->at + text->length, data, size);
    text->length += size;
}

void text_format(struct text *text, const char *format, ...) {
    char piece[512];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    if (size < 0 || (size_t)size >= sizeof piece)
        text->failed = 1;
    else
        text_add(text, piece, (size_t)size);
}

void text_quote(struct text *text, const void *data, size_t size) {
    const uint8_t *at = data, *end = at + size;
    text_add(text, "\"", 1);
    while (at < end) {
        size_t length = character(at, end);
        if (!length) {
            text_add(text, "\\ufffd", 6);
            length = 1;
        } else if (*at < 0x20 || *at == '"' || *at == '\\') {
            text_format(text, "\\u%04x", *at);
        } else {
            text_add(text, at, length);
        }
        at += length;
    }
    text_add(text, "\"", 1);
}

void text_base64(struct text *text, const uint8_t *data, size_t size) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        size_t left = size - i;
        uint32_t bits = (uint32_t)data[i] << 16 | (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) | (left > 2 ? data[i + 2] : 0);
        char out[4] = {digit[bits >> 18], digit[bits >> 12 & 63], digit[bits >> 6 & 63], digit[bits & 63]};
        if (left < 3)
            out[3] = '=';
        if (left < 2)
            out[2] = '=';
        text_add(text, out, 4);
    }
}
