/* Holds the agent's readers against inputs on the host: each is a u32 length and that many bytes on standard input, each
   answer one line. The mode is the first argument; `nvxs` takes the size of the pieces as the second. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "disk.h"
#include "json.h"
#include "nvxc.h"
#include "nvxs.h"
#include "tokens.h"

static void hex(const uint8_t *at, size_t size) {
    for (size_t i = 0; i < size; i++)
        printf("%02x", at[i]);
}

static void one_item(struct item item) {
    putchar(' ');
    hex(item.at, item.length);
}

static void records(const uint8_t *raw, size_t size, size_t piece) {
    static struct nvxs_parser parser;
    struct nvxs_record record;
    uint8_t again[NVXS_HEADER];
    memset(&parser, 0, sizeof parser);
    int more = 1;
    for (size_t from = 0; from < size && more;) {
        /* A copy of each piece, so that reading past its end is seen. */
        size_t length = size - from < piece ? size - from : piece;
        uint8_t *part = malloc(length);
        memcpy(part, raw + from, length);
        for (size_t at = 0; at < length && more;) {
            at += nvxs_feed(&parser, part + at, length - at);
            more = nvxs_take(&parser, &record);
            if (more > 0) {
                printf("%u ", record.type);
                hex(record.instance, 16);
                printf(" %" PRIu64 " %" PRIu64 " ", record.epoch, record.sequence);
                hex(record.payload, record.length);
                nvxs_header(again, &record);
                printf(" ");
                hex(again, sizeof again);
                printf(";");
            }
            more = more >= 0;
        }
        from += length;
        free(part);
    }
    printf("%s", parser.error ? "error" : "");
}

static void frame(const uint8_t *raw, size_t size) {
    struct nvxc_frame found;
    if (nvxc_decode(raw, size, &found)) {
        printf("bad");
        return;
    }
    printf("%u %" PRIu64 " ", found.kind, found.request);
    hex(found.payload, found.length);
}

static void exec(const uint8_t *raw, size_t size) {
    static struct nvxc_exec found;
    if (nvxc_decode_exec(raw, size, &found)) {
        printf("bad");
        return;
    }
    printf("%u %d %d :", found.timeout_ms, found.own_environment, found.inherits != 0);
    for (unsigned i = 0; i < found.arguments; i++)
        one_item(found.argument[i]);
    printf(" :");
    if (found.directory.length)
        one_item(found.directory);
    printf(" :");
    for (unsigned i = 0; i < found.variables; i++)
        one_item(found.variable[i]);
}

static void maps(const uint8_t *raw, size_t size) {
    uint32_t first, count;
    struct nvxc_mapping one;
    size_t at = 8;
    if (nvxc_check_maps(raw, size, &first, &count)) {
        printf("bad");
        return;
    }
    printf("%u", first);
    for (uint32_t i = 0; i < count && !nvxc_next_mapping(raw, size, &at, &one); i++) {
        printf(" :%d", one.read_only);
        one_item(one.source);
        one_item(one.target);
    }
}

static void dump(struct text *to, const struct json *value) {
    if (value->name) {
        text_quote(to, value->name->text, value->name->length);
        text_add(to, ":", 1);
    }
    switch (value->kind) {
    case JSON_NULL:
        text_format(to, "null");
        break;
    case JSON_FALSE:
    case JSON_TRUE:
        text_format(to, value->kind == JSON_TRUE ? "true" : "false");
        break;
    case JSON_INTEGER:
        text_format(to, "%" PRId64, value->integer);
        break;
    case JSON_FRACTION:
        text_format(to, "0.5");
        break;
    case JSON_STRING:
        text_quote(to, value->text, value->length);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        text_add(to, value->kind == JSON_ARRAY ? "[" : "{", 1);
        for (const struct json *one = value->first; one; one = one->next) {
            dump(to, one);
            if (one->next)
                text_add(to, ",", 1);
        }
        text_add(to, value->kind == JSON_ARRAY ? "]" : "}", 1);
    }
}

static void json(uint8_t *raw, size_t size) {
    struct text text = {0};
    const struct json *found = json_parse(raw, size);
    if (found)
        dump(&text, found);
    else
        text_format(&text, "bad");
    if (text.length)
        fwrite(text.at, 1, text.length, stdout);
    free(text.at);
}

static void base64(const uint8_t *raw, size_t size) {
    struct text text = {0};
    text_base64(&text, raw, size);
    if (text.length)
        fwrite(text.at, 1, text.length, stdout);
    free(text.at);
}

static void tokens(const uint8_t *raw, size_t size) {
    static struct tokens found;
    char *line = malloc(size + 1);
    memcpy(line, raw, size);
    line[size] = 0;
    const char *fault = tokens_read(&found, line);
    if (fault) {
        printf("bad");
    } else {
        printf("%d %d %u %u %d %u %u %s %s", found.layered, found.managed, found.uid, found.gid, (int)found.upper,
               found.mappings, found.shares, found.hostname, found.entrypoint);
        for (unsigned i = 0; i < found.layers; i++)
            printf(" %s,%s,%s", found.layer[i].role, found.layer[i].format,
                   found.layer[i].identity ? found.layer[i].identity : "-");
        for (unsigned i = 0; i < found.arguments; i++)
            printf(" %s", found.argument[i]);
    }
    free(line);
}

static void image(char *name) {
    char text[UUID_TEXT] = "";
    unsigned partition = 0;
    int fd = open(name, O_RDONLY);
    for (unsigned block = 512; block <= 4096; block *= 8) {
        const char *fault = gpt_disk(fd, block, text, &partition);
        printf("gpt %s %u;", fault ? "bad" : text, fault ? 0 : partition);
    }
    const char *fault = erofs_uuid(fd, text);
    printf("erofs %s;", fault ? "bad" : text);
    fault = ext4_uuid(fd, text);
    printf("ext4 %s", fault ? "bad" : text);
    close(fd);
}

int main(int count, char **argument) {
    uint8_t length[4];
    const char *mode = count > 1 ? argument[1] : "";
    while (fread(length, 1, 4, stdin) == 4) {
        size_t size = get32(length);
        uint8_t *raw = malloc(size + 1);
        if (fread(raw, 1, size, stdin) != size)
            return 2;
        /* Exactly as large as the input, so that reading past its end is seen. */
        uint8_t *exact = malloc(size);
        memcpy(exact, raw, size);
        raw[size] = 0;
        if (!strcmp(mode, "nvxs"))
            records(exact, size, strtoul(argument[2], NULL, 10));
        else if (!strcmp(mode, "nvxc"))
            frame(exact, size);
        else if (!strcmp(mode, "exec"))
            exec(exact, size);
        else if (!strcmp(mode, "maps"))
            maps(exact, size);
        else if (!strcmp(mode, "json"))
            json(exact, size);
        else if (!strcmp(mode, "base64"))
            base64(exact, size);
        else if (!strcmp(mode, "tokens"))
            tokens(exact, size);
        else if (!strcmp(mode, "image"))
            image((char *)raw);
        else
            return 2;
        putchar('\n');
        free(exact);
        free(raw);
    }
    return 0;
}
