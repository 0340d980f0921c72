/* The test adapter's agent: JSON messages over the stream of DATA (contract openvmm 10, item 7). */
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "guest.h"

enum { MOST_MESSAGE = 1048576, LENGTH = 4, INCOMPLETE = 11, BUSY = 16, INVALID = 22, UNSUPPORTED = 95, PATIENCE_MS = 5000 };

static uint8_t stream[LENGTH + MOST_MESSAGE];
static size_t have;
static int64_t running;
static struct text said[2];

static void answer(struct text *message) {
    uint8_t length[LENGTH];
    if (message->failed)
        power_refuse("message", "no memory");
    put32(length, (uint32_t)message->length);
    session_send(length, sizeof length);
    session_send(message->at, message->length);
    free(message->at);
}

static void begin(struct text *message, int64_t id, int ok) {
    text_format(message, "{\"id\":%lld,\"ok\":%s", (long long)id, ok ? "true" : "false");
}

static void fail(int64_t id, const char *category, int status) {
    struct text message = {0};
    begin(&message, id, 0);
    text_format(&message, ",\"category\":\"%s\",\"status\":%d}", category, status);
    answer(&message);
}

static void succeed(int64_t id, const struct text *more) {
    struct text message = {0};
    begin(&message, id, 1);
    if (more)
        text_add(&message, more->at, more->length);
    text_add(&message, "}", 1);
    answer(&message);
}

static struct item item_of(const struct json *text) {
    if (!text || text->kind != JSON_STRING || text->broken)
        return (struct item){NULL, 0};
    return (struct item){(const uint8_t *)text->text, text->length};
}

static void hello(int64_t id) {
    struct text more = {0};
    text_format(&more, ",\"agent\":\"adapter\",\"epoch\":%llu", (unsigned long long)session_epoch());
    succeed(id, &more);
    free(more.at);
}

static int mapping_of(const struct json *entry, struct nvxc_mapping *mapping) {
    const struct json *source = entry->kind == JSON_ARRAY ? entry->first : NULL;
    const struct json *target = source ? source->next : NULL, *mode = target ? target->next : NULL;
    if (!mode || mode->next || (mode->kind != JSON_TRUE && mode->kind != JSON_FALSE))
        return -1;
    *mapping = (struct nvxc_mapping){item_of(source), item_of(target), mode->kind == JSON_TRUE};
    return nvxc_mapping_fits(mapping) ? 0 : -1;
}

static void maps(int64_t id, const struct json *message) {
    const struct json *first = json_member(message, "first"), *entries = json_member(message, "entries");
    struct nvxc_mapping mapping;
    uint32_t count = 0;
    machine_at("before_maps");
    int right = first && first->kind == JSON_INTEGER && first->integer >= 0 && first->integer <= 4096 && entries &&
                entries->kind == JSON_ARRAY;
    for (const struct json *one = right ? entries->first : NULL; right && one; one = one->next, count++)
        right = !mapping_of(one, &mapping);
    if (!right || !count || !mappings_follow((uint32_t)first->integer, count)) {
        fail(id, "invalid-request", INVALID);
        return;
    }
    mappings_begin();
    for (const struct json *one = entries->first; one; one = one->next) {
        int status = mapping_of(one, &mapping) ? INVALID : mappings_add(&mapping);
        if (status) {
            fail(id, "mapping-failed", status);
            return;
        }
    }
    succeed(id, NULL);
}

