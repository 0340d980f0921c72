/* The managed agent: NVXC, one request at a time, beside an EXEC only its CANCEL (contract openvmm 3.6). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "guest.h"

enum {
    INCOMPLETE = 11,
    BUSY = 16,
    INVALID = 22,
    UNSUPPORTED = 95,
    LAYERED = 0x15,
    DIRECT = 0x7d,
    PATIENCE_MS = 5000,
};

static uint64_t running;

static void answer(uint8_t kind, uint64_t request, int status, const void *payload, size_t size) {
    uint8_t head[NVXC_HEADER];
    nvxc_header(head, kind, request, status, (uint32_t)size);
    session_send2(head, sizeof head, payload, size);
}

static void fail(uint64_t request, const char *category, int status) {
    answer(NVXC_ERROR, request, status, category, strlen(category));
}

static void note(const struct nvxc_frame *frame) {
    static const char *const names[] = {"PING", "EXEC", "STOP", "CANCEL", "FEATURES", "MAPS"};
    struct text line = {0};
    report_begin(&line, "request");
    if (frame->kind >= NVXC_PING && frame->kind <= NVXC_MAPS)
        report_text(&line, "name", names[frame->kind - 1], strlen(names[frame->kind - 1]));
    else
        text_format(&line, ",\"name\":\"kind %u\"", frame->kind);
    text_format(&line, ",\"request\":%llu", (unsigned long long)frame->request);
    report_number(&line, "size", frame->length);
    report_number(&line, "epoch", (int64_t)session_epoch());
    report_end(&line);
}

static char *word(struct item item) {
    char *made = malloc(item.length + 1u);
    if (!made)
        power_refuse("memory", "no memory");
    memcpy(made, item.at, item.length);
    made[item.length] = 0;
    return made;
}

static void refused(uint64_t request, const struct request *asked, int stage, int error) {
    char said[8400];
    if (stage == AT_LAUNCH) {
        fail(request, "launch-failed", REFUSED);
        return;
    }
    const char *what = stage == AT_PROGRAM ? asked->argument[0] : asked->directory;
    int size = snprintf(said, sizeof said, "nvx-container-enter: %s: %s\n", what ? what : "/", strerror(error));
    answer(NVXC_STDERR, request, 0, said, (size_t)size);
    if (stage == AT_DIRECTORY && !boot.tokens.layered)
        fail(request, "cwd-failed", error);
    else
        answer(NVXC_EXIT, request, REFUSED, "exit", 4);
}

static void execute(const struct nvxc_frame *frame) {
    static struct nvxc_exec exec;
    static const char *arguments[NVXC_MAX_ARGUMENTS + 1], *variables[NVXC_MAX_VARIABLES + 1];
    struct request request = {.argument = arguments, .variable = variables};
    int error;
    if (!mappings_complete()) {
        fail(frame->request, "mappings-incomplete", INCOMPLETE);
        return;
    }
    if (nvxc_decode_exec(frame->payload, frame->length, &exec)) {
        fail(frame->request, "invalid-request", INVALID);
        return;
    }
    machine_at("before_exec");
    for (unsigned i = 0; i < exec.arguments; i++)
        arguments[i] = word(exec.argument[i]);
    for (unsigned i = 0; i < exec.variables; i++)
        variables[i] = word(exec.variable[i]);
    arguments[exec.arguments] = variables[exec.variables] = NULL;
    request.timeout_ms = exec.timeout_ms;
    request.inherits = exec.inherits;
    request.directory = exec.directory.length ? word(exec.directory) : NULL;
    int stage = work_start(&request, 1, &error);
    if (stage)
        refused(frame->request, &request, stage, error);
    else
        running = frame->request;
    for (unsigned i = 0; i < exec.arguments; i++)
        free((char *)arguments[i]);
    for (unsigned i = 0; i < exec.variables; i++)
        free((char *)variables[i]);
    free((char *)request.directory);
}

static void map(const struct nvxc_frame *frame) {
    uint32_t first, count;
    struct nvxc_mapping mapping;
    machine_at("before_maps");
    if (nvxc_check_maps(frame->payload, frame->length, &first, &count) || !mappings_follow(first, count)) {
        fail(frame->request, "invalid-request", INVALID);
        return;
    }
    mappings_begin();
    size_t at = 8;
    for (uint32_t i = 0; i < count; i++) {
        int status = nvxc_next_mapping(frame->payload, frame->length, &at, &mapping) ? INVALID : mappings_add(&mapping);
        if (status) {
            fail(frame->request, "mapping-failed", status);
            return;
        }
    }
    answer(NVXC_READY, frame->request, 0, NULL, 0);
}

static void stop(const struct nvxc_frame *frame) {
    if (frame->length)
        power_refuse("stop", "STOP with a payload");
    if (machine_flag("ignore_stop"))
        return;
    machine_at("before_stopped");
    answer(NVXC_STOPPED, frame->request, 0, NULL, 0);
    session_flush(PATIENCE_MS);
    boot_leave();
    power_off(0);
}

static void tell(const struct nvxc_frame *frame) {
    uint8_t features[4];
    if (frame->kind == NVXC_FEATURES && machine_flag("old_guest")) {
        fail(frame->request, "unsupported-operation", UNSUPPORTED);
    } else if (frame->length) {
        fail(frame->request, "invalid-request", INVALID);
    } else {
        put32(features, (uint32_t)machine_number("features", boot.tokens.layered ? LAYERED : DIRECT));
        answer(NVXC_READY, frame->request, 0, features, frame->kind == NVXC_FEATURES ? sizeof features : 0);
    }
}

static void data(const uint8_t *payload, uint32_t length) {
    struct nvxc_frame frame;
    if (nvxc_decode(payload, length, &frame))
        power_refuse("frame", "a malformed frame");
    session_credit(length);
    note(&frame);
    if (frame.kind == NVXC_CANCEL) {
        if (work.pid && !frame.length && frame.request == running && !machine_flag("ignore_cancel"))
            work_kill(CANCELLED);
    } else if (work.pid) {
        fail(frame.request, "busy", BUSY);
    } else if (frame.kind == NVXC_STOP) {
        stop(&frame);
    } else if (frame.kind == NVXC_EXEC) {
        execute(&frame);
    } else if (frame.kind == NVXC_PING || frame.kind == NVXC_FEATURES) {
        tell(&frame);
    } else if (frame.kind == NVXC_MAPS && !machine_flag("old_guest")) {
        map(&frame);
    } else {
        fail(frame.request, "unsupported-operation", UNSUPPORTED);
    }
}

static void reset(void) {
    work_abandon();
    running = 0;
}

static void output(int stream, const uint8_t *said, size_t size) {
    answer(stream == 1 ? NVXC_STDOUT : NVXC_STDERR, running, 0, said, size);
}

static void ended(const char *category, int status) {
    answer(NVXC_EXIT, running, status, category, strlen(category));
    running = 0;
}

const struct agent managed_agent = {reset, data, output, ended};
