/* From init's first step to mounted layers: modules, the command line, block devices, EROFS, GPT, the upper. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "disk.h"
#include "guest.h"

#define ROOT "/nvx/root"
#define UPPER "/nvx/upper"

struct boot boot;

static char line[4096], tokens_line[4096];
static int mounted; /* how many of the steps below have to be undone */

static void make(const char *path) {
    if (mkdir(path, 0755) && errno != EEXIST)
        power_refuse("init", "mkdir %s: %s", path, strerror(errno));
}

static void join(const char *what, const char *type, const char *place, unsigned long flags, const char *data) {
    if (mount(what, place, type, flags, data))
        power_refuse("init", "mount %s at %s: %s", what, place, strerror(errno));
}

static size_t read_file(const char *path, char *to, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t have = 0;
    ssize_t got;
    while (fd >= 0 && have < size - 1 && (got = read(fd, to + have, size - 1 - have)) > 0)
        have += (size_t)got;
    if (fd >= 0)
        close(fd);
    to[have] = 0;
    return have;
}

static void load_modules(void) {
    FILE *order = fopen("/modules/order", "re");
    char name[128], path[160];
    while (order && fscanf(order, "%127s", name) == 1) {
        snprintf(path, sizeof path, "/modules/%s", name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
            power_refuse("init", "module %s: %s", name, strerror(errno));
        close(fd);
    }
    if (order)
        fclose(order);
}

/* Finds the name of the block device behind a slot: its address is in /proc/iomem, beside the name of its platform
   device, below which the block device is. */
static int find_block(uint64_t base, char *name, size_t size) {
    uint64_t address = machine_address(base), start;
    char row[256], platform[64] = "", path[160], below[448];
    FILE *table = address ? fopen("/proc/iomem", "re") : NULL;
    while (table && !*platform && fgets(row, sizeof row, table)) {
        char *mark = strstr(row, " : ");
        if (mark && (start = strtoull(row, NULL, 16)) == address)
            sscanf(mark + 3, "%63s", platform);
    }
    if (table)
        fclose(table);
    snprintf(path, sizeof path, "/sys/bus/platform/devices/%s", platform);
    DIR *devices = *platform ? opendir(path) : NULL;
    struct dirent *entry;
    int found = 0;
    while (devices && !found && (entry = readdir(devices))) {
        if (strncmp(entry->d_name, "virtio", 6))
            continue;
        snprintf(below, sizeof below, "%s/%s/block", path, entry->d_name);
        DIR *blocks = opendir(below);
        struct dirent *block;
        while (blocks && !found && (block = readdir(blocks)))
            if (*block->d_name != '.')
                found = snprintf(name, size, "%s", block->d_name) > 0;
        if (blocks)
            closedir(blocks);
    }
    if (devices)
        closedir(devices);
    return found;
}

static unsigned block_size(const char *name) {
    char path[320], text[32];
    snprintf(path, sizeof path, "/sys/block/%s/queue/logical_block_size", name);
    read_file(path, text, sizeof text);
    return (unsigned)strtoul(text, NULL, 10);
}

static int open_device(const char *name, const char *what) {
    char path[320];
    snprintf(path, sizeof path, "/dev/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        power_refuse("init", "%s: %s: %s", what, path, strerror(errno));
    return fd;
}

/* Mounts one layer, whose format the token names: nothing is tried out. */
static void mount_layer(const struct layer *layer, const char *place, int is_first) {
    char name[256], device[320], guid[UUID_TEXT] = "", uuid[UUID_TEXT];
    unsigned partition = 0;
    if (!find_block(layer->base, name, sizeof name))
        power_refuse("init", "%s: no such device", layer->role);
    unsigned block = block_size(name);
    int fd = open_device(name, layer->role), is_gpt = !strcmp(layer->format, "gpt");
    const char *fault = is_gpt ? gpt_disk(fd, block, guid, &partition) : NULL;
    close(fd);
    if (fault)
        power_refuse("init", "%s: %s", layer->role, fault);
    if (is_gpt)
        snprintf(name + strlen(name), sizeof name - strlen(name), "%u", partition);
    fd = open_device(name, layer->role);
    fault = erofs_uuid(fd, uuid);
    close(fd);
    if (fault)
        power_refuse("init", "%s: %s", layer->role, fault);
    const char *found = is_gpt ? guid : uuid;
    if (layer->identity && strcasecmp(layer->identity, found))
        power_refuse("init", "%s: found %s, not %s", layer->role, found, layer->identity);
    snprintf(device, sizeof device, "/dev/%s", name);
    make(place);
    join(device, "erofs", place, MS_RDONLY, NULL);
    mounted++;
    text_format(&boot.facts, "%s{\"role\":\"%s\",\"format\":\"%s\",\"filesystem\":\"erofs\"", is_first ? "" : ",",
                layer->role, layer->format);
    if (is_gpt)
        text_format(&boot.facts, ",\"diskGuid\":\"%s\"", guid);
    text_format(&boot.facts, ",\"uuid\":\"%s\",\"blockSize\":%u,\"device\":\"%s\"}", uuid, block, name);
}

static void mount_upper(void) {
    char name[256], device[320], uuid[UUID_TEXT];
    make(UPPER);
    if (boot.tokens.upper == UPPER_RAMFS) {
        join("upper", "tmpfs", UPPER, 0, "mode=0755");
    } else {
        if (!find_block(BASES[SCRATCH_ROLE], name, sizeof name))
            power_refuse("init", "scratch: no such device");
        int fd = open_device(name, "scratch");
        const char *fault = ext4_uuid(fd, uuid);
        close(fd);
        if (fault)
            power_refuse("init", "scratch: %s", fault);
        snprintf(device, sizeof device, "/dev/%s", name);
        join(device, "ext4", UPPER, 0, NULL);
        text_format(&boot.facts, ",\"scratchUuid\":\"%s\",\"scratchBlockSize\":%u", uuid, block_size(name));
    }
    mounted++;
    make(UPPER "/upper");
    make(UPPER "/work");
}

static void mount_root(void) {
    const struct tokens *tokens = &boot.tokens;
    char lower[256] = "", place[64], options[512], before[384];
    text_format(&boot.facts, ",\"layers\":[");
    make("/nvx/layer");
    for (unsigned i = 0; i < tokens->layers; i++) {
        snprintf(place, sizeof place, "/nvx/layer/%s", tokens->layer[i].role);
        mount_layer(&tokens->layer[i], place, !i);
        snprintf(before, sizeof before, "%s%s%s", place, *lower ? ":" : "", lower);
        memcpy(lower, before, sizeof lower);
    }
    text_format(&boot.facts, "],\"upper\":\"%s\"", tokens->upper == UPPER_EXT4 ? "ext4" : "ramfs");
    mount_upper();
    make(ROOT);
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=" UPPER "/upper,workdir=" UPPER "/work", lower);
    join("overlay", "overlay", ROOT, 0, options);
    mounted++;
    boot.root = ROOT;
}

static void check_devices(void) {
    char name[256];
    for (int role = 0; role < SCRATCH_ROLE; role++) {
        int named = 0;
        for (unsigned i = 0; i < boot.tokens.layers; i++)
            named |= boot.tokens.layer[i].base == BASES[role];
        if (!named && find_block(BASES[role], name, sizeof name))
            power_refuse("init", "a device for the %s, which no token names", ROLES[role]);
    }
    int scratch = find_block(BASES[SCRATCH_ROLE], name, sizeof name);
    if (boot.tokens.layered && scratch != (boot.tokens.upper == UPPER_EXT4))
        power_refuse("init", "the scratch device and the tokens disagree");
    text_format(&boot.facts, ",\"scratch\":%s", scratch ? "true" : "false");
}

/* Calls for each line of a file of accounts, cut at its colons; gives how many lines `fits` took. */
static int count_lines(const char *path, unsigned least, int (*fits)(char **field)) {
    FILE *file = fopen(path, "re");
    char row[512], *field[7];
    int found = 0;
    while (file && fgets(row, sizeof row, file)) {
        unsigned fields = 0;
        row[strcspn(row, "\n")] = 0;
        char *rest = row;
        while (fields < 7 && rest)
            field[fields++] = strsep(&rest, ":");
        if (fields >= least)
            found += fits(field);
    }
    if (file)
        fclose(file);
    return found;
}

static int is_account(char **field) {
    if (strtoul(field[2], NULL, 10) != boot.tokens.uid || strtoul(field[3], NULL, 10) != boot.tokens.gid)
        return 0;
    snprintf(boot.account, sizeof boot.account, "%s", field[0]);
    snprintf(boot.home, sizeof boot.home, "%s", field[5]);
    return 1;
}

static int is_group(char **field) { return strtoul(field[2], NULL, 10) == boot.tokens.gid; }

static void make_account(void) {
    FILE *users = fopen("/etc/passwd", "ae"), *groups = fopen("/etc/group", "ae");
    if (users && groups) {
        fprintf(users, "workload:x:%u:%u::/home/workload:/bin/sh\n", boot.tokens.uid, boot.tokens.gid);
        fprintf(groups, "workload:x:%u:\n", boot.tokens.gid);
    }
    if (users)
        fclose(users);
    if (groups)
        fclose(groups);
    mkdir("/home", 0755);
    mkdir("/home/workload", 0755);
}

/* The workload's account is the image's, once, with its group and its home. */
static void find_account(void) {
    char path[600];
    struct stat found;
    snprintf(path, sizeof path, "%s/etc/passwd", boot.root);
    if (boot.tokens.makes_account && !count_lines(path, 7, is_account))
        make_account();
    int times = count_lines(path, 7, is_account);
    if (times != 1)
        power_refuse("identity", "%d accounts of %u:%u", times, boot.tokens.uid, boot.tokens.gid);
    snprintf(path, sizeof path, "%s/etc/group", boot.root);
    if (!count_lines(path, 3, is_group))
        power_refuse("identity", "no group %u", boot.tokens.gid);
    snprintf(path, sizeof path, "%s%s", boot.root, boot.home);
    if (stat(path, &found) || !S_ISDIR(found.st_mode))
        power_refuse("identity", "home %s is no directory", boot.home);
    if (found.st_uid != boot.tokens.uid && chown(path, boot.tokens.uid, boot.tokens.gid))
        power_refuse("identity", "home %s: %s", boot.home, strerror(errno));
}

static void note(void) {
    struct utsname name;
    struct text report = {0};
    char mounts[4096];
    uname(&name);
    report_begin(&report, "guest");
    text_add(&report, boot.facts.at, boot.facts.length);
    report_text(&report, "kernel", name.release, strlen(name.release));
    report_text(&report, "mounts", mounts, read_file("/proc/mounts", mounts, sizeof mounts));
    report_end(&report);
}

void boot_all(void) {
    make("/proc");
    make("/sys");
    make("/dev");
    join("proc", "proc", "/proc", 0, NULL);
    join("sys", "sysfs", "/sys", 0, NULL);
    join("dev", "devtmpfs", "/dev", 0, NULL);
    /* Init has no console: 0, 1 and 2 must not become something that a workload's could be taken for. */
    int null;
    while ((null = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && null < 3)
        continue;
    close(null);
    machine_read();
    load_modules();
    report_open();
    boot.root = "";
    boot.adapter = !access("/nvx-adapter", F_OK);
    size_t length = read_file("/proc/cmdline", line, sizeof line);
    while (length && line[length - 1] == '\n')
        line[--length] = 0;
    memcpy(tokens_line, line, sizeof line);
    machine_at("guest_boot");
    const char *fault = tokens_read(&boot.tokens, tokens_line);
    if (fault)
        power_refuse("init", "%s", fault);
    report_text(&boot.facts, "cmdline", line, length);
    report_text(&boot.facts, "hostname", boot.tokens.hostname, strlen(boot.tokens.hostname));
    text_format(&boot.facts, ",\"layered\":%s,\"adapter\":%s", boot.tokens.layered ? "true" : "false",
                boot.adapter ? "true" : "false");
    sethostname(boot.tokens.hostname, strlen(boot.tokens.hostname));
    make("/nvx");
    check_devices();
    if (boot.tokens.layered)
        mount_root();
    if (boot.tokens.has_identity)
        find_account();
    if (boot.tokens.layered) {
        join("/dev", NULL, ROOT "/dev", MS_BIND, NULL);
        mounted++;
    }
    note();
}

void boot_leave(void) {
    static const char *const places[] = {ROOT "/dev", ROOT, UPPER, "/nvx/layer/custom", "/nvx/layer/runtime",
                                         "/nvx/layer/distro"};
    if (!mounted)
        return;
    mounted = 0;
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0)
        continue;
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++)
        if (umount2(places[i], 0) && errno != EINVAL && errno != ENOENT) {
            struct text report = {0};
            report_begin(&report, "unmount_failed");
            report_text(&report, "place", places[i], strlen(places[i]));
            report_number(&report, "error", errno);
            report_end(&report);
        }
}
