#include "tokens.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *const ROLES[] = {"distro", "runtime", "custom", "scratch"};
const uint64_t BASES[] = {0xd0003000, 0xd0004000, 0xd0005000, 0xd0006000};

static struct {
    char *key;
    char *value; /* NULL without an equals sign */
} words[MOST_WORDS];
static unsigned count;
static char why[256];

static const char *refuse(const char *format, const char *what) {
    snprintf(why, sizeof why, format, what ? what : "");
    return why;
}

/* The first value of a key, "" without an equals sign, NULL without the key. */
static const char *first(const char *key) {
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(words[i].key, key))
            return words[i].value ? words[i].value : "";
    return NULL;
}

static unsigned times(const char *key) {
    unsigned found = 0;
    for (unsigned i = 0; i < count; i++)
        found += !strcmp(words[i].key, key);
    return found;
}

static const char *only(const char *key, const char *value, int *found) {
    *found = times(key) > 0;
    if (*found && (times(key) > 1 || strcmp(first(key), value)))
        return refuse("%s has another value than its one, or is repeated", key);
    return NULL;
}

static int number(const char *text, uint32_t *value) {
    char *end;
    if (!text || !isdigit((unsigned char)*text) || strlen(text) > 10)
        return -1;
    unsigned long long found = strtoull(text, &end, 10);
    *value = (uint32_t)found;
    return *end || found > UINT32_MAX ? -1 : 0;
}

static int is_uuid(const char *text) {
    if (strlen(text) != 36)
        return 0;
    for (int i = 0; i < 36; i++) {
        int dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? text[i] != '-' : !isxdigit((unsigned char)text[i]))
            return 0;
    }
    return 1;
}

static int is_label(const char *text) {
    size_t length = strlen(text);
    if (length < 1 || length > 63 || text[0] == '-' || text[length - 1] == '-')
        return 0;
    return strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

static const char *read_layer(struct tokens *tokens, char *value) {
    char *address = value ? strchr(value, ',') : NULL, *kind = address ? strchr(address + 1, ',') : NULL;
    if (!kind)
        return refuse("malformed nvx_layer=%s", value);
    *address++ = *kind++ = 0;
    char *identity = strchr(kind, ':');
    if (identity)
        *identity++ = 0;
    int role = 0;
    while (role < SCRATCH_ROLE && strcmp(ROLES[role], value))
        role++;
    char expected[32];
    snprintf(expected, sizeof expected, "0x%llx", role < SCRATCH_ROLE ? (unsigned long long)BASES[role] : 0);
    if (role == SCRATCH_ROLE || strcmp(address, expected))
        return refuse("nvx_layer names an unknown slot: %s", value);
    if (strcmp(kind, "erofs") && strcmp(kind, "gpt"))
        return refuse("nvx_layer names an unknown format: %s", kind);
    if (identity && !is_uuid(identity))
        return refuse("nvx_layer names no identity: %s", identity);
    for (unsigned i = 0; i < tokens->layers; i++)
        if (!strcmp(tokens->layer[i].role, value))
            return refuse("nvx_layer names the %s twice", value);
    struct layer *layer = &tokens->layer[tokens->layers++];
    *layer = (struct layer){ROLES[role], kind, identity, BASES[role]};
    return NULL;
}

static int target_fits(const char *target) {
    if (*target != '/')
        return 0;
    while (*target) {
        size_t length = strcspn(++target, "/");
        if (!length || (length == 1 && *target == '.') || (length == 2 && !strncmp(target, "..", 2)))
            return 0;
        target += length;
    }
    return 1;
}

static const char *read_shares(struct tokens *tokens) {
    static const char name[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    static struct {
        char *child;
        char *target;
    } seen[MOST_SHARES];
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(words[i].key, "nvx_share"))
            continue;
        char *child = words[i].value, *target = child ? strchr(child, ',') : NULL;
        char *mode = target ? strrchr(target + 1, ',') : NULL;
        if (!mode || tokens->shares == MOST_SHARES)
            return refuse("malformed nvx_share=%s", child);
        *target++ = *mode++ = 0;
        size_t length = strlen(child);
        if (length < 1 || length > 64 || strspn(child, name) != length || !strcmp(child, ".") || !strcmp(child, ".."))
            return refuse("nvx_share names no child: %s", child);
        if (!target_fits(target) || (strcmp(mode, "ro") && strcmp(mode, "rw")))
            return refuse("malformed target or mode of nvx_share %s", child);
        for (unsigned j = 0; j < tokens->shares; j++)
            if (!strcmp(seen[j].child, child) || !strcmp(seen[j].target, target))
                return refuse("repeated nvx_share %s", child);
        seen[tokens->shares].child = child;
        seen[tokens->shares++].target = target;
    }
    return NULL;
}

