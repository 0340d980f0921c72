/* The guest's end of the control channel: NVXS over a virtio port, for whichever agent sits on it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "guest.h"
#include "nvxs.h"

enum { WINDOW = 1 << 20 };

struct queued {
    struct queued *next;
    size_t size;
    size_t sent;
    uint8_t raw[];
};

const struct agent *agent;

static int port = -1;
static struct nvxs_parser parser;
static struct queued *queue, **tail = &queue;
static size_t waiting;
static uint8_t instance[16];
static uint64_t epoch, received, sent;

static _Noreturn void fail(const char *what) { power_refuse("session", "%s", what); }

void session_open(void) {
    port = port_open("nvx.control");
    if (port < 0)
        power_refuse("tty", "no control port");
    fcntl(port, F_SETFL, O_NONBLOCK);
}

uint64_t session_epoch(void) { return epoch; }

size_t session_waiting(void) { return waiting; }

int session_fd(void) { return port; }

static void put(struct nvxs_record record, const void *head, size_t head_size, const void *data, size_t size) {
    record.length = (uint32_t)(head_size + size);
    struct queued *one = malloc(sizeof *one + NVXS_HEADER + record.length);
    if (!one)
        fail("no memory");
    nvxs_header(one->raw, &record);
    if (head_size)
        memcpy(one->raw + NVXS_HEADER, head, head_size);
    if (size)
        memcpy(one->raw + NVXS_HEADER + head_size, data, size);
    one->next = NULL;
    one->sent = 0;
    one->size = NVXS_HEADER + record.length;
    waiting += one->size;
    *tail = one;
    tail = &one->next;
}

static struct nvxs_record mine(uint8_t type) {
    struct nvxs_record record = {.type = type, .epoch = epoch, .sequence = sent++};
    memcpy(record.instance, instance, sizeof instance);
    return record;
}

static void put_number(uint8_t type, uint32_t number) {
    uint8_t raw[4];
    put32(raw, number);
    put(mine(type), raw, sizeof raw, NULL, 0);
}

void session_attach(void) { put((struct nvxs_record){.type = NVXS_GUEST_ATTACH}, NULL, 0, NULL, 0); }

void session_credit(uint32_t amount) { put_number(NVXS_CREDIT, amount); }

void session_send2(const void *head, size_t head_size, const void *data, size_t size) {
    put(mine(NVXS_DATA), head, head_size, data, size);
}

void session_send(const void *data, size_t size) {
    const uint8_t *at = data;
    while (size) {
        size_t part = size < NVXS_MAX_DATA ? size : NVXS_MAX_DATA;
        session_send2(at, part, NULL, 0);
        at += part;
        size -= part;
    }
}

/* Forgets what waits; a record of which a part is on its way already stays whole. */
static void drop_waiting(void) {
    struct queued *kept = queue && queue->sent ? queue : NULL, *one = kept ? kept->next : queue;
    while (one) {
        struct queued *next = one->next;
        waiting -= one->size;
        free(one);
        one = next;
    }
    queue = kept;
    tail = kept ? &kept->next : &queue;
    *tail = NULL;
}

static void reset(const struct nvxs_record *record) {
    drop_waiting();
    memcpy(instance, record->instance, sizeof instance);
    epoch = record->epoch;
    received = 1;
    sent = 0;
    agent->reset();
    put_number(NVXS_ACK, WINDOW);
}

static void take(const struct nvxs_record *record) {
    if (record->type == NVXS_RESET && !record->sequence) {
        reset(record);
        return;
    }
    if (record->type != NVXS_DATA || !epoch || memcmp(record->instance, instance, sizeof instance) ||
        record->epoch != epoch || record->sequence != received)
        fail("a record out of turn");
    received++;
    agent->data(record->payload, record->length);
}

static void read_port(void) {
    static uint8_t piece[16384];
    struct nvxs_record record;
    ssize_t got = read(port, piece, sizeof piece);
    if (got < 0 && errno != EAGAIN && errno != EINTR)
        fail("the control port can't be read");
    for (size_t at = 0; got > 0 && at < (size_t)got;) {
        at += nvxs_feed(&parser, piece + at, (size_t)got - at);
        int whole = nvxs_take(&parser, &record);
        if (whole < 0)
            fail(parser.error);
        if (whole)
            take(&record);
    }
}

static void write_port(void) {
    while (queue) {
        ssize_t put = write(port, queue->raw + queue->sent, queue->size - queue->sent);
        if (put <= 0)
            return;
        queue->sent += (size_t)put;
        if (queue->sent < queue->size)
            continue;
        struct queued *done = queue;
        queue = done->next;
        if (!queue)
            tail = &queue;
        waiting -= done->size;
        free(done);
    }
}

void session_serve(int readable, int writable) {
    if (readable)
        read_port();
    if (writable)
        write_port();
}

void session_flush(int patience_ms) {
    int64_t until = now_ms() + patience_ms, left;
    while (queue && (left = until - now_ms()) > 0) {
        struct pollfd one = {port, POLLOUT, 0};
        if (poll(&one, 1, (int)left) > 0)
            write_port();
    }
}
