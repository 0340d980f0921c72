/* The guest's reading of the session records (contract openvmm 3.3). */
#ifndef NVX_NVXS_H
#define NVX_NVXS_H

#include <stddef.h>
#include <stdint.h>

enum {
    NVXS_HEADER = 44,
    NVXS_MAX_DATA = 65536,
    NVXS_LEAST_WINDOW = 65536,
    NVXS_MOST_CREDIT = 4194314,
};

enum nvxs_type {
    NVXS_GUEST_ATTACH = 1,
    NVXS_HOST_ATTACH,
    NVXS_RESET,
    NVXS_ACK,
    NVXS_DATA,
    NVXS_WAIT,
    NVXS_READY,
    NVXS_ERROR,
    NVXS_CREDIT,
};

struct nvxs_record {
    uint8_t type;
    uint8_t instance[16];
    uint64_t epoch;
    uint64_t sequence;
    uint32_t length;
    const uint8_t *payload; /* valid until the parser is fed again */
};

struct nvxs_parser {
    size_t have;
    const char *error; /* why nothing more is parsed, or NULL */
    uint8_t raw[NVXS_HEADER + NVXS_MAX_DATA];
};

/* Takes bytes of at most one record and says how many; after that record has been taken, feed the rest. */
size_t nvxs_feed(struct nvxs_parser *parser, const uint8_t *data, size_t size);

/* Gives a whole record: 1 if there is one, 0 if bytes are missing, -1 after an error, which is for ever. */
int nvxs_take(struct nvxs_parser *parser, struct nvxs_record *record);

/* Writes the header of a record. */
void nvxs_header(uint8_t out[NVXS_HEADER], const struct nvxs_record *record);

#endif