static void execute(int64_t id, const struct json *message) {
    const struct json *argv = json_member(message, "argv"), *timeout = json_member(message, "timeoutMs");
    static char *arguments[NVXC_MAX_ARGUMENTS + 1];
    struct request request = {.argument = (const char **)arguments, .inherits = 1};
    unsigned count = 0;
    int error;
    if (!mappings_complete()) {
        fail(id, "mappings-incomplete", INCOMPLETE);
        return;
    }
    int right = argv && argv->kind == JSON_ARRAY &&
                (!timeout || (timeout->kind == JSON_INTEGER && timeout->integer >= 0 && timeout->integer <= UINT32_MAX));
    for (const struct json *one = right ? argv->first : NULL; right && one; one = one->next) {
        struct item item = item_of(one);
        right = count < NVXC_MAX_ARGUMENTS && nvxc_item_fits(item) && (count || item.at[0] == '/');
        if (right && !(arguments[count++] = strndup((const char *)item.at, item.length)))
            power_refuse("message", "no memory");
    }
    arguments[count] = NULL;
    if (right && count) {
        machine_at("before_exec");
        request.timeout_ms = timeout ? (uint32_t)timeout->integer : 0;
        int stage = work_start(&request, 1, &error);
        running = id;
        if (stage == AT_LAUNCH) {
            fail(id, "launch-failed", REFUSED);
        } else if (stage) {
            text_format(&said[1], "can't execute: error %d\n", error);
            adapter_agent.ended("exit", REFUSED);
        }
    } else {
        fail(id, "invalid-request", INVALID);
    }
    while (count)
        free(arguments[--count]);
}

static void stop(int64_t id) {
    if (machine_flag("ignore_stop"))
        return;
    machine_at("before_stopped");
    succeed(id, NULL);
    session_flush(PATIENCE_MS);
    boot_leave();
    power_off(0);
}

static void note(const struct json *name, int64_t id, size_t size) {
    struct text line = {0};
    report_begin(&line, "request");
    report_text(&line, "name", name->text, name->length);
    report_number(&line, "request", id);
    report_number(&line, "size", (int64_t)size);
    report_number(&line, "epoch", (int64_t)session_epoch());
    report_end(&line);
}

static int is(const struct json *name, const char *word) {
    return name->length == strlen(word) && !memcmp(name->text, word, name->length);
}

static void serve(uint8_t *raw, size_t size) {
    const struct json *message = json_parse(raw, size);
    const struct json *id = message ? json_member(message, "id") : NULL, *name = id ? json_member(message, "op") : NULL;
    if (!name || id->kind != JSON_INTEGER || name->kind != JSON_STRING)
        power_refuse("message", "a malformed message");
    int64_t number = id->integer;
    note(name, number, size);
    if (!is(name, "hello") && !is(name, "facts") && !is(name, "maps") && !is(name, "exec") && !is(name, "stop"))
        fail(number, "unsupported-operation", UNSUPPORTED);
    else if (work.pid)
        fail(number, "busy", BUSY);
    else if (is(name, "hello"))
        hello(number);
    else if (is(name, "facts"))
        succeed(number, &boot.facts);
    else if (is(name, "maps"))
        maps(number, message);
    else if (is(name, "exec"))
        execute(number, message);
    else
        stop(number);
}

static void data(const uint8_t *payload, uint32_t length) {
    session_credit(length);
    while (length) {
        uint32_t expected = have < LENGTH ? LENGTH : LENGTH + get32(stream);
        uint32_t part = expected - (uint32_t)have < length ? expected - (uint32_t)have : length;
        memcpy(stream + have, payload, part);
        have += part;
        payload += part;
        length -= part;
        if (have == LENGTH && (!get32(stream) || get32(stream) > MOST_MESSAGE))
            power_refuse("message", "a message of %u bytes", get32(stream));
        if (have > LENGTH && have == LENGTH + get32(stream)) {
            have = 0;
            serve(stream + LENGTH, get32(stream));
        }
    }
}

static void forget(void) {
    for (int i = 0; i < 2; i++) {
        free(said[i].at);
        said[i] = (struct text){0};
    }
}

static void reset(void) {
    have = 0;
    work_abandon();
    forget();
}

static void output(int number, const uint8_t *at, size_t size) { text_add(&said[number - 1], at, size); }

static void ended(const char *category, int status) {
    struct text more = {0};
    text_format(&more, ",\"category\":\"%s\",\"status\":%d,\"stdout\":\"", category, status);
    text_base64(&more, (uint8_t *)said[0].at, said[0].length);
    text_format(&more, "\",\"stderr\":\"");
    text_base64(&more, (uint8_t *)said[1].at, said[1].length);
    text_add(&more, "\"", 1);
    succeed(running, &more);
    free(more.at);
    forget();
}

const struct agent adapter_agent = {reset, data, output, ended};
