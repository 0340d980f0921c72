/* NVX's own protocol inside DATA, as the guest reads it (contract openvmm 3.6). */
#ifndef NVX_NVXC_H
#define NVX_NVXC_H

#include <stddef.h>
#include <stdint.h>

enum {
    NVXC_HEADER = 24,
    NVXC_MAX_ITEM = 4096,
    NVXC_MAX_ARGUMENTS = 64,
    NVXC_MAX_VARIABLES = 256,
    NVXC_MAX_PATH = 4095,
};

enum nvxc_kind {
    NVXC_PING = 1,
    NVXC_EXEC,
    NVXC_STOP,
    NVXC_CANCEL,
    NVXC_FEATURES,
    NVXC_MAPS,
    NVXC_READY = 0x81,
    NVXC_STDOUT,
    NVXC_STDERR,
    NVXC_EXIT,
    NVXC_STOPPED,
    NVXC_ERROR = 0xff,
};

struct item {
    const uint8_t *at;
    uint32_t length;
};

struct nvxc_frame {
    uint8_t kind;
    uint64_t request;
    const uint8_t *payload;
    uint32_t length;
};

struct nvxc_exec {
    uint32_t timeout_ms;
    unsigned arguments;
    struct item argument[NVXC_MAX_ARGUMENTS];
    struct item directory; /* length 0 without one */
    int own_environment;
    int inherits;
    unsigned variables;
    struct item variable[NVXC_MAX_VARIABLES];
};

struct nvxc_mapping {
    struct item source;
    struct item target;
    int read_only;
};

/* Each gives 0, or -1 for what the contract doesn't allow. */
int nvxc_decode(const uint8_t *raw, size_t size, struct nvxc_frame *frame);
int nvxc_decode_exec(const uint8_t *raw, size_t size, struct nvxc_exec *exec);

/* Checks a whole table; then nvxc_next_mapping walks through it, from *at = 8. */
int nvxc_check_maps(const uint8_t *raw, size_t size, uint32_t *first, uint32_t *count);
int nvxc_next_mapping(const uint8_t *raw, size_t size, size_t *at, struct nvxc_mapping *mapping);

/* The rules of one mapping and of one argument, which the test adapter's requests share. */
int nvxc_mapping_fits(const struct nvxc_mapping *mapping);
int nvxc_item_fits(struct item item);

void nvxc_header(uint8_t out[NVXC_HEADER], uint8_t kind, uint64_t request, int32_t status, uint32_t length);

#endif
