/* What init reads from its command line (contract openvmm 2.1). */
#ifndef NVX_TOKENS_H
#define NVX_TOKENS_H

#include <stdint.h>

enum { MOST_LAYERS = 3, MOST_WORDS = 1024, MOST_SHARES = 256 };

enum upper { NO_UPPER, UPPER_EXT4, UPPER_RAMFS };

struct layer {
    const char *role;
    const char *format; /* "erofs" or "gpt" */
    const char *identity; /* NULL where the token names none */
    uint64_t base;
};

struct tokens {
    int layered;
    int managed;
    int has_identity;
    int has_terminal;
    int makes_account;
    uint32_t uid, gid;
    unsigned layers;
    struct layer layer[MOST_LAYERS];
    enum upper upper;
    uint32_t mappings;
    unsigned shares;
    const char *hostname;
    const char *entrypoint;
    unsigned arguments;
    const char *argument[MOST_WORDS];
};

extern const char *const ROLES[];
extern const uint64_t BASES[];
enum { SCRATCH_ROLE = 3, MOST_ROLES = 4 };

/* Cuts up a command line, which the tokens then point into; NULL, or why the guest doesn't boot. */
const char *tokens_read(struct tokens *tokens, char *line);

#endif
