/* JSON lines on a port of their own: what the guest found and did, for the VM monitor's evidence. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "guest.h"

enum { LOOKS = 600, LOOK_NS = 10 * 1000 * 1000 };

static int port = -1;

/* Finds the device of a port by the name that the VM monitor gave it; the kernel numbers ports as it likes. */
static int find_port(const char *name) {
    char path[320], found[64];
    DIR *ports = opendir("/sys/class/virtio-ports");
    struct dirent *entry;
    int fd = -1;
    while (ports && fd < 0 && (entry = readdir(ports))) {
        snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
        FILE *file = *entry->d_name == '.' ? NULL : fopen(path, "re");
        if (file && fscanf(file, "%63s", found) == 1 && !strcmp(found, name)) {
            snprintf(path, sizeof path, "/dev/%s", entry->d_name);
            fd = open(path, O_RDWR | O_CLOEXEC);
        }
        if (file)
            fclose(file);
    }
    if (ports)
        closedir(ports);
    return fd;
}

int port_open(const char *name) {
    const struct timespec between = {0, LOOK_NS};
    for (int look = 0; look < LOOKS; look++) {
        int fd = find_port(name);
        if (fd >= 0)
            return fd;
        nanosleep(&between, NULL);
    }
    return -1;
}

void report_open(void) { port = port_open("nvx.report"); }

void report_begin(struct text *line, const char *kind) { text_format(line, "{\"kind\":\"%s\"", kind); }

void report_number(struct text *line, const char *name, int64_t value) {
    text_format(line, ",\"%s\":%lld", name, (long long)value);
}

void report_text(struct text *line, const char *name, const void *at, size_t length) {
    text_format(line, ",\"%s\":", name);
    text_quote(line, at, length);
}

void report_end(struct text *line) {
    text_add(line, "}\n", 2);
    const char *at = line->at;
    size_t left = line->failed || port < 0 ? 0 : line->length;
    while (left) {
        ssize_t put = write(port, at, left);
        if (put < 0 && errno != EINTR)
            break;
        if (put > 0) {
            at += put;
            left -= (size_t)put;
        }
    }
    free(line->at);
    *line = (struct text){0};
}
