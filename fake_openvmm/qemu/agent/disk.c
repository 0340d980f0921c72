#include "disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"

enum {
    EROFS_AT = 1024,
    EROFS_UUID_AT = 48,
    EXT4_AT = 1024,
    EXT4_MAGIC_AT = 56,
    EXT4_UUID_AT = 104,
    GPT_LEAST = 92,
    GPT_MOST_ENTRIES = 1 << 20,
};

static int read_at(int fd, void *data, size_t size, off_t at) {
    uint8_t *to = data;
    while (size) {
        ssize_t got = pread(fd, to, size, at);
        if (got <= 0)
            return -1;
        to += got;
        at += got;
        size -= (size_t)got;
    }
    return 0;
}

static void as_text(const uint8_t *raw, char text[UUID_TEXT]) {
    char *to = text;
    for (int i = 0; i < 16; i++)
        to += sprintf(to, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", raw[i]);
}

const char *erofs_uuid(int fd, char uuid[UUID_TEXT]) {
    uint8_t block[128];
    if (read_at(fd, block, sizeof block, EROFS_AT) || get32(block) != 0xe0f5e1e2)
        return "no EROFS";
    as_text(block + EROFS_UUID_AT, uuid);
    return NULL;
}

const char *ext4_uuid(int fd, char uuid[UUID_TEXT]) {
    uint8_t block[256];
    if (read_at(fd, block, sizeof block, EXT4_AT) || get16(block + EXT4_MAGIC_AT) != 0xef53)
        return "no ext4";
    as_text(block + EXT4_UUID_AT, uuid);
    return NULL;
}

static uint32_t crc32_of(const uint8_t *data, size_t size) {
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

static const char *first_used(int fd, unsigned block, const uint8_t *header, unsigned *partition) {
    static const uint8_t unused[16];
    uint64_t at = get64(header + 72);
    uint32_t count = get32(header + 80), size = get32(header + 84);
    uint64_t bytes = (uint64_t)count * size;
    if (size < 128 || !count || bytes > GPT_MOST_ENTRIES || at > UINT64_MAX / 2 / block)
        return "malformed GPT";
    uint8_t *entries = malloc(bytes);
    const char *fault = entries ? NULL : "no memory";
    if (!fault && read_at(fd, entries, bytes, (off_t)(at * block)))
        fault = "GPT entries cut short";
    if (!fault && crc32_of(entries, bytes) != get32(header + 88))
        fault = "GPT entries with a wrong CRC";
    *partition = 0;
    for (uint32_t i = 0; !fault && !*partition && i < count; i++)
        if (memcmp(entries + (size_t)i * size, unused, sizeof unused))
            *partition = i + 1;
    free(entries);
    return fault ? fault : *partition ? NULL : "GPT without a partition";
}

const char *gpt_disk(int fd, unsigned block, char guid[UUID_TEXT], unsigned *partition) {
    uint8_t header[4096], sum[4];
    if (block > sizeof header || read_at(fd, header, block, block) || memcmp(header, "EFI PART", 8))
        return "no GPT";
    uint32_t size = get32(header + 12);
    if (size < GPT_LEAST || size > block || get64(header + 24) != 1)
        return "malformed GPT";
    memcpy(sum, header + 16, sizeof sum);
    memset(header + 16, 0, sizeof sum);
    if (crc32_of(header, size) != get32(sum))
        return "GPT with a wrong CRC";
    const uint8_t *raw = header + 56;
    const uint8_t turned[16] = {raw[3], raw[2], raw[1], raw[0], raw[5], raw[4], raw[7], raw[6],
                                raw[8], raw[9], raw[10], raw[11], raw[12], raw[13], raw[14], raw[15]};
    as_text(turned, guid);
    return first_used(fd, block, header, partition);
}
