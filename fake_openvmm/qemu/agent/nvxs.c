#include "nvxs.h"

#include <string.h>

#include "bytes.h"

static const uint8_t MAGIC[4] = {'N', 'V', 'X', 'S'};
static const uint8_t NOBODY[32];

static size_t wanted(const struct nvxs_parser *parser) {
    if (parser->have < NVXS_HEADER)
        return NVXS_HEADER;
    return NVXS_HEADER + get32(parser->raw + 40);
}

static int length_fits(uint8_t type, uint32_t length) {
    switch (type) {
    case NVXS_DATA:
        return length >= 1 && length <= NVXS_MAX_DATA;
    case NVXS_HOST_ATTACH:
        return length == 32;
    case NVXS_ACK:
    case NVXS_CREDIT:
    case NVXS_ERROR:
        return length == 4;
    default:
        return length == 0;
    }
}

static const char *header_fault(const uint8_t *raw) {
    uint8_t type = raw[6];
    if (memcmp(raw, MAGIC, sizeof MAGIC))
        return "magic";
    if (get16(raw + 4) != 1)
        return "version";
    if (type < NVXS_GUEST_ATTACH || type > NVXS_CREDIT)
        return "type";
    if (raw[7])
        return "flags";
    if (!length_fits(type, get32(raw + 40)))
        return "length";
    if (type <= NVXS_HOST_ATTACH && memcmp(raw + 8, NOBODY, 32))
        return "identity";
    return NULL;
}

static const char *body_fault(const uint8_t *raw) {
    uint32_t number = raw[6] == NVXS_DATA || !get32(raw + 40) ? 0 : get32(raw + NVXS_HEADER);
    if (raw[6] == NVXS_ACK && (number < NVXS_LEAST_WINDOW || number > NVXS_MOST_CREDIT))
        return "window";
    if (raw[6] == NVXS_CREDIT && (number < 1 || number > NVXS_MOST_CREDIT))
        return "credit";
    if (raw[6] == NVXS_ERROR && number != 1)
        return "code";
    return NULL;
}

size_t nvxs_feed(struct nvxs_parser *parser, const uint8_t *data, size_t size) {
    size_t taken = 0;
    while (taken < size && !parser->error && parser->have < wanted(parser)) {
        size_t part = wanted(parser) - parser->have;
        if (part > size - taken)
            part = size - taken;
        memcpy(parser->raw + parser->have, data + taken, part);
        parser->have += part;
        taken += part;
        /* Nothing of a body is taken before its header is right. */
        if (parser->have == NVXS_HEADER)
            parser->error = header_fault(parser->raw);
    }
    if (!parser->error && parser->have >= NVXS_HEADER && parser->have == wanted(parser))
        parser->error = body_fault(parser->raw);
    return taken;
}

int nvxs_take(struct nvxs_parser *parser, struct nvxs_record *record) {
    if (parser->error)
        return -1;
    if (parser->have < NVXS_HEADER || parser->have < wanted(parser))
        return 0;
    record->type = parser->raw[6];
    memcpy(record->instance, parser->raw + 8, sizeof record->instance);
    record->epoch = get64(parser->raw + 24);
    record->sequence = get64(parser->raw + 32);
    record->length = get32(parser->raw + 40);
    record->payload = parser->raw + NVXS_HEADER;
    parser->have = 0;
    return 1;
}

void nvxs_header(uint8_t out[NVXS_HEADER], const struct nvxs_record *record) {
    memcpy(out, MAGIC, sizeof MAGIC);
    put16(out + 4, 1);
    out[6] = record->type;
    out[7] = 0;
    memcpy(out + 8, record->instance, sizeof record->instance);
    put64(out + 24, record->epoch);
    put64(out + 32, record->sequence);
    put32(out + 40, record->length);
}
