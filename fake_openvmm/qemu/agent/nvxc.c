#include "nvxc.h"

#include <string.h>

#include "bytes.h"

enum { HAS_DIRECTORY = 1, HAS_ENVIRONMENT = 2, INHERITS = 4 };

static const uint8_t MAGIC[4] = {'N', 'V', 'X', 'C'};

struct reader {
    const uint8_t *raw;
    size_t size;
    size_t at;
    int cut; /* whether more was asked for than there is */
};

static const uint8_t *take(struct reader *reader, size_t size) {
    static const uint8_t none[16];
    if (reader->cut || size > reader->size - reader->at) {
        reader->cut = 1;
        return none;
    }
    reader->at += size;
    return reader->raw + reader->at - size;
}

static uint16_t take16(struct reader *reader) { return get16(take(reader, 2)); }

static uint32_t take32(struct reader *reader) { return get32(take(reader, 4)); }

int nvxc_item_fits(struct item item) {
    return item.length >= 1 && item.length <= NVXC_MAX_ITEM && !memchr(item.at, 0, item.length);
}

static struct item take_item(struct reader *reader, uint32_t length) {
    struct item item = {NULL, 0};
    if (length < 1 || length > NVXC_MAX_ITEM) {
        reader->cut = 1;
        return item;
    }
    item.at = take(reader, length);
    item.length = length;
    if (reader->cut || !nvxc_item_fits(item)) {
        reader->cut = 1;
        item.length = 0;
    }
    return item;
}

int nvxc_decode(const uint8_t *raw, size_t size, struct nvxc_frame *frame) {
    if (size < NVXC_HEADER || memcmp(raw, MAGIC, sizeof MAGIC) || raw[4] != 1 || get16(raw + 6))
        return -1;
    frame->kind = raw[5];
    frame->request = get64(raw + 8);
    frame->length = get32(raw + 20);
    frame->payload = raw + NVXC_HEADER;
    return frame->length == size - NVXC_HEADER && frame->request && !get32(raw + 16) ? 0 : -1;
}

static int names_are_unique(const struct nvxc_exec *exec) {
    for (unsigned i = 0; i < exec->variables; i++) {
        struct item one = exec->variable[i];
        const uint8_t *equals = memchr(one.at, '=', one.length);
        if (!equals || equals == one.at)
            return 0;
        size_t name = (size_t)(equals - one.at) + 1;
        for (unsigned j = 0; j < i; j++)
            if (exec->variable[j].length >= name && !memcmp(exec->variable[j].at, one.at, name))
                return 0;
    }
    return 1;
}

int nvxc_decode_exec(const uint8_t *raw, size_t size, struct nvxc_exec *exec) {
    struct reader reader = {raw, size, 0, 0};
    memset(exec, 0, sizeof *exec);
    exec->timeout_ms = take32(&reader);
    exec->arguments = take16(&reader);
    unsigned extension = take16(&reader), flags = 0;
    uint32_t directory = 0;
    if (extension == 1) {
        flags = take16(&reader);
        exec->variables = take16(&reader);
        directory = take32(&reader);
    }
    if (reader.cut || extension > 1 || flags > (HAS_DIRECTORY | HAS_ENVIRONMENT | INHERITS))
        return -1;
    if (exec->arguments < 1 || exec->arguments > NVXC_MAX_ARGUMENTS || exec->variables > NVXC_MAX_VARIABLES)
        return -1;
    if (!directory != !(flags & HAS_DIRECTORY))
        return -1;
    if ((exec->variables || flags & INHERITS) && !(flags & HAS_ENVIRONMENT))
        return -1;
    for (unsigned i = 0; i < exec->arguments; i++)
        exec->argument[i] = take_item(&reader, take32(&reader));
    if (directory)
        exec->directory = take_item(&reader, directory);
    for (unsigned i = 0; i < exec->variables; i++)
        exec->variable[i] = take_item(&reader, take32(&reader));
    if (reader.cut || reader.at != size || exec->argument[0].at[0] != '/')
        return -1;
    if (directory && exec->directory.at[0] != '/')
        return -1;
    exec->own_environment = !!(flags & HAS_ENVIRONMENT);
    exec->inherits = !(flags & HAS_ENVIRONMENT) || flags & INHERITS;
    return names_are_unique(exec) ? 0 : -1;
}

static int path_fits(struct item path, int absolute) {
    if (path.length < 1 || path.length > NVXC_MAX_PATH || memchr(path.at, 0, path.length))
        return 0;
    if (absolute && path.at[0] != '/')
        return 0;
    size_t from = absolute ? 1 : 0;
    for (;;) {
        const uint8_t *part = path.at + from;
        const uint8_t *slash = from < path.length ? memchr(part, '/', path.length - from) : NULL;
        size_t length = slash ? (size_t)(slash - part) : path.length - from;
        if (!length || (part[0] == '.' && (length == 1 || (length == 2 && part[1] == '.'))))
            return 0;
        if (!slash)
            return 1;
        from += length + 1;
    }
}

int nvxc_mapping_fits(const struct nvxc_mapping *mapping) {
    return path_fits(mapping->source, 0) && path_fits(mapping->target, 1);
}

int nvxc_next_mapping(const uint8_t *raw, size_t size, size_t *at, struct nvxc_mapping *mapping) {
    struct reader reader = {raw, size, *at, 0};
    uint16_t flags = take16(&reader);
    mapping->source.length = take16(&reader);
    mapping->target.length = take16(&reader);
    mapping->source.at = take(&reader, mapping->source.length);
    mapping->target.at = take(&reader, mapping->target.length);
    mapping->read_only = flags & 1;
    *at = reader.at;
    return reader.cut || flags > 1 || !nvxc_mapping_fits(mapping) ? -1 : 0;
}

int nvxc_check_maps(const uint8_t *raw, size_t size, uint32_t *first, uint32_t *count) {
    struct reader reader = {raw, size, 0, 0};
    struct nvxc_mapping mapping;
    *first = take32(&reader);
    *count = take32(&reader);
    if (reader.cut || !*count)
        return -1;
    size_t at = reader.at;
    for (uint32_t i = 0; i < *count; i++)
        if (nvxc_next_mapping(raw, size, &at, &mapping))
            return -1;
    return at == size ? 0 : -1;
}

void nvxc_header(uint8_t out[NVXC_HEADER], uint8_t kind, uint64_t request, int32_t status, uint32_t length) {
    memcpy(out, MAGIC, sizeof MAGIC);
    out[4] = 1;
    out[5] = kind;
    put16(out + 6, 0);
    put64(out + 8, request);
    put32(out + 16, (uint32_t)status);
    put32(out + 20, length);
}