static const char *read_limits(void) {
    static const char *const keys[] = {"nvx_memory_max", "nvx_pids_max"};
    for (int i = 0; i < 2; i++) {
        const char *value = first(keys[i]);
        if (value && (strspn(value, "0123456789") != strlen(value) || strspn(value, "0") == strlen(value)))
            return refuse("malformed %s", keys[i]);
    }
    return NULL;
}

static const char *read_layered(struct tokens *tokens) {
    const char *fault = NULL;
    int scratch, memory;
    for (unsigned i = 0; !fault && i < count; i++)
        if (!strcmp(words[i].key, "nvx_layer"))
            fault = read_layer(tokens, words[i].value);
    if (fault)
        return fault;
    int distro = 0;
    for (unsigned i = 0; i < tokens->layers; i++)
        distro |= !strcmp(tokens->layer[i].role, "distro");
    if (!distro)
        return "no nvx_layer names the distro";
    if ((fault = only("nvx_scratch", "0xd0006000,ext4", &scratch)) ||
        (fault = only("nvx_overlay_upper", "ramfs", &memory)))
        return fault;
    if (scratch == memory)
        return scratch ? "nvx_scratch and nvx_overlay_upper exclude each other" : "no upper is named";
    tokens->upper = scratch ? UPPER_EXT4 : UPPER_RAMFS;
    tokens->hostname = first("nvx_hostname") ? first("nvx_hostname") : "nvx-sandbox";
    if (!is_label(tokens->hostname))
        return refuse("malformed nvx_hostname=%s", tokens->hostname);
    if (first("nvx_entrypoint"))
        tokens->entrypoint = first("nvx_entrypoint");
    if (*tokens->entrypoint != '/')
        return refuse("nvx_entrypoint isn't absolute: %s", tokens->entrypoint);
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(words[i].key, "nvx_arg")) {
            if (!words[i].value || !*words[i].value)
                return "empty nvx_arg";
            tokens->argument[tokens->arguments++] = words[i].value;
        }
    if ((fault = read_limits()))
        return fault;
    return read_shares(tokens);
}

static const char *read_direct(struct tokens *tokens) {
    const char *account = first("nvx_workload_account"), *maps = first("nvx_maps");
    tokens->hostname = first("hostname") ? first("hostname") : "nvx";
    if (account && strcmp(account, "create"))
        return refuse("malformed nvx_workload_account=%s", account);
    tokens->makes_account = account != NULL;
    if (!maps)
        return NULL;
    if (times("nvx_maps") > 1 || number(maps, &tokens->mappings) || !tokens->mappings || tokens->mappings > 4096)
        return refuse("malformed or repeated nvx_maps=%s", maps);
    return times("virtfs_dir") ? NULL : "nvx_maps without a mounted share";
}

const char *tokens_read(struct tokens *tokens, char *line) {
    memset(tokens, 0, sizeof *tokens);
    tokens->entrypoint = "/bin/sh";
    count = 0;
    for (char *word = strtok(line, " \t\n"); word; word = strtok(NULL, " \t\n")) {
        if (count == MOST_WORDS)
            return "too many tokens";
        char *equals = strchr(word, '=');
        if (equals)
            *equals++ = 0;
        words[count].key = word;
        words[count++].value = equals;
    }
    const char *fault = only("nvx_sandbox", "1", &tokens->layered);
    if (fault)
        return fault;
    const char *uid = first("nvx_workload_uid"), *gid = first("nvx_workload_gid"), *life = first("nvx_lifecycle");
    tokens->has_identity = uid && gid;
    if (tokens->has_identity && (number(uid, &tokens->uid) || number(gid, &tokens->gid)))
        return "malformed workload identity";
    tokens->managed = life && !strcmp(life, "managed");
    tokens->has_terminal = times("nvx_control_tty") > 0;
    if (tokens->layered && !tokens->has_identity)
        return "no workload identity";
    if (tokens->managed && !(tokens->has_identity && tokens->has_terminal))
        return "managed without an identity or a control terminal";
    return tokens->layered ? read_layered(tokens) : read_direct(tokens);
}
